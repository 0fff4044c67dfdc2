/** Imports the parser of searches, to count pages on a repository. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { parseSearch } from '../../../../shared/search/language/search.ts'
import { countStatements, failureStatus, openTestStore } from '../../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()

// More keys than a join looks up individually.
const PATIENTS = 600
const patients = await Promise.all(
  Array.from({ length: PATIENTS }, (_, i) =>
    repository.create(member, {
      resourceType: 'Patient',
      gender: i % 100 === 0 ? 'other' : 'male',
      name: [{ family: `Family${i % 3}` }],
    }),
  ),
)
const observations = await Promise.all(
  patients.flatMap(({ id }, i) =>
    [0, 1].map((n) =>
      repository.create(member, {
        resourceType: 'Observation',
        status: n === 0 ? 'final' : 'amended',
        code: { coding: [{ code: `c${i % 5}` }] },
        subject: { reference: `Patient/${id}` },
        // Two references to matching patients are one match.
        focus: [{ reference: `Patient/${patients[(i + 1) % PATIENTS]?.id}` }],
        ...(i % 7 === 0
          ? {}
          : { effectiveDateTime: `2024-01-${String((i % 28) + 1).padStart(2, '0')}` }),
      }),
    ),
  ),
)

const find = (query: string) => {
  const [type = '', parameters = ''] = query.split('?')
  return repository.search(member, parseSearch(type, parameters))
}

async function walk(query: string, count: number): Promise<string[]> {
  const found: string[] = []
  let cursor: string | undefined
  do {
    const page = await find(`${query}&_count=${count}${cursor ? `&_cursor=${cursor}` : ''}`)
    found.push(...page.versions.map(({ id }) => id))
    cursor = page.next
  } while (cursor !== undefined)
  return found
}

const of = (isWanted: (patient: number, second: boolean) => boolean) =>
  observations.filter((_, i) => isWanted(Math.floor(i / 2), i % 2 === 1)).map(({ id }) => id)

const CASES: readonly [query: string, ids: readonly string[]][] = [
  ['Observation?patient.gender=male', of((i) => i % 100 !== 0)],
  ['Observation?patient.gender=other', of((i) => i % 100 === 0)],
  ['Observation?focus:Patient.gender=male,other', of(() => true)],
  ['Observation?patient.gender=male&status=final', of((i, second) => i % 100 !== 0 && !second)],
  ['Observation?patient.gender=male&code=c1', of((i) => i % 5 === 1)],
  ['Observation?patient.gender=male&patient.name=family1', of((i) => i % 100 !== 0 && i % 3 === 1)],
  [
    'Observation?patient.gender=other&patient.name=family1',
    of((i) => i % 100 === 0 && i % 3 === 1),
  ],
  ['Observation?patient._has:Observation:patient:status=final', of(() => true)],
]

for (const sort of ['-_lastUpdated', '_id', 'date', '-date']) {
  t.test(`returns complete pages of joins over few and many keys by ${sort}`, async (t) => {
    for (const [query, ids] of CASES) {
      const sorted = `${query}&_sort=${sort}`
      const all = await walk(sorted, 1000)
      t.same(all.toSorted(), ids.toSorted(), sorted)
      t.same(await walk(sorted, 300), all, `pages of ${sorted}`)
    }
  })
}

t.test('finds each target of _has once', async (t) => {
  for (const [query, count] of [
    ['Patient?_has:Observation:patient:status=final,amended', PATIENTS],
    ['Patient?_has:Observation:patient:code=c1', PATIENTS / 5],
    ['Patient?_has:Observation:patient:code=c1&gender=other', 0],
    ['Patient?_has:Observation:patient:code=c0&gender=other', 6],
    ['Patient?_has:Observation:patient:status=final&name=family2', PATIENTS / 3],
  ] as const) {
    t.equal(new Set(await walk(query, 70)).size, count, query)
    t.equal((await walk(query, 1000)).length, count, query)
    t.equal((await find(`${query}&_count=0&_total=accurate`)).total, count, `total of ${query}`)
  }
})

t.test('runs a page over many keys as one statement after the first', async (t) => {
  await find('Observation?patient.gender=male')
  t.equal(await countStatements(database, () => find('Observation?patient.gender=male')), 1)
})

t.test('finds all sources of many matches by _revinclude', async (t) => {
  const { included } = await find('Patient?_count=400&_sort=_id&_revinclude=Observation:patient')
  t.equal(included.length, 800)
})

t.test('rejects joins over too many keys as too costly', async (t) => {
  const list = (count: number) =>
    repository.create(member, {
      resourceType: 'List',
      status: 'current',
      mode: 'working',
      entry: Array.from({ length: count }, () => ({
        item: { reference: `Patient/${randomUUID()}` },
      })),
    })
  const { id } = await list(24_900)
  for (let n = 0; n < 7; n++) await list(25_000)
  t.equal(await failureStatus(find('Patient?_has:List:item:status=current')), undefined)
  await list(200)
  const refused = await find('Patient?_has:List:item:status=current').catch((error) => error)
  t.match(refused, { status: 400, outcome: { issue: [{ code: 'too-costly' }] } })
  t.same((await find(`Patient?_list=${id}`)).versions, [])
})
