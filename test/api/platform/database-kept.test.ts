/**
 * Prepared statements of a connection: the most used recent ones, up to a size limit. Imports the database, to
 * observe its connections.
 */
import t, { type Test } from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { rawPool } from '../../../shared/postgres/pool.ts'
import type { Connection, Statement } from '../../../shared/postgres/statement.ts'
import { countRoundTrips, countStatements, databaseUrl } from '../../fixtures/store/store.ts'

const MOST_LETTERS = 120_000
const LETTERS = 20_000
const FIT = MOST_LETTERS / LETTERS
const OFTEN = 8

function open(t: Test, databasePool = 1) {
  const database = openDatabase(
    { databaseUrl: databaseUrl(), databasePool },
    createLogger('silent', 'script'),
  )
  t.teardown(() => database.close())
  return database
}

function shape(name: string, value = 1, letters = LETTERS): Statement {
  const text = `select $1::int as n /* ${name} */`
  return { text: text.padEnd(letters), values: [value], isPreparable: true }
}

async function ask(connection: Connection, name: string, times = OFTEN): Promise<void> {
  for (let i = 1; i <= times; i++) {
    t.same(await connection.query(shape(name, i)), [{ n: i }], name)
  }
}

async function keptOn(connection: Connection): Promise<string[]> {
  const rows = await connection.query<{ shape: string; letters: number }>({
    text: `select substring(statement from '/\\* (.*) \\*/') as shape, length(statement) as letters
      from pg_prepared_statements where name like 'kept-%' order by 1`,
    values: [],
  })
  const letters = rows.reduce((sum, row) => sum + row.letters, 0)
  t.ok(letters <= MOST_LETTERS, `${letters} letters`)
  return rows.map((row) => row.shape)
}

const names = (prefix: string, count = FIT) => Array.from({ length: count }, (_, n) => prefix + n)

t.test('prepares frequent statements and keeps nothing of rare ones', async (t) => {
  const database = open(t)
  await ask(database, 'seldom', OFTEN - 1)
  t.same(await keptOn(database), [])
  await ask(database, 'seldom', 1)
  t.same(await keptOn(database), ['seldom'])
  await database.query({ ...shape('planned each time'), isPreparable: false })
  const tooLong = shape('too long', 1, MOST_LETTERS + 1)
  for (let i = 0; i < OFTEN * 2; i++) await database.query(tooLong)
  t.same(await keptOn(database), ['seldom'])
})

t.test('replaces the least recently used statement', async (t) => {
  const database = open(t)
  for (const name of names('rare')) await ask(database, name)
  t.same(await keptOn(database), names('rare'))
  await ask(database, 'rare0', 1)
  t.equal(await countStatements(database, () => ask(database, 'common')), OFTEN)
  t.same(await keptOn(database), ['common', ...names('rare').filter((name) => name !== 'rare1')])
  t.equal(
    await countRoundTrips(database, () => ask(database, 'common2')),
    OFTEN,
    'needs no extra round trip',
  )
  await ask(database, 'rare1')
  t.same((await keptOn(database)).slice(0, 3), ['common', 'common2', 'rare0'])
})

t.test('keeps statements used in between', async (t) => {
  const database = open(t)
  for (const name of names('used')) await ask(database, name)
  for (let i = 0; i < OFTEN * 2; i++) {
    for (const name of [...names('used'), 'other']) await ask(database, name, 1)
  }
  t.same(await keptOn(database), names('used'))
  const long = shape('long', 1, LETTERS * 2)
  for (let i = 0; i < OFTEN * 2; i++) {
    await ask(database, 'used1', 1)
    await database.query(long)
  }
  t.same(await keptOn(database), ['long', ...names('used').filter((one) => !/[02]/.test(one))])
})

t.test('closes evicted statements of each connection before it prepares another', async (t) => {
  const database = open(t, 2)
  const lane = database.lane()
  for (const name of names('a')) {
    await ask(database, name)
    await ask(lane, name)
  }
  for (const name of names('b')) await ask(database, name)
  t.same(await keptOn(database), names('b'))
  t.same(await keptOn(lane), names('a'), 'while it prepares nothing')
  await ask(lane, 'b3', 1)
  t.same(await keptOn(lane), ['b3'])
  await ask(lane, 'a0', 1)
  t.same(await keptOn(lane), ['b3'], 'does not reuse a name')
})

