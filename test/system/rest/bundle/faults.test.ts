import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { anObservation, aPatient, MRN_SYSTEM } from '../../../fixtures/resources.ts'
import { holdRow, waitingFor } from '../../../fixtures/store/held-rows.ts'

const botica = await openBotica(t)
const { client } = await botica.createMember()
const { database } = botica.services
const WAIT_MS = 60_000

interface ResponseBundle extends Resource {
  readonly entry: readonly {
    readonly response: { readonly status: string }
    readonly resource?: Resource & { readonly id: string }
  }[]
}
interface Entry {
  readonly fullUrl?: string
  readonly request: Readonly<Record<string, string>>
  readonly resource?: Resource
}

const transact = (entry: readonly Entry[]) =>
  client.post<ResponseBundle>('', { resourceType: 'Bundle', type: 'transaction', entry })
const post = (resource: Resource, more = {}): Entry => ({
  request: { method: 'POST', url: resource.resourceType, ...more },
  resource,
})
const put = (resource: Resource, more = {}): Entry => ({
  request: { method: 'PUT', url: `${resource.resourceType}/${resource.id}`, ...more },
  resource,
})
const withMrn = (value: string) => aPatient({ identifier: [{ system: MRN_SYSTEM, value }] })
async function countMatches(value: string): Promise<number> {
  const found = await client.get(`Patient?identifier=${MRN_SYSTEM}|${value}&_total=accurate`)
  return Number(found.body.total)
}

t.test('serializes racing transactions on one resource', async (t) => {
  const made = await client.create(aPatient())
  const answers = await Promise.all(
    ['female', 'other', 'unknown', 'female'].map((gender, i) =>
      transact([post(withMrn(randomUUID())), put({ ...made, gender, multipleBirthInteger: i })]),
    ),
  )
  t.same(
    answers.map(({ status }) => status),
    [200, 200, 200, 200],
  )
  const read = await client.get(`Patient/${made.id}`)
  t.equal(read.body.meta?.versionId, '5')
})

t.test('commits one of several transactions with the same If-Match', async (t) => {
  const made = await client.create(aPatient())
  const mrn = randomUUID()
  const answers = await Promise.all(
    [1, 2, 3].map((n) =>
      transact([
        post(withMrn(mrn)),
        put({ ...made, multipleBirthInteger: n }, { ifMatch: 'W/"1"' }),
      ]),
    ),
  )
  t.same(answers.map(({ status }) => status).sort(), [200, 412, 412])
  t.equal(await countMatches(mrn), 1)
  for (const { status, body } of answers) {
    if (status === 412) t.match(body, { issue: [{ expression: ['Bundle.entry[1]'] }] })
  }
})

t.test('retries deadlocked transactions', async (t) => {
  const [a, b] = [await client.create(aPatient()), await client.create(aPatient())]
  for (let round = 0; round < 3; round++) {
    const answers = await Promise.all([
      transact([put({ ...a, multipleBirthInteger: round }), put({ ...b, gender: 'other' })]),
      transact([put({ ...b, multipleBirthInteger: round }), put({ ...a, gender: 'other' })]),
    ])
    t.same(
      answers.map(({ status }) => status),
      [200, 200],
    )
  }
})

t.test('creates one resource for equal conditional creates in racing transactions', async (t) => {
  const mrn = randomUUID()
  const ifNoneExist = `identifier=${MRN_SYSTEM}|${mrn}`
  const fullUrl = `urn:uuid:${randomUUID()}`
  const answers = await Promise.all(
    Array.from({ length: 12 }, () =>
      transact([{ ...post(withMrn(mrn), { ifNoneExist }), fullUrl }, post(anObservation(fullUrl))]),
    ),
  )
  t.ok(answers.every(({ status }) => status === 200))
  const ids = new Set(answers.map(({ body }) => body.entry[0]?.resource?.id))
  t.equal(ids.size, 1)
  t.equal(await countMatches(mrn), 1)
  for (const { body } of answers) {
    t.match(body.entry[1]?.resource, { subject: { reference: `Patient/${[...ids][0]}` } })
  }
})

t.test('creates one resource each for equal conditional creates in racing batches', async (t) => {
  const mrns = Array.from({ length: 20 }, () => randomUUID())
  const entry = mrns.map((mrn) =>
    post(withMrn(mrn), { ifNoneExist: `identifier=${MRN_SYSTEM}|${mrn}` }),
  )
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  const answers = await Promise.all([
    client.post<ResponseBundle>('', bundle),
    client.post<ResponseBundle>('', { ...bundle, entry: entry.toReversed() }),
    ...entry.slice(0, 5).map((one) => client.post<ResponseBundle>('', { ...bundle, entry: [one] })),
  ])
  const statuses = answers.flatMap(({ body }) => body.entry.map(({ response }) => response.status))
  t.equal(statuses.filter((status) => status === '201').length, mrns.length)
  t.ok(statuses.every((status) => ['200', '201'].includes(status)))
  t.same(await Promise.all(mrns.map(countMatches)), Array(mrns.length).fill(1))
})

