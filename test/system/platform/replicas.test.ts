/**
 * Replica reads return earlier writes and never fail because of the replica. Imports the database, to count the
 * statements of each server.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import type { Replica } from '../../../shared/postgres/replicas.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { exportAll, idsIn } from '../../fixtures/exports/exports.ts'
import { startPair } from './replica.ts'

const WRITERS = 16
const ROUNDS = 30
const PATIENCE_MS = 60_000
const READ_EVERY_MS = 20

const pair = await startPair(t)
const primary = openDatabase(
  { databaseUrl: pair.primaryUrl, databasePool: 1 },
  createLogger('silent', 'script'),
)
t.teardown(() => primary.close())
for (const text of [
  // Its WAL position is unreadable while `unreadable` has a row.
  'create schema shadow',
  'create table shadow.unreadable ()',
  `create function shadow.pg_current_wal_insert_lsn() returns pg_lsn language plpgsql as $$ begin
    if exists (select from shadow.unreadable) then raise exception using errcode = '57P01'; end if;
    return pg_catalog.pg_current_wal_insert_lsn(); end $$`,
  'alter role current_user set search_path = shadow, pg_catalog, public',
]) {
  await primary.query({ text, values: [] })
}
const env = { DATABASE_URL: pair.primaryUrl, DATABASE_READ_URL: pair.replicaUrl }
const botica = await openBotica(t, { worker: 'process', env })
const { admin, project, services } = botica
// Another process learns of writes of this one only through Redis.
const elsewhere = createClient(await botica.startWeb(), admin.token)

function openReplica(): Replica {
  const [replica] = services.replicas?.all ?? []
  if (replica === undefined) throw new Error('There is no replica')
  return replica
}

async function readsThere(work: () => Promise<unknown>): Promise<number> {
  const { database } = openReplica()
  const before = database.statements
  await work()
  return database.statements - before
}

/** Writes, then reads in both processes; returns failed or stale reads. */
async function wrongReads(writers: number, rounds: number): Promise<readonly string[]> {
  const wrong: string[] = []
  const write = async (writer: number) => {
    const first = await admin.create({ resourceType: 'Basic', code: { text: `${writer} 0` } })
    for (let round = 1; round <= rounds; round++) {
      const text = `${writer} ${round}`
      const put = await admin.put(`Basic/${first.id}`, { ...first, code: { text } })
      if (put.status !== 200) wrong.push(`PUT ${put.status} ${put.text}`)
      const answers = await Promise.all([
        admin.get(`Basic/${first.id}`),
        elsewhere.get(`Basic/${first.id}`),
        elsewhere.get(`Basic?_id=${first.id}`),
        elsewhere.get(`Basic/${first.id}/_history?_count=1`),
      ])
      for (const { status, text: found } of answers) {
        if (status !== 200 || !found.includes(`"${text}"`))
          wrong.push(`${text}: ${status} ${found}`)
      }
    }
  }
  await Promise.all(Array.from({ length: writers }, (_, writer) => write(writer)))
  return wrong
}

const isUsed = async () =>
  (await readsThere(() => Promise.all([1, 2, 3].map(() => admin.get('Basic?_count=1'))))) > 0

t.test('finds a write on a replica in every process', async (t) => {
  await until(isUsed, PATIENCE_MS)
  let wrong: readonly string[] = []
  const count = await readsThere(async () => {
    wrong = await wrongReads(WRITERS, ROUNDS)
  })
  t.same(wrong, [])
  t.comment(`asked the replica ${count} of ${WRITERS * ROUNDS} reads of this process`)
})

t.test('skips a lagging replica until it catches up', async (t) => {
  const { database } = openReplica()
  const ask = (text: string) => database.query({ text, values: [], isMaintenance: true })
  await until(isUsed, PATIENCE_MS)
  await ask('select pg_wal_replay_pause()')
  t.same(await wrongReads(2, 3), [])
  t.equal(await readsThere(() => admin.get('Basic?_count=1')), 0)
  await until(async () => (services.replicas?.lags().values().next().value ?? 0) > 0, PATIENCE_MS)
  t.match(
    (await botica.anonymous.get('/metrics')).text,
    /^database_replica_lag_seconds\{.*\} [0-9.]*[1-9]/m,
  )
  await ask('select pg_wal_replay_resume()')
  await until(isUsed, PATIENCE_MS)
})

