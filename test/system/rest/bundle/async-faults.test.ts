import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { aPatient, MRN_SYSTEM } from '../../../fixtures/resources.ts'
import { holdRow, waitingFor } from '../../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  // Waiting requests are in the database, which is otherwise shared.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { client } = await botica.createMember()
const { database } = botica.services
const DONE_MS = 60_000

async function send(mrn: string) {
  const resource = aPatient({ identifier: [{ system: MRN_SYSTEM, value: mrn }] })
  const entry = [{ request: { method: 'POST', url: 'Patient' }, resource }]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const answer = await client.post('', bundle, { Prefer: 'respond-async' })
  const url = answer.headers.get('content-location') ?? ''
  const id = /job\/([^/]+)\/status/.exec(url)?.[1] ?? ''
  return { url, id }
}

async function countMatches(mrn: string): Promise<number> {
  const found = await client.get(`Patient?identifier=${MRN_SYSTEM}|${mrn}&_total=accurate`)
  return Number(found.body.total)
}

const age = (id: string, change: string) =>
  database.query({
    text: `update job set ${change}, touched = clock_timestamp() - interval '5 minutes'
      where id = $1`,
    values: [id],
  })

// No worker runs until the last test, so that each state can be inspected.
const cancelled = randomUUID()
const lost = randomUUID()
const interrupted = randomUUID()
let abandoned = ''

t.test('cancels a waiting request, which never runs', async (t) => {
  const { url } = await send(cancelled)
  t.equal((await client.get(url)).status, 202)
  t.equal((await client.del(url)).status, 202)
  t.match(await client.get(url), { status: 200, body: { status: 'cancelled' } })
})

t.test('accepts the job of a member who is then removed', async (t) => {
  const leaver = await botica.createMember()
  const path = `ProjectMembership?profile=ClientApplication/${leaver.id}`
  const found = await botica.superAdmin.get<{ entry: { resource: Resource }[] }>(path)
  const membership = found.body.entry[0]?.resource
  const url = `ProjectMembership/${membership?.id}`
  await botica.superAdmin.put(url, { ...membership, admin: true })
  const { id } = await botica.admin.create(aPatient())
  const expunge = `Patient/${id}/$expunge?everything=true`
  await until(async () => {
    const answer = await leaver.client.post(expunge)
    abandoned = answer.headers.get('content-location') ?? ''
    return answer.status === 202
  }, DONE_MS)
  t.equal((await botica.superAdmin.del(url)).status, 200)
})

t.test('runs requests whose wake was lost and ends those of a crashed worker', async (t) => {
  const forgotten = await send(lost)
  const begun = await send(interrupted)
  await age(begun.id, `state = 'active'`)

  await botica.startWorker()

  const readStatus = async (url: string) => (await client.get(url)).body.status
  await until(async () => (await readStatus(forgotten.url)) === 'completed', DONE_MS)
  await until(async () => (await readStatus(begun.url)) === 'error', DONE_MS)
  t.equal(await countMatches(lost), 1)
  t.equal(await countMatches(interrupted), 0)
  t.equal(await countMatches(cancelled), 0)
  const left = async () =>
    database.query({
      text: `select 1 from job where kind = 'request' and input->>'projectId' = $1`,
      values: [botica.project.id],
    })
  await until(async () => (await left()).length === 0, DONE_MS)
})

t.test('ends the job of a member who was removed before it began', async (t) => {
  await until(async () => (await botica.admin.get(abandoned)).status === 200, DONE_MS)
  t.match(await botica.admin.get(abandoned), { body: { status: 'error' } })
})

/** Sends a transaction that waits for a locked row as soon as a worker takes it. */
async function blockedTransaction(mrn: string) {
  const made = await client.create(aPatient())
  const held = await holdRow(database, made.id)
  const entry = [
    {
      request: { method: 'POST', url: 'Patient' },
      resource: aPatient({ identifier: [{ system: MRN_SYSTEM, value: mrn }] }),
    },
    { request: { method: 'DELETE', url: `Patient/${made.id}` } },
  ]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  const answer = await client.post('', bundle, { Prefer: 'respond-async' })
  const url = answer.headers.get('content-location') ?? ''
  const id = /job\/([^/]+)\/status/.exec(url)?.[1] ?? ''
  return { url, id, held }
}

/** Starts a transaction in a worker that waits for a locked row. */
async function begunTransaction(mrn: string) {
  const sent = await blockedTransaction(mrn)
  await until(async () => (await waitingFor(database, sent.held.pid)).length > 0, DONE_MS)
  return sent
}

t.test('reports the outcome of a transaction cancelled while it runs', async (t) => {
  const mrn = randomUUID()
  const { url, held } = await begunTransaction(mrn)
  t.equal((await client.del(url)).status, 202)
  t.match(await client.get(url), { status: 202, body: { status: 'active' } })
  await held.release()
  await until(async () => (await client.get(url)).status === 200, DONE_MS)
  // Either the cancel or the row lock may reach the worker first.
  const { status } = (await client.get(url)).body
  t.equal(status, (await countMatches(mrn)) === 0 ? 'cancelled' : 'completed')
})

t.test('reports the job as completed when the cancel comes after the commit', async (t) => {
  const mrn = randomUUID()
  const { url, id, held } = await begunTransaction(mrn)
  // The worker cannot record its completion.
  const job = await holdRow(database, id)
  await held.release()
  await until(async () => (await countMatches(mrn)) === 1, DONE_MS)
  t.equal((await client.del(url)).status, 202)
  await job.release()
  await until(async () => (await client.get(url)).status === 200, DONE_MS)
  t.match((await client.get(url)).body, { status: 'completed' })
})

t.test('serves another project before further requests of a busy one', async (t) => {
  const running = [await begunTransaction(randomUUID()), await begunTransaction(randomUUID())]
  const next = await blockedTransaction(randomUUID())
  const { admin: other } = await botica.createTenant()
  const entry = [{ request: { method: 'GET', url: 'Patient' } }]
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  const answer = await other.post('', bundle, { Prefer: 'respond-async' })
  await running[0]?.held.release()
  const id = /job\/([^/]+)\/status/.exec(answer.headers.get('content-location') ?? '')?.[1] ?? ''
  // The second version of a job is its start.
  const started = () =>
    database.query<{ id: string }>({
      text: 'select id from version where id = any($1) and ver = 2 order by lu',
      values: [[next.id, id]],
    })
  await until(async () => (await started()).length === 2, DONE_MS)
  t.same(await started(), [{ id }, { id: next.id }])
  for (const { held } of [...running, next]) await held.release()
})
