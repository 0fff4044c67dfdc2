/**
 * The SQL dialects: both return the same rows, and the statement check accepts the forms for Citus only. Imports
 * both, between which a service chooses at start.
 */
import t from 'tap'
import { createLogger } from '../../../shared/core/log.ts'
import { CITUS } from '../../../shared/postgres/citus-dialect.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { type Dialect, POSTGRES } from '../../../shared/postgres/postgres-dialect.ts'
import type { Statement } from '../../../shared/postgres/statement.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { findCitusRejection } from '../store/distributing.ts'

const databaseUrl = await createDatabase(t)
const database = openDatabase({ databaseUrl, databasePool: 1 }, createLogger('silent', 'script'))
t.teardown(() => database.close())
await database.query({
  text: `create temporary table code as
    select p as project, n as id from generate_series(1, 3) p, generate_series(1, 4) n`,
  values: [],
})

type Case = readonly [name: string, statement: (dialect: Dialect) => Statement, rows: number]

const CASES: readonly Case[] = [
  [
    'value',
    (dialect) => ({
      text: `select c.id from code c where c.project = 1 and c.id = ${dialect.value('$1::int')}`,
      values: [2],
    }),
    1,
  ],
  [
    'unnest',
    (dialect) => ({
      text: `select c.id, x.word from ${dialect.unnest('$1::int[]', '$2::text[]')} as x(id, word)
        join code c on c.project = 1 and c.id = x.id`,
      values: [
        [1, 2],
        ['a', 'b'],
      ],
    }),
    2,
  ],
  [
    'projectEquals',
    (dialect) => ({
      text: `select c.id from code c where ${dialect.projectEquals('c', '$1::int')}`,
      values: [1],
    }),
    4,
  ],
  [
    'projectEquals with tests',
    (dialect) => ({
      text: `select c.id from code c
        where ${dialect.projectEquals('c', '$1::int', 'c.id > $2::int')}`,
      values: [1, 2],
    }),
    2,
  ],
  [
    'projectOfList',
    (dialect) => ({
      text: `select c.* from unnest($1::int[], $2::int[]) with ordinality as x(project, id, n)
        cross join lateral (select c.project, c.id from code c
          where ${dialect.projectOfList('c.project', 2)} and c.id = x.id limit 1) c`,
      values: [
        [1, 3, 3],
        [1, 2, 4],
      ],
      perProject: [1, 3, 3],
    }),
    3,
  ],
  [
    'walkFrom',
    (dialect) => ({
      text: `select r.id from (select c.id from code c
        where ${dialect.walkFrom(['c.project', 'c.id'], '>', ['$1::int', '$2::int'])}
          and (c.project, c.id) <= ($3::int, $4::int) limit 9) r`,
      values: [2, 1, 2, 3],
    }),
    2,
  ],
  [
    'mayHaveWritten',
    (dialect) => ({
      text: `select 1 as here from pg_stat_activity where pid = pg_backend_pid()
        and coalesce(${dialect.mayHaveWritten}, false) is not null`,
      values: [],
    }),
    1,
  ],
]

/** Returns the rows, and the reason why Citus would reject a statement sent for them. */
async function run(dialect: Dialect, statement: Statement) {
  const rejections: (string | undefined)[] = []
  const rows = await dialect.run<object>(statement, <Row extends object>(sent: Statement) => {
    rejections.push(findCitusRejection(sent.text))
    return database.query<Row>({ text: sent.text, values: sent.values })
  })
  return { rows: rows.map((row) => JSON.stringify(row)).sort(), rejections }
}

for (const [name, statement, count] of CASES) {
  t.test(`returns the same rows in both dialects: ${name}`, async (t) => {
    const plain = await run(POSTGRES, statement(POSTGRES))
    const distributed = await run(CITUS, statement(CITUS))
    t.equal(plain.rows.length, count)
    t.same(distributed.rows, plain.rows)
    t.same(new Set(distributed.rejections), new Set([undefined]))
  })
}

t.test('the statement check rejects the forms that Citus needs in another way', (t) => {
  const rejected = CASES.filter(
    ([, statement]) => findCitusRejection(statement(POSTGRES).text) !== undefined,
  )
  t.same(
    rejected.map(([name]) => name),
    ['value', 'unnest', 'projectOfList', 'walkFrom', 'mayHaveWritten'],
  )
  t.end()
})

t.test('sends one statement per Project of the list, and none for an empty list', async (t) => {
  const sent: Statement[] = []
  const send = async (statement: Statement) => {
    sent.push(statement)
    return []
  }
  const statement = { text: 'select $2', values: ['a'] }
  await CITUS.run({ ...statement, perProject: [7, 8, 7] }, send)
  t.same(
    sent.map(({ values }) => values),
    [
      ['a', 7],
      ['a', 8],
    ],
  )
  sent.length = 0
  await CITUS.run({ ...statement, perProject: [] }, send)
  t.same(sent, [])
  await POSTGRES.run({ ...statement, perProject: [7, 8] }, send)
  t.equal(sent.length, 1)
})

t.test('only Citus reads in steps', async (t) => {
  const one = { text: 'select 1 as n', values: [] }
  const statement: Statement = {
    ...one,
    inSteps: async ({ query }) => [...(await query(one)), ...(await query(one))],
  }
  t.same((await run(CITUS, statement)).rows, ['{"n":1}', '{"n":1}'])
  t.same((await run(POSTGRES, statement)).rows, ['{"n":1}'])
})