t.test('returns a resource created during the batch from a conditional create', async (t) => {
  const mrn = randomUUID()
  const query = `identifier=${MRN_SYSTEM}|${mrn}`
  const fullUrl = `urn:uuid:${randomUUID()}`
  const held = await client.create(aPatient())
  const { pid, release } = await holdRow(database, held.id)
  const entry = [
    { request: { method: 'DELETE', url: `Patient/${held.id}` } },
    { ...post(withMrn(mrn), { ifNoneExist: query }), fullUrl },
    post(anObservation(fullUrl)),
    post(withMrn(mrn), { ifNoneExist: query }),
    { request: { method: 'PUT', url: `Patient?${query}` }, resource: withMrn(mrn) },
  ]
  const sent = client.post<ResponseBundle>('', { resourceType: 'Bundle', type: 'batch', entry })
  await until(async () => (await waitingFor(database, pid)).length > 0, WAIT_MS)
  const { id } = await client.create(withMrn(mrn))
  await release()
  const [, made, observation, twin, update] = (await sent).body.entry
  t.match([made, twin, update], Array(3).fill({ response: { status: '200' }, resource: { id } }))
  t.match(observation, { resource: { subject: { reference: `Patient/${id}` } } })
  t.equal(await countMatches(mrn), 1)
})

t.test('creates one resource in racing bundles that also search, and finds it', async (t) => {
  const mrn = randomUUID()
  const query = `identifier=${MRN_SYSTEM}|${mrn}`
  const other = `${await botica.startWeb()}fhir/R4/`
  const entry = [
    post(withMrn(mrn), { ifNoneExist: query }),
    { request: { method: 'GET', url: `Patient?${query}&_total=accurate` } },
  ]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const answers = await Promise.all(
    Array.from({ length: 10 }, (_, i) =>
      client.post<ResponseBundle>(i % 2 === 0 ? '' : other, bundle),
    ),
  )
  t.same(
    answers.map(({ status, body }) => [status, body.entry?.[1]?.resource?.total]),
    Array.from({ length: 10 }, () => [200, 1]),
  )
  t.equal(await countMatches(mrn), 1)
})

t.test('creates one resource for racing conditional writes of two web processes', async (t) => {
  const mrn = randomUUID()
  const query = `identifier=${MRN_SYSTEM}|${mrn}`
  const other = `${await botica.startWeb()}fhir/R4/`
  const bundle = {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      { request: { method: 'PUT', url: `Patient?${query}` }, resource: withMrn(mrn) },
      post(withMrn(randomUUID())),
    ],
  }
  const answers = await Promise.all(
    Array.from({ length: 9 }, (_, i) => {
      if (i % 3 === 0) return client.post('Patient', withMrn(mrn), { 'If-None-Exist': query })
      return client.post(i % 3 === 1 ? '' : other, bundle)
    }),
  )
  t.ok(answers.every(({ status }) => status === 200 || status === 201))
  t.equal(await countMatches(mrn), 1)
})

/** Kills the connection of a transaction that creates a resource, while the transaction waits to change `made`. */
async function killedCreating(resource: Resource, made: Resource) {
  const { pid, release } = await holdRow(database, made.id)
  const sent = transact([post(resource), put({ ...made, gender: 'other' })])
  let pids: number[] = []
  await until(async () => {
    pids = await waitingFor(database, pid)
    return pids.length > 0
  }, WAIT_MS)
  await database.query({ text: 'select pg_terminate_backend($1)', values: [pids[0]] })
  const answer = await sent
  await release()
  return answer
}

t.test('checks the content of a transaction whose connection is killed', async (t) => {
  const binary = { resourceType: 'Binary', contentType: 'text/plain', data: 'AAAA' }
  const answer = await killedCreating(binary, await client.create(aPatient()))
  t.equal(answer.status, 503)
  const contents = await database.query<{ isDue: boolean }>({
    text: `select due is not null as "isDue" from stored_content where key like $1`,
    values: [`binary/${botica.project.id}/%`],
  })
  t.same(contents, [{ isDue: true }])
})

t.test('leaves nothing of a transaction whose connection is killed', async (t) => {
  const made = await client.create(aPatient())
  const mrn = randomUUID()
  const answer = await killedCreating(withMrn(mrn), made)
  t.equal(answer.status, 503)
  t.equal(await countMatches(mrn), 0)
  t.match((await client.get(`Patient/${made.id}`)).body, {
    gender: 'male',
    meta: { versionId: '1' },
  })
  t.equal((await transact([post(withMrn(mrn))])).status, 200, 'the next one gets a new connection')
})

t.test('names the invalid entry of a rejected transaction', async (t) => {
  const id = `taken-${randomUUID()}`
  const { superAdmin } = botica
  const basic = { resourceType: 'Basic', code: { text: 'x' } }
  const mrn = randomUUID()
  const send = (entry: readonly Entry[]) =>
    superAdmin.post<ResponseBundle>('', { resourceType: 'Bundle', type: 'transaction', entry })
  const taken = put({ ...basic, id })
  const [first, second] = await Promise.all([
    send([post({ ...basic, code: { text: mrn } }), taken]),
    send([post({ ...basic, code: { text: mrn } }), taken]),
  ])
  // A later caller finds the resource, or gets 412 for the concurrent create.
  for (const { status, body } of [first, second]) {
    if (status === 200) continue
    t.equal(status, 409)
    t.match(body, { id: 'conflict', issue: [{ expression: ['Bundle.entry[1]'] }] })
  }
  t.ok([first, second].some(({ status }) => status === 200))
})
