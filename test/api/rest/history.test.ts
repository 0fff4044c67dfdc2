import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { services } = botica

interface HistoryBundle extends Resource {
  readonly total?: number
  readonly link: readonly { readonly relation: string; readonly url: string }[]
  readonly entry?: readonly {
    readonly fullUrl: string
    readonly request: { readonly method: string; readonly url: string }
    readonly response: { readonly status: string; readonly location: string; lastModified: string }
    readonly resource?: Resource
  }[]
}

/** Creates a Project with a Patient of 3 versions, a deleted Patient and an Observation. */
async function aRecord() {
  const { admin } = await botica.createTenant(`History ${randomUUID()}`)
  const first = await admin.create(aPatient())
  const second = await admin.create(aPatient())
  const observation = await admin.create(anObservation(`Patient/${first.id}`))
  for (const gender of ['female', 'other']) {
    await admin.put(`Patient/${first.id}`, { ...first, gender })
  }
  await admin.del(`Patient/${second.id}`)
  return { client: admin, first, second, observation }
}

async function locations(client: Client, path: string): Promise<string[]> {
  const { status, body, text } = await client.get<HistoryBundle>(path)
  if (status !== 200) throw new Error(text)
  return (body.entry ?? []).map(({ response }) => response.location)
}

t.test('returns every version in the history of a type, newest first', async (t) => {
  const { client, first, second } = await aRecord()
  const answer = await client.get<HistoryBundle>('Patient/_history')
  t.equal(answer.status, 200)
  t.equal(answer.body.type, 'history')
  t.equal(answer.body.total, undefined)
  t.match(answer.body.entry, [
    {
      fullUrl: `${botica.baseUrl}fhir/R4/Patient/${second.id}`,
      request: { method: 'DELETE', url: `Patient/${second.id}` },
      response: { status: '410', outcome: { id: 'gone' }, etag: 'W/"2"' },
    },
    { request: { method: 'PUT' }, response: { etag: 'W/"3"' }, resource: { gender: 'other' } },
    { request: { method: 'PUT' }, response: { etag: 'W/"2"' }, resource: { gender: 'female' } },
    { request: { method: 'POST', url: 'Patient' }, resource: { id: second.id } },
    { request: { method: 'POST', url: 'Patient' }, resource: { id: first.id } },
  ])
  t.equal(answer.body.entry?.length, 5)
  t.notOk(answer.body.entry?.[0]?.resource)
})

t.test('orders the history of a Project by time across types', async (t) => {
  const { client, first, second, observation } = await aRecord()
  const own = (await locations(client, '_history')).filter((path) => /^(Pat|Obs)/.test(path))
  t.same(own, [
    `Patient/${second.id}/_history/2`,
    `Patient/${first.id}/_history/3`,
    `Patient/${first.id}/_history/2`,
    `Observation/${observation.id}/_history/1`,
    `Patient/${second.id}/_history/1`,
    `Patient/${first.id}/_history/1`,
  ])
})

t.test('hides the history of another Project', async (t) => {
  const { first } = await aRecord()
  const { client } = await aRecord()
  for (const path of ['_history', 'Patient/_history']) {
    t.notOk((await locations(client, path)).some((location) => location.includes(first.id)))
  }
})

t.test('omits denied types from a history', async (t) => {
  const { client } = await botica.createMember()
  await client.create(aPatient())
  t.equal((await client.get('Login/_history')).status, 403)
  t.equal((await client.get('ProjectMembership/_history')).status, 403)
  t.notOk((await locations(client, '_history')).some((path) => /^(Login|Project)/.test(path)))
  t.equal((await client.get('Nothing/_history')).status, 400)
})

t.test('omits hidden fields from a history', async (t) => {
  const { admin } = await botica.createTenant()
  const asAdmin = await admin.get<HistoryBundle>('ClientApplication/_history')
  t.ok(asAdmin.body.entry?.some(({ resource }) => resource?.secret !== undefined))
  const { client } = await botica.createMember()
  const asMember = await client.get<HistoryBundle>('ClientApplication/_history')
  t.ok((asMember.body.entry?.length ?? 0) > 0)
  t.ok(asMember.body.entry?.every(({ resource }) => resource?.secret === undefined))
})

