/**
 * Row leases: holder, expiry, and writes after a lost lease. Imports the leases, to let them expire between two
 * steps.
 */
import t from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import {
  deleteLeased,
  type Lease,
  type LeaseTable,
  leaseNext,
  releaseLeased,
  renewLeases,
  updateLeased,
} from '../../../shared/postgres/leases.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const databaseUrl = await createDatabase(t)
const database = openDatabase({ databaseUrl, databasePool: 2 }, createLogger('silent', 'script'))
t.teardown(() => database.close())

const TASKS: LeaseTable = {
  name: 'task',
  key: { kind: 'text', n: 'int' },
  token: 'takes',
  expiresAt: 'held',
  leaseMs: 60_000,
}

interface Task {
  readonly kind: string
  readonly n: number
  readonly note: string | null
}

t.beforeEach(async () => {
  await database.query({
    text: `create table if not exists task (kind text, n int, takes int not null default 0,
      held timestamptz, note text, primary key (kind, n))`,
    values: [],
  })
  await database.query({ text: 'delete from task', values: [] })
  await database.query({ text: `insert into task (kind, n) values ('a', 1), ('a', 2)`, values: [] })
})

async function next(): Promise<Lease | undefined> {
  const row = await leaseNext<Task>(database, TASKS, {
    name: 'task-lease',
    where: 'true',
    orderBy: 'x.n',
    set: 'note = null',
    returning: 'x.kind, x.n',
  })
  return row && { key: [row.kind, row.n], token: row.token }
}

async function takeLease(n: number): Promise<Lease> {
  const lease = await next()
  if (lease?.key[1] !== n) throw new Error(`Leased ${lease?.key} instead of ${n}`)
  return lease
}

async function expire(n: number): Promise<void> {
  const text = `update task set held = clock_timestamp() - interval '1 s' where n = $1`
  await database.query({ text, values: [n] })
}

async function notes(): Promise<readonly (string | null)[]> {
  const rows = await database.query<Task>({ text: 'select note from task order by n', values: [] })
  return rows.map(({ note }) => note)
}

const write = (lease: Lease, note: string) =>
  updateLeased(database, TASKS, lease, { name: 'task-note', set: 'note = $4', values: [note] })

t.test('gives each row to one of several concurrent callers', async (t) => {
  const leases = await Promise.all([next(), next(), next()])
  t.same(leases.map((lease) => lease?.key[1]).sort(), [1, 2, undefined])
})

t.test('leases an expired row again under the next token', async (t) => {
  const first = await takeLease(1)
  await expire(1)
  const second = await takeLease(1)
  t.equal(second.token, first.token + 1)
  t.equal(await write(first, 'late'), false)
  t.equal(await write(second, 'new'), true)
  t.same(await notes(), ['new', null])
  t.equal(await deleteLeased(database, TASKS, first), false)
  t.equal(await deleteLeased(database, TASKS, second), true)
  t.equal((await notes()).length, 1)
})

t.test('keeps an expired lease with its holder until another takes the row', async (t) => {
  const lease = await takeLease(1)
  await expire(1)
  t.equal(await write(lease, 'slow'), true)
  t.same(await renewLeases(database, TASKS, [lease]), [])
  t.equal((await takeLease(2)).key[1], 2, 'the renewed row is held')
})

t.test('returns the lost leases on renewal', async (t) => {
  const [first, second] = [await takeLease(1), await takeLease(2)]
  await expire(1)
  const again = await takeLease(1)
  t.same(await renewLeases(database, TASKS, [first, second, again]), [first])
  t.same(await renewLeases(database, TASKS, []), [])
})

t.test('does not extend a released row by a late renewal', async (t) => {
  const lease = await takeLease(1)
  const change = { name: 'task-release', set: 'held = null, note = $4', values: ['back'] }
  t.equal(await releaseLeased(database, TASKS, lease, change), true)
  t.same(await renewLeases(database, TASKS, [lease]), [lease])
  t.same(await notes(), ['back', null])
  t.equal((await takeLease(1)).key[1], 1)
})
