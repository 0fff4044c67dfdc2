/**
 * The service works behind a PgBouncer that supports prepared statements, and rejects others at start. Imports the
 * database, to open it through the pooler.
 */
import t, { type Test } from 'tap'
import { prepare } from '../../../scripts/migrate.ts'
import { openServices } from '../../../shared/api/open-services.ts'
import { type Config, readConfig } from '../../../shared/core/config/config.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { openDatabase } from '../../../shared/postgres/database.ts'
import { upload } from '../../fixtures/binaries.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import { ended, exportAll } from '../../fixtures/exports/exports.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { poolerVersion, startPooler } from './pooler.ts'

const log = createLogger('silent', 'script')
const version = poolerVersion()
const keepsStatements = version !== undefined && version >= 1.21
const skip = version === undefined ? 'there is no PgBouncer here' : false
const MODES = ['session', ...(keepsStatements ? (['transaction'] as const) : [])] as const

const kept = (count: number): Record<string, number> =>
  keepsStatements ? { max_prepared_statements: count } : {}

function readPoolerConfig(env: Readonly<Record<string, string>>): Config {
  return readConfig({ ...process.env, ...env })
}

async function startService(env: Readonly<Record<string, string>>): Promise<string> {
  try {
    await (await openServices(readPoolerConfig(env), log)).close()
    return 'started'
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}

for (const mode of MODES) {
  t.test(`works behind a pooler in ${mode} mode`, { skip }, async (t) => {
    const direct = await createDatabase(t)
    // Existing sessions of the pooler would not have the settings of the role.
    await prepare(readPoolerConfig({ DATABASE_URL: direct, DATABASE_DIRECT_URL: direct }))
    const pooled = await startPooler(t, direct, mode, kept(200))
    const env = { DATABASE_URL: pooled, DATABASE_DIRECT_URL: direct }
    const botica = await openBotica(t, { worker: 'process', env })
    await t.test('data', (t) => assertData(t, botica))
    await t.test('applies limits and cancellation', (t) => assertLimits(t, botica, direct))
  })
}

type Botica = Awaited<ReturnType<typeof openBotica>>

async function assertData(t: Test, { admin, project, superAdmin, ...rest }: Botica): Promise<void> {
  const condition = 'identifier=http://a.example|1'
  const patient = {
    resourceType: 'Patient',
    identifier: [{ system: 'http://a.example', value: '1' }],
  }
  const entry = [
    { resource: patient, request: { method: 'POST', url: 'Patient', ifNoneExist: condition } },
    { request: { method: 'GET', url: 'Patient?_count=1' } },
  ]
  // One state for all entries, behind locks shared by all writers of that condition.
  const bundles = await Promise.all(
    Array.from({ length: 12 }, () =>
      admin.post('', { resourceType: 'Bundle', type: 'transaction', entry }),
    ),
  )
  t.same(new Set(bundles.map(({ status }) => status)), new Set([200]))
  const found = () => admin.get<{ total: number }>(`Patient?${condition}&_total=accurate`)
  const counts = await Promise.all(Array.from({ length: 60 }, found))
  t.same(new Set(counts.map(({ body }) => body.total)), new Set([1]))
  const invited = await superAdmin.post(`/admin/projects/${project.id}/invite`, {
    resourceType: 'Practitioner',
    firstName: 'A',
    lastName: 'B',
    email: `${project.id}@example.com`,
    sendEmail: false,
  })
  t.equal(invited.status, 200, invited.text)
  const bot = await aBot(
    { ...rest, admin, project },
    handler("return (await medplum.searchResources('Patient')).length"),
  )
  t.equal((await execute(admin, bot)).text, '1')
  const ndjson = Array.from({ length: 700 }, (_, n) =>
    JSON.stringify({
      resourceType: 'Basic',
      id: `00000000-0000-4000-8000-${n + 1e11}`,
      code: { text: 'é' },
    }),
  )
  const { id } = await upload(admin, ndjson.join('\n'), 'application/fhir+ndjson')
  const part = [
    { name: 'type', valueCode: 'Basic' },
    { name: 'url', valueUrl: `Binary/${id}` },
  ]
  const parameter = [{ name: 'input', part }]
  const begun = await admin.post('$import', { resourceType: 'Parameters', parameter })
  const { body } = await ended(admin, begun.headers.get('content-location') ?? '')
  t.match(body, { output: [{ count: 700 }], error: { length: 0 } })
  const { resources } = await exportAll(admin, '$export?_type=Basic')
  t.equal(resources.get('Basic')?.length, 700)
}

async function assertLimits(t: Test, { services }: Botica, direct: string): Promise<void> {
  const { database } = services
  const settings = await database.query({
    text: `select current_setting('jit') as jit, current_setting('statement_timeout') as statement,
      current_setting('lock_timeout') as lock`,
    values: [],
  })
  t.same(settings, [{ jit: 'off', statement: '20s', lock: '3s' }])
  const other = openDatabase({ databaseUrl: direct, databasePool: 1 }, log)
  t.teardown(() => other.close())
  const asleep = async () => {
    const text = `select 1 from pg_stat_activity where datname = current_database() and wait_event = 'PgSleep'`
    return (await other.query({ text, values: [] })).length
  }
  const controller = new AbortController()
  const sleeping = database
    .until?.(controller.signal)
    .query({ text: 'select pg_sleep(600)', values: [] })
    .catch((error: unknown) => error)
  await until(async () => (await asleep()) === 1, 60_000)
  controller.abort(new Error('enough'))
  t.match(await sleeping, { message: 'enough' })
  t.equal(await asleep(), 0)
}

t.test('reports an unexpected pooler at start', { skip }, async (t) => {
  const direct = await createDatabase(t)
  const strict = await startPooler(t, direct, 'session')
  const name = /it is a pooler; set DATABASE_DIRECT_URL to the address of PostgreSQL itself/
  t.match(await startService({ DATABASE_URL: strict }), name)
  const ignored = { ignore_startup_parameters: 'options,statement_timeout,lock_timeout' }
  const lenient = await startPooler(t, direct, 'session', ignored)
  t.match(await startService({ DATABASE_URL: lenient }), /^DATABASE_URL is the address of a pooler/)
  const pooled = { DATABASE_URL: strict, DATABASE_DIRECT_URL: direct }
  t.match(await startService(pooled), /have no time limits; run `node scripts\/migrate.ts`/)
})

t.test('rejects a pooler without prepared statements', { skip }, async (t) => {
  const direct = await createDatabase(t)
  const pooled = await startPooler(t, direct, 'transaction', kept(0))
  const env = { DATABASE_URL: pooled, DATABASE_DIRECT_URL: direct }
  t.match(
    await startService(env),
    /^The pooler of DATABASE_URL forgets prepared statements: .* 1\.21 /,
  )
})

t.test('rejects a pool larger than the limit of PostgreSQL', async (t) => {
  const direct = await createDatabase(t)
  const database = openDatabase({ databaseUrl: direct, databasePool: 1 }, log)
  t.teardown(() => database.close())
  const own = new URL(direct)
  own.username = `few_${own.pathname.slice(5, 15)}`
  const made = `create role ${own.username} login password '${own.password}' connection limit 8`
  await database.query({ text: made, values: [] })
  const refused = await startService({ DATABASE_URL: own.href, DATABASE_POOL: '9' })
  t.match(refused, /^DATABASE_POOL is 9, and PostgreSQL lets this account have 8 connections/)
})