t.test('does not confirm a write whose position is unknown', async (t) => {
  const basic = await admin.create({ resourceType: 'Basic', code: { text: 'known' } })
  await primary.query({ text: 'insert into shadow.unreadable default values', values: [] })
  const put = () => admin.put(`Basic/${basic.id}`, { ...basic, code: { text: 'unknown' } })
  t.match(await put(), { status: 503, body: { resourceType: 'OperationOutcome' } })
  t.equal((await admin.post('Basic', { ...basic, id: undefined })).status, 503)
  await primary.query({ text: 'delete from shadow.unreadable', values: [] })
  t.equal((await put()).status, 200)
  t.same(await wrongReads(2, 3), [])
})

t.test('reads access rights on the primary', async (t) => {
  const { client, id } = await botica.createMember()
  t.equal((await client.get('Basic?_count=1')).status, 200)
  const { database } = openReplica()
  await database.query({ text: 'select pg_wal_replay_pause()', values: [], isMaintenance: true })
  const { body } = await botica.superAdmin.get<{ entry: { resource: { id: string } }[] }>(
    `ProjectMembership?profile=ClientApplication/${id}`,
  )
  const membership = body.entry[0]?.resource.id
  await admin.del(`/admin/projects/${project.id}/members/${membership}`)
  await until(async () => (await client.get('Basic?_count=1')).status === 401, PATIENCE_MS)
  await database.query({ text: 'select pg_wal_replay_resume()', values: [], isMaintenance: true })
  t.pass()
})

t.test('exports from a replica that has all data, otherwise from the primary', async (t) => {
  const { database } = openReplica()
  const ask = (text: string) =>
    database.query<{ count: number }>({ text, values: [], isMaintenance: true })
  const code = { text: randomUUID() }
  const made: string[] = []
  const exported = async () => {
    made.push((await admin.create({ resourceType: 'Basic', code })).id)
    return idsIn(
      await exportAll(admin, `$export?_type=Basic&_typeFilter=Basic?code:text=${code.text}`),
      'Basic',
    )
  }
  const sessions = async () => {
    const [row] = await ask(
      `select count(*)::int from pg_stat_activity where application_name = 'botica export'`,
    )
    return row?.count ?? 0
  }
  await until(isUsed, PATIENCE_MS)
  t.same(await exported(), made)
  t.ok((await sessions()) > 0)
  await until(async () => (await sessions()) === 0, PATIENCE_MS)

  await ask('select pg_wal_replay_pause()')
  t.same(await exported(), made.toSorted())
  t.equal(await sessions(), 0)
  await ask('select pg_wal_replay_resume()')
})

t.test('fails no call while the replica is stopped, killed and started', async (t) => {
  const controller = new AbortController()
  const wrong: string[] = []
  const read = async () => {
    while (!controller.signal.aborted) {
      const { status, text } = await elsewhere.get('Basic?_count=2')
      if (status !== 200) wrong.push(`${status} ${text}`)
      // Readers without pauses would starve writers and the start.
      await delay(READ_EVERY_MS)
    }
  }
  const readers = Promise.all([1, 2, 3, 4].map(read))
  for (const end of ['stopReplica', 'killReplica'] as const) {
    await until(isUsed, PATIENCE_MS)
    let isWritten = false
    const writing = wrongReads(WRITERS, ROUNDS).finally(() => {
      isWritten = true
    })
    let ends = 0
    do {
      await pair[end]()
      wrong.push(...(await wrongReads(4, 3)))
      await pair.startReplica()
      await until(isUsed, PATIENCE_MS)
      ends += 1
    } while (!isWritten)
    t.same(await writing, [], `ended ${end} ${ends} times`)
  }
  await until(isUsed, PATIENCE_MS)
  controller.abort()
  await readers
  t.same(wrong, [])
})
