/** Imports the parser of searches, to search a repository. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { countStatements, failureStatus, openTestStore } from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()

const homer = await repository.create(member, {
  resourceType: 'Patient',
  active: true,
  name: [{ family: 'Simpson', given: ['Homer J', 'Älan'] }],
  identifier: [{ system: 's', value: '1' }],
  telecom: [{ system: 'email', value: 'HOMER@x.org' }],
  birthDate: '1956-05-12',
})
await repository.create(member, {
  resourceType: 'Patient',
  name: [{ family: 'smith_1', given: ['Bart'] }],
  identifier: [
    { system: 's', value: '2' },
    { system: 't', value: '1' },
  ],
  gender: 'male',
})
for (let i = 0; i < 30; i++) {
  await repository.create(member, {
    resourceType: 'Observation',
    status: 'final',
    code: { coding: [{ system: 'l', code: `a${i % 3}` }] },
    subject: { reference: `Patient/${homer.id}` },
    valueQuantity: { value: i, unit: 'mg', system: 'http://unitsofmeasure.org', code: 'mg' },
    ...(i % 5 === 0 ? {} : { effectiveDateTime: `2024-01-${String(i + 1).padStart(2, '0')}` }),
  })
}

const find = (query: string) => {
  const [type = '', parameters = ''] = query.split('?')
  return repository.search(member, parseSearch(type, parameters))
}

const COUNTS: readonly [query: string, count: number][] = [
  ['Patient', 2],
  ['Patient?identifier=s|1', 1],
  ['Patient?identifier=1', 2],
  ['Patient?identifier=|1', 0],
  ['Patient?identifier=s|', 2],
  ['Patient?identifier=t|,s|1', 2],
  ['Patient?identifier:not=s|1', 1],
  ['Patient?identifier=s|1&active=true', 1],
  ['Patient?identifier=s|2&active=true', 0],
  ['Patient?name=simp', 1],
  ['Patient?name=SÍMP', 1],
  ['Patient?name=homer simp', 1],
  ['Patient?name=homer bart', 0],
  ['Patient?name=s', 2],
  ['Patient?name=%25', 0],
  ['Patient?family:exact=Simpson', 1],
  ['Patient?family:exact=simpson', 0],
  ['Patient?name:contains=mps', 1],
  ['Patient?name:contains=h_1', 1],
  ['Patient?name:contains=s_m', 1],
  ['Patient?name:contains=s%25n', 0],
  ['Patient?given=alan', 1],
  ['Patient?name:missing=true', 0],
  ['Patient?email=homer@X.org', 1],
  ['Patient?gender=male', 1],
  ['Patient?gender:missing=true', 1],
  ['Patient?gender:missing=false', 1],
  ['Patient?birthdate=1956', 1],
  ['Patient?birthdate=1956-05-12', 1],
  ['Patient?birthdate=gt1956-05-12', 0],
  ['Patient?birthdate=ge1956-05-12', 1],
  ['Patient?birthdate=lt1957', 1],
  ['Patient?birthdate=ne1956', 0],
  ['Patient?birthdate=sa1955', 1],
  ['Patient?birthdate=eb1956', 0],
  ['Patient?birthdate=ap1956', 1],
  ['Patient?birthdate:missing=true', 1],
  [`Patient?_id=${homer.id}`, 1],
  [`Patient?_id=${homer.id.toUpperCase()},x`, 1],
  [`Patient?_id:not=${homer.id}`, 1],
  ['Patient?_lastUpdated=gt2020', 2],
  ['Patient?_lastUpdated=lt2020', 0],
  ['Observation?code=l|a1', 10],
  ['Observation?code=a1', 10],
  ['Observation?code=l|', 30],
  ['Observation?combo-code=a1', 10],
  ['Observation?code:not=a1', 20],
  ['Observation?code=a1&status=final', 10],
  [`Observation?subject=Patient/${homer.id}`, 30],
  [`Observation?patient=${homer.id}`, 30],
  [`Observation?subject:Patient=${homer.id}`, 30],
  [`Observation?subject=Group/${homer.id}`, 0],
  [`Observation?subject:not=Patient/${homer.id}`, 0],
  ['Observation?subject:missing=true', 0],
  ['Observation?value-quantity=5', 1],
  ['Observation?value-quantity=gt5', 24],
  ['Observation?value-quantity=le5', 6],
  ['Observation?value-quantity=5||mg', 1],
  ['Observation?value-quantity=5|http://unitsofmeasure.org|mg', 1],
  ['Observation?value-quantity=5|http://unitsofmeasure.org|g', 0],
  ['Observation?value-quantity:missing=true', 0],
  ['Observation?date=2024-01-02', 1],
  ['Observation?date=2024', 24],
  ['Observation?date=ge2024-01-10', 17],
  ['Observation?date=ge2024-01-10&date=lt2024-01-12', 1],
]

t.test('finds the resources that match the parameters', async (t) => {
  for (const [query, count] of COUNTS) {
    const mark = query.includes('?') ? '&' : '?'
    const { versions } = await find(`${query}${mark}_count=100`)
    t.equal(versions.length, count, query)
    const { total } = await find(`${query}${mark}_count=0&_total=accurate`)
    t.equal(total, count, `total of ${query}`)
  }
})

const cursor = (...parts: unknown[]) => Buffer.from(JSON.stringify(parts)).toString('base64url')

t.test('rejects a damaged cursor or one of another order', async (t) => {
  for (const query of [
    'Observation?_cursor=xx',
    'Observation?_sort=code&_cursor=xx',
    `Observation?_sort=code&_cursor=${cursor('-code', ['a'], randomUUID())}`,
    `Observation?_sort=code&_cursor=${cursor('code', ['a', 'b'], randomUUID())}`,
    `Observation?_sort=code&_cursor=${cursor('code', [5], randomUUID())}`,
    `Observation?_sort=code&_cursor=${cursor('code', ['\0'], randomUUID())}`,
    `Observation?_sort=code,date&_cursor=${cursor('code,date', ['a', '2024'], randomUUID())}`,
    `Observation?_sort=value-quantity&_cursor=${cursor('value-quantity', ['x'], randomUUID())}`,
    `Observation?_sort=code&_cursor=${cursor('code', ['a'], 'x')}`,
    `Observation?_cursor=${Buffer.from('["-lu",null,"x"]').toString('base64url')}`,
    `Observation?_cursor=${Buffer.from(`["-lu","2024-13-01T00:00:00.000Z","${randomUUID()}"]`).toString('base64url')}`,
    `Observation?_sort=_id&_cursor=${Buffer.from(`["-lu","2024-01-01T00:00:00.000Z","${randomUUID()}"]`).toString('base64url')}`,
  ]) {
    t.equal(await failureStatus(find(query)), 400, query)
  }
})

t.test('runs one statement for a page and a second for a total', async (t) => {
  await find('Patient?name=simp')
  t.equal(await countStatements(database, () => find('Patient?name=simp')), 1)
  t.equal(await countStatements(database, () => find('Observation?code=a1&_sort=-date')), 1)
  t.equal(await countStatements(database, () => find('Patient?name=simp&_total=accurate')), 2)
  t.equal(await countStatements(database, () => find('Patient?_count=0&_total=accurate')), 1)
})

for (const sort of ['', '_lastUpdated', '-_lastUpdated', '_id', '-_id', 'date', '-date']) {
  t.test(`pages by "${sort}" without gap or repeat`, async (t) => {
    for (const filter of ['', '&code=a0,a1,a2', '&status=final', '&value-quantity=ge0']) {
      const query = `Observation?_sort=${sort}${filter}`
      const all = (await find(`${query}&_count=100`)).versions.map(({ id }) => id)
      t.equal(new Set(all).size, 30)
      const walked: string[] = []
      let cursor: string | undefined
      do {
        const page = await find(`${query}&_count=4${cursor ? `&_cursor=${cursor}` : ''}`)
        walked.push(...page.versions.map(({ id }) => id))
        cursor = page.next
      } while (cursor !== undefined)
      t.same(walked, all, `by cursor${filter}`)
      const skipped: string[] = []
      for (let offset = 0; offset < 30; offset += 7) {
        const page = await find(`${query}&_count=7&_offset=${offset}`)
        skipped.push(...page.versions.map(({ id }) => id))
      }
      t.same(skipped, all, `by offset${filter}`)
    }
  })
}

t.test('sorts rows without a date last, or first when descending', async (t) => {
  const dates = async (query: string) =>
    (await find(query)).versions.map(
      ({ content }) => JSON.parse(content ?? '').effectiveDateTime as string | undefined,
    )
  t.same((await dates('Observation?_sort=date&_count=100')).slice(22, 26), [
    '2024-01-29',
    '2024-01-30',
    undefined,
    undefined,
  ])
  t.same((await dates('Observation?_sort=-date&_count=8')).slice(5), [
    undefined,
    '2024-01-30',
    '2024-01-29',
  ])
})

t.test('finds a resource immediately after its write', async (t) => {
  const system = randomUUID()
  const query = `Patient?identifier=${system}|1`
  const identifier = [{ system, value: '1' }]
  const { id } = await repository.create(member, { resourceType: 'Patient', identifier })
  t.match((await find(query)).versions, [{ id, ver: 1 }])
  await repository.update(member, { resourceType: 'Patient', id, identifier, active: true })
  t.match((await find(query)).versions, [{ id, ver: 2 }])
  await repository.update(member, { resourceType: 'Patient', id })
  t.same((await find(query)).versions, [])
  await repository.update(member, { resourceType: 'Patient', id, identifier })
  await repository.delete(member, 'Patient', id)
  t.same((await find(query)).versions, [])
})
