/**
 * PostgreSQL cancels searches that time out or whose client has disconnected. Imports the database, to watch
 * statements from another one.
 */
import t from 'tap'
import { createLogger } from '../../../../shared/core/log.ts'
import { typeNumber } from '../../../../shared/fhir/definitions.ts'
import { openDatabase } from '../../../../shared/postgres/database.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const url = await createDatabase(t)
const name = new URL(url).pathname.slice(1)
const log = createLogger('silent', 'script')
const main = openDatabase({ databaseUrl: process.env.DATABASE_URL ?? '', databasePool: 1 }, log)
t.teardown(() => main.close())
const { admin, services, baseUrl } = await openBotica(t, { env: { DATABASE_URL: url } })
const first = await admin.create({ resourceType: 'Basic', code: { text: 'x' } })
const second = await admin.create({ resourceType: 'Basic', code: { text: 'x' } })
// From here on every read of these contents sleeps; sessions, which are read again after seconds, do not.
await services.database.query({ text: 'alter table version rename to stored', values: [] })
await services.database.query({
  text: `create view version as select stored.* from stored,
    pg_sleep(case when stored.type = ${typeNumber('Basic')} then 600 else 0 end)`,
  values: [],
})

/** Statements that run in the file's own database, seen from another one: searches, unless `text` is given. */
async function running(text = '%from resource r%'): Promise<number> {
  const rows = await main.query({
    text: `select 1 from pg_stat_activity where datname = $1 and wait_event = 'PgSleep'
      and query like $2`,
    values: [name, text],
  })
  return rows.length
}

t.test('cancels a search in PostgreSQL when its client disconnects', async (t) => {
  // More than the pool size, so the cancel needs its own connection.
  const callers = services.config.databasePool + 2
  const controller = new AbortController()
  const calls = Array.from({ length: callers }, () =>
    fetch(`${baseUrl}fhir/R4/Basic?_count=5`, {
      headers: { Authorization: `Bearer ${admin.token}` },
      signal: controller.signal,
    }),
  )
  const ended = Promise.allSettled(calls)
  await until(async () => (await running()) >= 4, 60_000)
  controller.abort()
  // Less than the statement timeout of 20 s.
  await until(async () => (await running()) === 0, 15_000)
  const results = await ended
  t.ok(results.every(({ status }) => status === 'rejected'))
  t.equal((await admin.get('Basic?_count=0&_total=accurate')).status, 200, 'the pool is whole')
})

t.test('cancels statements of a GraphQL request when its client disconnects', async (t) => {
  const controller = new AbortController()
  const query = '{ a: BasicList { id } b: BasicConnection(_count: 3) { edges { mode } } }'
  const call = fetch(`${baseUrl}fhir/R4/$graphql`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${admin.token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ query }),
    signal: controller.signal,
  })
  const ended = Promise.allSettled([call])
  await until(async () => (await running()) === 2, 60_000)
  controller.abort()
  await until(async () => (await running()) === 0, 15_000)
  t.match(await ended, [{ status: 'rejected' }])
})

t.test('cancels reads by id of a GraphQL request when its client disconnects', async (t) => {
  const controller = new AbortController()
  const query = `{ a: Basic(id: "${first.id}") { id } b: Basic(id: "${second.id}") { id } }`
  const call = fetch(`${baseUrl}fhir/R4/$graphql`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${admin.token}`, 'Content-Type': 'application/json' },
    body: JSON.stringify({ query }),
    signal: controller.signal,
  })
  const ended = Promise.allSettled([call])
  const readMany = '%as x(project, type, id, prefix%'
  await until(async () => (await running(readMany)) === 1, 60_000)
  controller.abort()
  // Less than the statement timeout of 20 s.
  await until(async () => (await running(readMany)) === 0, 15_000)
  t.match(await ended, [{ status: 'rejected' }])
})

t.test('cancels a search past its timeout and returns 504', async (t) => {
  const { status, body } = await admin.get<Raw>('Basic?_count=5')
  t.equal(status, 504)
  t.match(body.issue, [{ code: 'timeout', details: { text: 'Server timeout' } }])
  t.equal(await running(), 0)
})