for (const level of ['Patient/_history', '_history']) {
  for (const sort of ['-_lastUpdated', '_lastUpdated']) {
    t.test(`pages ${level} by ${sort} without gaps`, async (t) => {
      const { client } = await aRecord()
      const whole = await locations(client, `${level}?_sort=${sort}`)
      const walk = async (start: string, way: string) => {
        const pages: string[][] = []
        let last = start
        let path: string | undefined = start
        while (path !== undefined) {
          const page: { body: HistoryBundle } = await client.get<HistoryBundle>(path)
          pages.push((page.body.entry ?? []).map(({ response }) => response.location))
          last = path
          path = page.body.link.find(({ relation }) => relation === way)?.url
        }
        return { pages, last }
      }
      const onward = await walk(`${level}?_sort=${sort}&_count=2`, 'next')
      t.same(onward.pages.flat(), whole)
      const back = await walk(onward.last, 'previous')
      t.same(back.pages.toReversed(), onward.pages)
      t.same((await walk(back.last, 'next')).pages, onward.pages)
      const offset = await client.get<HistoryBundle>(`${level}?_sort=${sort}&_count=2&_offset=2`)
      t.same(
        offset.body.entry?.map(({ response }) => response.location),
        whole.slice(2, 4),
      )
      const relations = offset.body.link.map(({ relation }) => relation)
      t.same(relations, ['self', 'first', 'next', 'previous'])
    })
  }
}

t.test('supports _since and _at', async (t) => {
  const { client, first, second } = await aRecord()
  const all = await client.get<HistoryBundle>('Patient/_history?_sort=_lastUpdated')
  const times = all.body.entry?.map(({ response }) => response.lastModified) ?? []
  const third = encodeURIComponent(times[2] ?? '')
  t.equal((await locations(client, `Patient/_history?_since=${third}`)).length, 3)
  t.same(await locations(client, `Patient/_history?_at=${third}`), [
    `Patient/${first.id}/_history/2`,
    `Patient/${second.id}/_history/1`,
  ])
  t.same(await locations(client, `Patient/${first.id}/_history?_at=${third}`), [
    `Patient/${first.id}/_history/2`,
  ])
  const year = times[0]?.slice(0, 4)
  t.equal((await locations(client, `Patient/_history?_at=${year}`)).length, 5)
  t.same(await locations(client, 'Patient/_history?_at=2001'), [])
})

t.test(
  'treats times beyond the years 1 to 9999 as earlier and later than all others',
  async (t) => {
    const { client, first } = await aRecord()
    const cases = [
      ['_at=9999', '_at=9998'],
      ['_at=9999-12-31', '_at=9998'],
      ['_at=0001-01-01T00:00:00%2B14:00', '_at=2001'],
      ['_since=0001-01-01T00:00:00%2B14:00', '_since=2001'],
      ['_since=9999-12-31T23:59:59-14:00', '_since=9998'],
    ] as const
    for (const path of ['Patient/_history', '_history', `Patient/${first.id}/_history`]) {
      for (const [query, alike] of cases) {
        const total = async (asked: string) =>
          (await client.get<HistoryBundle>(`${path}?${asked}&_total=accurate`)).body.total
        t.type(await total(query), 'number')
        t.equal(await total(query), await total(alike), `${path}?${query}`)
      }
    }
  },
)

t.test('counts the history of a resource always, other histories on request', async (t) => {
  const { client, first } = await aRecord()
  const total = async (path: string) => (await client.get<HistoryBundle>(path)).body.total
  t.equal(await total('Patient/_history?_total=accurate&_count=1'), 5)
  t.equal(await total('Patient/_history?_total=accurate&_count=0'), 5)
  t.equal(await total(`Patient/${first.id}/_history?_count=1`), 3)
  t.equal(await total(`Patient/${first.id}/_history?_count=0`), 3)
  t.equal(await total('Patient/_history?_total=none'), undefined)
})

t.test('excludes hidden versions from the total of a history', async (t) => {
  const shown = await botica.admin.create(aPatient({ active: true }))
  const hidden = await botica.admin.create(aPatient({ active: false }))
  for (const { id } of [shown, hidden]) {
    for (const language of ['de', 'en']) {
      const { body } = await botica.admin.get(`Patient/${id}`)
      await botica.admin.put(`Patient/${id}`, { ...body, language })
    }
  }
  await botica.admin.del(`Patient/${shown.id}`)
  const { client } = await memberUnder(botica, {
    entries: [
      { resourceType: 'Patient', criteria: 'Patient?active=true' },
      { resourceType: 'Basic', hiddenFields: ['code'] },
    ],
  })
  const total = async (path: string) => (await client.get<HistoryBundle>(path)).body.total
  t.equal(await total('Patient/_history?_total=accurate&_count=1'), 4)
  t.equal(await total('_history?_total=accurate&_count=0'), 4)
  t.equal(await total(`Patient/${shown.id}/_history?_count=1`), 4)
  t.equal(await total(`Patient/${shown.id}/_history?_count=0`), 4)
  t.equal(await total(`Patient/${shown.id}/_history`), 4)
})