t.test('answers statements in flight that were evicted meanwhile', async (t) => {
  const database = open(t)
  await database.transaction(async (connection) => {
    const all = [...names('x'), ...names('y'), ...names('x'), ...names('z')]
    const sent = all.flatMap((name) => Array.from({ length: OFTEN }, (_, n) => [name, n] as const))
    const answers = sent.map(([name, n]) => connection.query(shape(name, n)))
    t.same(
      await Promise.all(answers),
      sent.map(([, n]) => [{ n }]),
    )
    t.same(await keptOn(connection), names('z'))
  })
  const pool = rawPool(database.knex)
  const raw = await pool.acquireConnection()
  t.equal(Object.keys(raw.connection.parsedStatements).length, FIT, 'removes them from pg, too')
  await pool.releaseConnection(raw)
})

t.test('evicts statements after a failed transaction as well', async (t) => {
  const database = open(t)
  for (const name of names('before')) await ask(database, name)
  const failing = database.transaction(async (connection) => {
    const asked = [
      connection.query({ text: 'select 1 / $1::int', values: [0] }),
      ...names('in').flatMap((name) =>
        Array.from({ length: OFTEN }, () => connection.query(shape(name))),
      ),
    ]
    t.ok((await Promise.allSettled(asked)).every(({ status }) => status === 'rejected'))
    throw new Error('It has failed')
  })
  await t.rejects(failing, { message: 'It has failed' })
  t.same(await keptOn(database), [])
  for (const name of [...names('in'), ...names('before')]) await ask(database, name)
  t.same(await keptOn(database), names('before'))
})

t.test('answers alternating shapes on all connections at once', async (t) => {
  const database = open(t, 4)
  const places = [database, database, database, database.lane()]
  const wrong = new Set<number>()
  const caller = async (connection: Connection, n: number) => {
    for (let i = 0; i < 400; i++) {
      const name = `turn${Math.floor(i / 40) + ((i * 7 + n) % 4)}`
      const [row] = await connection.query<{ n: number }>(shape(name, i))
      if (row?.n !== i) wrong.add(i)
    }
  }
  const callers = Array.from({ length: 12 }, (_, n) => places[n % places.length] ?? database)
  await Promise.all(callers.map(caller))
  t.same([...wrong], [])
  for (const connection of places) await keptOn(connection)
})

t.test('describes the columns of a prepared statement once', async (t) => {
  const database = open(t)
  await database.query({
    text: 'create table if not exists kept_columns (a int, b text)',
    values: [],
  })
  t.teardown(() => database.query({ text: 'drop table kept_columns', values: [] }))
  const pool = rawPool(database.knex)
  const raw = await pool.acquireConnection()
  let descriptions = 0
  raw.connection.on('rowDescription', () => {
    descriptions += 1
  })
  await pool.releaseConnection(raw)
  const described = async (work: () => Promise<unknown>) => {
    const before = descriptions
    await work()
    return descriptions - before
  }
  const named = (n: number): Statement => ({
    name: 'two-columns',
    text: 'select $1::int as n, null as nothing from generate_series(1, $1::int)',
    values: [n],
  })
  await ask(database, 'often')
  t.equal(await described(() => ask(database, 'often')), 0)
  t.equal(await described(() => database.query(named(1))), 1)
  const later = await described(async () => {
    for (const n of [0, 2]) {
      t.same(await database.query(named(n)), Array(n).fill({ n, nothing: null }))
    }
    await t.rejects(database.query({ ...named(0), values: ['x'] }), { code: '22P02' })
    t.same(await database.query(named(1)), [{ n: 1, nothing: null }], 'after an error, too')
  })
  t.equal(later, 0)

  const all: Statement = { name: 'all', text: 'select * from kept_columns', values: [] }
  const add = 'insert into kept_columns (a, b) values (1, $1)'
  await database.query({ text: add, values: ['x'] })
  t.same(await database.query(all), [{ a: 1, b: 'x' }])
  await database.query({ text: 'alter table kept_columns drop column a', values: [] })
  // PostgreSQL rejects a changed result type.
  await t.rejects(database.query(all), /0A000/)
})
