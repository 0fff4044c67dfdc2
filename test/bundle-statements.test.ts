import { randomUUID } from 'node:crypto'
import t from 'tap'
import type { Resource } from '../shared/fhir/resource.ts'
import { openBotica } from './fixtures/botica.ts'
import { anObservation, aPatient, MRN_SYSTEM, syntheaTexts } from './fixtures/resources.ts'
import { statementsOf } from './fixtures/store.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()
const { database } = botica.services
// The first request of a client reads its membership.
await client.get('Patient')

interface ResponseBundle extends Resource {
  readonly entry: readonly {
    readonly response: { readonly status: string; readonly location: string }
    readonly resource?: Resource & { readonly id: string }
  }[]
}
interface Entry {
  readonly fullUrl?: string
  readonly request: Readonly<Record<string, string>>
  readonly resource?: Resource
}

const run = (type: string, entry: readonly Entry[]) =>
  client.post<ResponseBundle>('', { resourceType: 'Bundle', type, entry })
const post = (resource: Resource, more = {}): Entry => ({
  request: { method: 'POST', url: resource.resourceType, ...more },
  resource,
})
const put = (resource: Resource): Entry => ({
  request: { method: 'PUT', url: `${resource.resourceType}/${resource.id}` },
  resource,
})
const many = <T>(count: number, make: (i: number) => T): T[] =>
  Array.from({ length: count }, (_, i) => make(i))
const withMrn = (value: string) => aPatient({ identifier: [{ system: MRN_SYSTEM, value }] })

/** What a transaction costs besides: it begins and commits. */
const FRAME = 2

t.test('a Synthea record is written by one statement', async (t) => {
  for (const text of await syntheaTexts()) {
    const cost = await statementsOf(database, async () => {
      t.equal(
        (await client.post('', text, { 'Content-Type': 'application/fhir+json' })).status,
        200,
      )
    })
    t.equal(cost, FRAME + 1)
  }
})

t.test('a transaction of 500 entries takes one statement for each kind of work', async (t) => {
  const mrn = randomUUID()
  const made = await run(
    'transaction',
    many(300, (i) => post(withMrn(`${mrn}-${i}`))),
  )
  const known = made.body.entry.map(({ resource }) => resource)
  const entries: Entry[] = []
  for (const [i, resource] of known.entries()) {
    if (resource === undefined) throw new Error('A patient was not made')
    const url = `Patient/${resource.id}`
    if (i < 100) entries.push(put({ ...resource, gender: 'other' }))
    else if (i < 150) entries.push({ request: { method: 'DELETE', url } })
    else if (i < 250) entries.push({ request: { method: 'GET', url } })
    else {
      const patch = Buffer.from('[{"op":"add","path":"/active","value":false}]').toString('base64')
      const data = {
        resourceType: 'Binary',
        contentType: 'application/json-patch+json',
        data: patch,
      }
      entries.push({ request: { method: 'PATCH', url }, resource: data })
    }
  }
  const subject = `Patient?identifier=${MRN_SYSTEM}|${mrn}-200`
  entries.push(...many(100, () => post(anObservation(subject))))
  entries.push(
    ...many(100, (i) => {
      const ifNoneExist = `identifier=${MRN_SYSTEM}|${mrn}-${200 + i}`
      return post(withMrn(`${mrn}-${200 + i}`), { ifNoneExist })
    }),
  )

  const cost = await statementsOf(database, async () => {
    const answer = await run('transaction', entries)
    t.equal(answer.status, 200)
    const statuses = Map.groupBy(answer.body.entry, ({ response }) => response.status)
    t.equal(statuses.get('201')?.length, 100)
    t.equal(statuses.get('200')?.length, 400)
  })
  // Locks, criteria, rows to change, deletions, inserts, updates, and rows to show.
  t.ok(cost <= FRAME + 7, `${cost} statements`)
})

t.test('references of a transaction are checked by one statement', async (t) => {
  const strict = await botica.createTenant()
  const changed = { ...strict.project, checkReferencesOnWrite: true }
  t.equal((await botica.superAdmin.put(`Project/${strict.project.id}`, changed)).status, 200)
  const urn = `urn:uuid:${randomUUID()}`
  const entry = [...many(50, () => post(anObservation(urn))), { ...post(aPatient()), fullUrl: urn }]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const send = () => strict.admin.post<ResponseBundle>('', bundle)
  t.equal((await send()).status, 200)
  const cost = await statementsOf(database, async () => {
    t.equal((await send()).status, 200)
  })
  t.equal(cost, FRAME + 2)

  const wrong = { ...bundle, entry: [...entry, post(anObservation(`Patient/${randomUUID()}`))] }
  const refused = await strict.admin.post('', wrong)
  t.equal(refused.status, 400)
  t.match(refused.body, {
    issue: [
      {
        code: 'structure',
        details: { text: 'Invalid reference (Not found)' },
        expression: ['Bundle.entry[51]', 'Observation.subject'],
      },
    ],
  })
})

t.test('a batch reads many resources by one statement', async (t) => {
  const { id } = await client.create(aPatient())
  const url = `Patient/${id}`
  const cost = await statementsOf(database, async () => {
    const answer = await run(
      'batch',
      many(200, () => ({ request: { method: 'GET', url } })),
    )
    t.ok(answer.body.entry.every(({ response }) => response.status === '200'))
  })
  t.equal(cost, 1)
})

t.test('a batch of creates shares its statements', async (t) => {
  const cost = await statementsOf(database, async () => {
    const answer = await run(
      'batch',
      many(200, () => post(aPatient())),
    )
    t.ok(answer.body.entry.every(({ response }) => response.status === '201'))
  })
  t.ok(cost < 50, `${cost} statements`)
})