t.test('reads a page of a history with one statement', async (t) => {
  const { client } = await aRecord()
  await client.get('Patient')
  for (const path of ['_history', 'Patient/_history', 'Patient/_history?_at=2001&_count=3']) {
    t.equal(await statementsAsked(services, client, () => client.get(path)), 1, path)
  }
})

t.test('names a deleted resource with a client-chosen id', async (t) => {
  const id = `own-${randomUUID()}`
  const { superAdmin } = botica
  t.equal((await superAdmin.put(`Basic/${id}`, { ...aBasic, id })).status, 201)
  await superAdmin.del(`Basic/${id}`)
  t.match(await locations(superAdmin, 'Basic/_history?_count=1'), [`Basic/${id}/_history/2`])
})

const aBasic: Resource = { resourceType: 'Basic', code: { text: 'x' } }

/** Invalid queries; each error names the parameter. */
const REFUSED = [
  ...['_since=x', '_since=%00', '_at=1', '_at=2020-99', '_sort=name', '_total=estimate'],
  ...['_cursor=x', `_cursor=${Buffer.from('[1,2,3,4]').toString('base64url')}`],
  ...['_cursor=x&_offset=5', '_count=-1', '_count=x', '_offset=-1', '_offset=10001'],
]
for (const query of REFUSED) {
  t.test(`rejects a history with ${query}`, async (t) => {
    const { client } = await botica.createMember()
    const { id } = await client.create(aPatient())
    const expression = [query.replace(/=.*/s, '')]
    for (const path of ['_history', 'Patient/_history', `Patient/${id}/_history`]) {
      const { status, body } = await client.get(`${path}?${query}`)
      t.equal(status, 400, path)
      t.match(body, { issue: [{ expression }] }, path)
    }
  })
}

t.test('applies _elements and _summary to a history', async (t) => {
  const { client, first } = await aRecord()
  for (const path of [`Patient/${first.id}/_history`, 'Patient/_history', '_history']) {
    const { body } = await client.get<HistoryBundle>(`${path}?_elements=gender&_count=3`)
    const shown = body.entry?.flatMap(({ resource }) => resource ?? []) ?? []
    t.ok(shown.length > 0)
    t.ok(shown.every((resource) => !('name' in resource)))
    const counted = await client.get<HistoryBundle>(`${path}?_summary=count`)
    t.equal(counted.body.entry, undefined)
    t.equal(typeof counted.body.total, 'number')
  }
})

t.test('rejects parameters that a history or a read does not have', async (t) => {
  const { client, first } = await aRecord()
  const path = `Patient/${first.id}/_history`
  const strict = { Prefer: 'handling=strict' }
  const cases: readonly (readonly [path: string, name: string, headers?: typeof strict])[] = [
    [`${path}?_lastUpdated=gt2020`, '_lastUpdated'],
    [`${path}?_list=List/1`, '_list'],
    [`${path}?_count=1&_count=2`, '_count'],
    [`${path}?_since=2020&_since=2021`, '_since'],
    [`${path}?_summary=some`, '_summary'],
    [`${path}?_elements=nothing`, '_elements', strict],
    [`Patient/${first.id}?_summary=count`, '_summary'],
    [`Patient/${first.id}?nothing=1`, 'nothing', strict],
    [`${path}/1?nothing=1`, 'nothing', strict],
    ['metadata?mode=some', 'mode'],
  ]
  for (const [address, name, headers] of cases) {
    const answer = await client.get(address, headers)
    t.match(answer, { status: 400, body: { issue: [{ expression: [name] }] } }, address)
  }
  const lenient = { Prefer: 'handling=lenient' }
  t.equal((await client.get(`${path}?_lastUpdated=gt2020`, lenient)).status, 200)
  t.equal((await client.get(`Patient/${first.id}?nothing=1`)).status, 200)
})
