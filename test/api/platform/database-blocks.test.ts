/**
 * Statements whose blocks are sent directly from memory. Imports the database, to observe its connections.
 */
import t from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import type { Statement } from '../../../shared/postgres/statement.ts'
import { databaseUrl } from '../../fixtures/store/store.ts'

const database = openDatabase(
  { databaseUrl: databaseUrl(), databasePool: 1 },
  createLogger('silent', 'script'),
)
t.teardown(() => database.close())

const echo = (number: unknown, text: unknown, block: Buffer | null): Statement => ({
  name: 'blocks-echo',
  hasBlocks: true,
  text: 'select $1::int as number, $2::text as text, $3::bytea as block, 10 / $1::int as tenth',
  values: [number, text, block],
})

t.test('sends blocks as binary, other values as text, and null as null', async (t) => {
  const block = Buffer.from([0, 1, 0xff, 0x5c])
  t.same(await database.query(echo(2, 'Müller 😀', block)), [
    { number: 2, text: 'Müller 😀', block, tenth: 5 },
  ])
  t.same(await database.query(echo(10, null, null)), [
    { number: 10, text: null, block: null, tenth: 1 },
  ])
  t.same(await database.query(echo(1, '', Buffer.alloc(0))), [
    { number: 1, text: '', block: Buffer.alloc(0), tenth: 10 },
  ])
})

t.test('sends a large block completely, alongside others of its transaction', async (t) => {
  const block = Buffer.alloc(5 * 1024 * 1024, 'block ')
  const [before, [row], after] = await database.transaction((connection) =>
    Promise.all([
      connection.query({ text: 'select 1 as n', values: [] }),
      connection.query<{ block: Buffer }>(echo(1, 'large', block)),
      connection.query({ text: 'select 2 as n', values: [] }),
    ]),
  )
  t.same([before, after], [[{ n: 1 }], [{ n: 2 }]])
  t.ok(row?.block.equals(block))
})

t.test('keeps the connection usable after an error of PostgreSQL', async (t) => {
  await t.rejects(database.query(echo(0, 'zero', null)), { code: '22012' })
  await t.rejects(database.query(echo('no number', '', null)), { code: '22P02' })
  t.match(await database.query(echo(5, 'after', null)), [{ tenth: 2 }])
})

t.test('plans an unnamed statement each time', async (t) => {
  const values = [Buffer.from('block')]
  const text = 'select length($1::bytea) as length'
  t.same(await database.query({ hasBlocks: true, text, values }), [{ length: 5 }])
})

t.test('keeps the plan of a named statement', async (t) => {
  const rows = await database.query({
    text: `select name from pg_prepared_statements where name = '' or name like 'blocks-%'`,
    values: [],
  })
  t.same(rows, [{ name: 'blocks-echo' }])
})
