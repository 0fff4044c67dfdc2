/**
 * Brief statements share connections; a slow one delays no others. Imports the database, to observe its connections.
 */
import { getEventListeners } from 'node:events'
import t, { type Test } from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { type Database, openDatabase } from '../../../shared/postgres/database.ts'
import type { Statement } from '../../../shared/postgres/statement.ts'
import { until } from '../../fixtures/botica.ts'
import { databaseUrl } from '../../fixtures/store/store.ts'

const LOCK = 7_310_421
const LANES = 2

/** Longer than any wait on a slow machine. */
const NEVER_MS = 60_000
const DEADLINE_MS = 60_000

function open(t: Test, { databasePool = 10, stuckMs = NEVER_MS } = {}): Database {
  const settings = { databaseUrl: databaseUrl(), databasePool }
  const log = createLogger('silent', 'script')
  const database = openDatabase(settings, log, undefined, stuckMs)
  t.teardown(() => database.close())
  return database
}

const brief = (text: string): Statement => ({ text, values: [], isPipelined: true })
const NUMBER = brief('select pg_backend_pid() as pid')
const STUCK = brief(`select pg_advisory_lock_shared(${LOCK}) /* stuck */`)

async function holdLock(database: Database): Promise<() => Promise<void>> {
  const lane = database.lane()
  await lane.query({ text: `select pg_advisory_lock(${LOCK})`, values: [] })
  return async () => {
    await lane.query({ text: `select pg_advisory_unlock(${LOCK})`, values: [] })
  }
}

async function stuckOnes(database: Database): Promise<number> {
  const rows = await database.query({
    text: `select 1 from pg_stat_activity
      where wait_event = 'advisory' and query like '%${LOCK}) /* stuck */'`,
    values: [],
  })
  return rows.length
}

async function pids(database: Database, count: number): Promise<readonly number[]> {
  const found = await Promise.all(
    Array.from({ length: count }, () => database.query<{ pid: number }>(NUMBER)),
  )
  return [...new Set(found.flat().map(({ pid }) => pid))]
}

t.test('sends brief statements of one turn over two connections', async (t) => {
  const database = open(t)
  const before = database.roundTrips
  const found = await pids(database, 12)
  t.equal(found.length, LANES)
  t.equal(database.roundTrips - before, LANES, 'one round trip each')
  t.strictSame(await pids(database, 2), found, 'they keep them')
  const small = open(t, { databasePool: 5 })
  await pids(small, 3)
  t.equal(small.roundTrips, 3, 'a small pool has no spare connection')
})

t.test('returns an error only to its own statement', async (t) => {
  const database = open(t)
  const results = await Promise.allSettled(
    [brief('select 1 as n'), brief('select 1 / 0'), brief('select 2 as n'), NUMBER].map(
      (statement) => database.query(statement),
    ),
  )
  t.strictSame(
    results.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled', 'fulfilled'],
  )
})

t.test('releases a completed slow statement while its request continues', async (t) => {
  const database = open(t, { stuckMs: 50 })
  const release = await holdLock(database)
  const { signal } = new AbortController()
  const stuck = database.until?.(signal).query(STUCK)
  const listeners = () => getEventListeners(signal, 'abort').length
  await until(async () => (await stuckOnes(database)) === 1 && listeners() > 0, DEADLINE_MS)
  await release()
  await stuck
  await until(async () => listeners() === 0, DEADLINE_MS)
})

t.test('leaves a waiting statement alone on its connection', async (t) => {
  const database = open(t, { stuckMs: 50 })
  const release = await holdLock(database)
  const stuck = Array.from({ length: LANES }, () => database.query(STUCK))
  const found = await pids(database, 6)
  t.ok(found.length > 0, 'later ones use other connections')
  await until(async () => (await stuckOnes(database)) === LANES, DEADLINE_MS)
  t.ok((await pids(database, 6)).length > 0, 'opens new lanes')
  await release()
  t.equal((await Promise.all(stuck)).length, LANES)
})

t.test(
  'cancels a waiting statement when its caller aborts, without affecting later ones',
  async (t) => {
    const database = open(t, { stuckMs: 50 })
    const release = await holdLock(database)
    const controller = new AbortController()
    const asked = database.until?.(controller.signal)
    const stuck = Array.from({ length: LANES }, () => asked?.query(STUCK))
    const behind = pids(database, 6)
    const ended = Promise.allSettled(stuck)
    await until(async () => (await stuckOnes(database)) === LANES, DEADLINE_MS)
    const reason = new Error('gone')
    controller.abort(reason)
    for (const result of await ended) t.match(result, { status: 'rejected', reason })
    t.ok((await behind).length > 0)
    await until(async () => (await stuckOnes(database)) === 0, DEADLINE_MS)
    t.ok((await pids(database, 6)).length > 0)
    await release()
  },
)

t.test('replaces a lane whose connection is lost', async (t) => {
  const database = open(t)
  const lost = await pids(database, 4)
  await database.query({ text: 'select pg_terminate_backend(unnest($1::int[]))', values: [lost] })
  await until(async () => {
    const found = await pids(database, 4).catch(() => lost)
    return found.every((pid) => !lost.includes(pid))
  }, DEADLINE_MS)
  t.equal((await pids(database, 4)).length, LANES)
})
