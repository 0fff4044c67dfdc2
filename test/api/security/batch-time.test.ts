/** Time limit of a batch, during which it holds connections and event loop turns. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'
import { hold, holdRow, waitingFor } from '../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

/** Half of PostgreSQL's lock timeout: on a busy machine, a start and the release of a lock may take as long. */
const BATCH_MS = 1500
const WAIT_MS = 60_000

// A separate database, because a table is locked.
const DATABASE_URL = await createDatabase(t)
const botica = await openBotica(t, { env: { DATABASE_URL, BATCH_TIMEOUT_MS: String(BATCH_MS) } })
const { admin } = botica
const { database } = botica.services

interface Answered extends Resource {
  readonly entry: readonly {
    readonly response: { readonly status: string; readonly outcome?: Resource }
  }[]
}

const get = (url: string) => ({ request: { method: 'GET', url } })
const put = (resource: Resource) => ({
  request: { method: 'PUT', url: `${resource.resourceType}/${resource.id}` },
  resource,
})
const send = (type: string, entry: readonly object[], headers: Record<string, string> = {}) =>
  admin.post<Answered>('', { resourceType: 'Bundle', type, entry }, headers)
const listStatuses = ({ entry }: Answered) => entry.map(({ response }) => response.status)

/** Sends the request while the row is locked, and unlocks it after the time limit. */
async function sendHeld(patient: Resource, work: () => ReturnType<typeof send>) {
  const { pid, release } = await holdRow(database, patient.id)
  const sentAt = performance.now()
  const answer = work()
  try {
    await until(async () => (await waitingFor(database, pid)).length > 0, WAIT_MS)
    await until(async () => performance.now() - sentAt > BATCH_MS + 100, WAIT_MS)
  } finally {
    await release()
  }
  return await answer
}

t.test('returns 504 for entries not started in time, and keeps those before them', async (t) => {
  const patient = await admin.create(aPatient())
  const { status, body } = await sendHeld(patient, () =>
    send('batch', [
      get(`Patient/${patient.id}`),
      put({ ...patient, gender: 'other' }),
      get('Patient?_count=1'),
    ]),
  )
  t.equal(status, 200)
  t.same(listStatuses(body), ['504', '200', '504'])
  t.match(body.entry[0]?.response.outcome, { id: 'server-timeout', issue: [{ code: 'timeout' }] })
  t.match((await admin.get(`Patient/${patient.id}`)).body, { gender: 'other' })
})

t.test('cancels a search that is still running at the time limit', async (t) => {
  const { pid, release } = await hold(database, {
    text: 'lock table idx_string in access exclusive mode',
    values: [],
  })
  try {
    const answer = send('batch', [get(`Patient?name=${randomUUID()}`)])
    await until(async () => (await waitingFor(database, pid)).length > 0, WAIT_MS)
    const [waiter] = await waitingFor(database, pid)
    const { status, body } = await answer
    t.equal(status, 200)
    t.same(listStatuses(body), ['504'])
    // A statement that only reached its lock timeout would keep its connection open.
    await until(async () => !(await connections()).includes(waiter ?? 0), WAIT_MS)
  } finally {
    await release()
  }
})

t.test('rolls back a transaction over the time limit with 504', async (t) => {
  const patient = await admin.create(aPatient())
  const value = randomUUID()
  const made = {
    request: { method: 'POST', url: 'Patient' },
    resource: aPatient({ identifier: [{ system: MRN_SYSTEM, value }] }),
  }
  const answer = await sendHeld(patient, () =>
    send('transaction', [made, put({ ...patient, gender: 'other' })]),
  )
  t.match(answer, { status: 504, body: { id: 'server-timeout' } })
  const { body } = await admin.get(`Patient/${patient.id}`)
  t.equal(body.meta?.versionId, '1')
  t.match((await admin.get(`Patient?identifier=${MRN_SYSTEM}|${value}&_total=accurate`)).body, {
    total: 0,
  })
})

t.test('answers a bundle within the time limit normally', async (t) => {
  const patient = await admin.create(aPatient())
  const { body } = await send('batch', [get(`Patient/${patient.id}`), get('Patient?_count=1')])
  t.same(listStatuses(body), ['200', '200'])
})

async function connections(): Promise<number[]> {
  const rows = await database.query<{ pid: number }>({
    text: 'select pid from pg_stat_activity',
    values: [],
  })
  return rows.map(({ pid }) => pid)
}
