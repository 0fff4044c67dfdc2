/**
 * Migrations from every earlier schema, and docs/data-model.md against the catalogue. Imports the migrations, which
 * run before a service listens.
 */

import { randomUUID } from 'node:crypto'
import { globSync, readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { createLogger } from '../../../shared/core/log.ts'
import { PROJECT_TABLES } from '../../../shared/jobs/upkeep/removal.ts'
import { type Database, openDatabase } from '../../../shared/postgres/database.ts'
import { INDEX_REVISION } from '../../../shared/store/index/keys.ts'
import { migrate, oldestIndexRevision } from '../../../shared/store/migrate.ts'
import { openRepository } from '../../../shared/store/open-repository.ts'
import { until } from '../../fixtures/botica.ts'
import { databaseUrl, system } from '../../fixtures/store/store.ts'

const ROOT = new URL('../../../', import.meta.url)
const DOCUMENT = readFileSync(new URL('docs/data-model.md', ROOT), 'utf8')
const log = createLogger('silent', 'script')
const DEADLINE_MS = 60_000

interface Teardown {
  teardown(end: () => Promise<void>): void
}

const main = openDatabase({ databaseUrl: databaseUrl(), databasePool: 1 }, log)
t.teardown(() => main.close())

async function anEmptyDatabase(t: Teardown): Promise<Database> {
  const name = `schema_${randomUUID().replaceAll('-', '')}`
  await main.query({ text: `create database ${name}`, values: [] })
  const url = new URL(databaseUrl())
  url.pathname = `/${name}`
  const database = openDatabase({ databaseUrl: url.href, databasePool: 3 }, log)
  t.teardown(() => database.close())
  return database
}

async function applied(database: Database): Promise<string[]> {
  return await database.knex('knex_migrations').orderBy('id').pluck('name')
}

/** Records these migrations as applied instead of the baseline. */
async function pretend(database: Database, names: readonly string[]): Promise<void> {
  await database.knex('knex_migrations').delete()
  const rows = names.map((name) => ({ name, batch: 1, migration_time: new Date() }))
  await database.knex('knex_migrations').insert(rows)
}

/** The names that `migrate.ts` lists as replaced by the baseline. */
function replacedNames(): string[] {
  const source = readFileSync(new URL('shared/store/migrate.ts', ROOT), 'utf8')
  return Array.from(source.matchAll(/^ {2}'(\d{3}-[a-z-]+\.ts)',$/gm), ([, name = '']) => name)
}

const FILES = readdirSync(new URL('shared/store/schema', ROOT)).filter((name) =>
  name.endsWith('.ts'),
)

t.test('runs migrations repeatedly and concurrently', async (t) => {
  const database = await anEmptyDatabase(t)
  await t.resolves(Promise.all([migrate(database), migrate(database), migrate(database)]))
  t.same(await applied(database), FILES)
  await migrate(database)
  t.same(await applied(database), FILES)
  t.equal(await oldestIndexRevision(database), INDEX_REVISION, 'needs no reindex')
})

t.test('upgrades a database with all older migrations and keeps its data', async (t) => {
  const database = await anEmptyDatabase(t)
  await migrate(database)
  const repository = await openRepository(database, writeFeatures())
  const { id } = await repository.create(system, { resourceType: 'Project', name: 'Old' })
  const names = replacedNames()
  t.equal(names.length, 30)
  await pretend(database, names)

  await migrate(database)
  t.same(await applied(database), FILES)
  const again = await openRepository(database, writeFeatures())
  t.match(await again.read(system, 'Project', id), { id, content: /"name":"Old"/ })
})

/** The schema before the migration that builds an index. */
const WITHOUT_INDEX = `
  drop index resource_date;
  create index resource_d on resource (project, type, d_lo, id) where d_lo is not null;
  delete from knex_migrations where name = '080-date-ends.ts'`
const INTERRUPTED_BUILD = `
  create index resource_date on resource (project, type, d_lo, id);
  update pg_index set indisvalid = false where indexrelid = 'resource_date'::regclass`
const WRITE = `insert into resource (project, type, id, ver, lu, d_lo, nref, keys)
  values (1, 112, gen_random_uuid(), 1, now(), now(), 0, '{}')`

for (const [title, before] of [
  ['lets others write while it builds an index', WITHOUT_INDEX],
  ['builds an index again after an interruption', `${WITHOUT_INDEX};${INTERRUPTED_BUILD}`],
] as const) {
  t.test(title, async (t) => {
    const database = await anEmptyDatabase(t)
    await migrate(database)
    await database.knex.raw(before)
    const writer = await database.knex.transaction()
    await writer.raw(WRITE)
    const migrating = Promise.all([migrate(database), migrate(database)])
    await until(() => isBuilding(database), DEADLINE_MS)

    await database.knex.transaction(async (other) => {
      await other.raw(`set local lock_timeout = ${DEADLINE_MS}`)
      await t.resolves(other.raw(WRITE), 'does not wait for the migration')
    })
    await writer.commit()
    await migrating
    t.same((await applied(database)).sort(), FILES)
    const { rows } = await database.knex.raw(`select indexrelid::regclass::text as name, indisvalid
      from pg_index where indexrelid::regclass::text like 'resource\\_d%'`)
    t.same(rows, [{ name: 'resource_date', indisvalid: true }])
  })
}

/** True once the build waits for the transaction of a writer. */
async function isBuilding(database: Database): Promise<boolean> {
  const [row] = await database.query({
    text: `select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()
      and query ~* '(create|drop) index.*resource_d' and wait_event_type = 'Lock'`,
    values: [],
  })
  return row !== undefined
}

t.test('rejects a partly migrated database with instructions', async (t) => {
  const database = await anEmptyDatabase(t)
  await migrate(database)
  const names = replacedNames().slice(0, 28)
  await pretend(database, names)

  await t.rejects(migrate(database), {
    message:
      /has 28 of the 30 migrations .*missing is 062-export-shared-parts\.ts\. Run the release step/,
  })
  t.same(await applied(database), names)
})

t.test('tolerates newer migrations after a rollback', async (t) => {
  const database = await anEmptyDatabase(t)
  await migrate(database)
  await database.knex('knex_migrations').insert({
    name: '999-of-a-newer-version.ts',
    batch: 2,
    migration_time: new Date(),
  })
  await database.knex.raw('alter table tenant add column newer int')

  await migrate(database)
  t.same(await applied(database), [...FILES, '999-of-a-newer-version.ts'])
  const repository = await openRepository(database, writeFeatures())
  await t.resolves(repository.create(system, { resourceType: 'Project', name: 'Rolled back' }))
})

t.test('creates the system project first and one salt', async (t) => {
  const database = await anEmptyDatabase(t)
  await migrate(database)
  const [row] = await database.query({
    text: `select t.project, t.fhir_id::text, (select count(*)::int from search_key_salt) as salts,
        (select max(octet_length(salt)) from search_key_salt) as bytes,
        nextval(pg_get_serial_sequence('tenant', 'project'))::int as next
      from tenant t`,
    values: [],
  })
  t.same(row, {
    project: 1,
    fhir_id: '00000000-0000-0000-0000-000000000001',
    salts: 1,
    bytes: 32,
    next: 2,
  })
})

t.test('lists exactly the tables and indexes in docs/data-model.md', async (t) => {
  // Other tests create tables in the shared database.
  const database = await anEmptyDatabase(t)
  await migrate(database)
  const rows = await database.query<{ table: string; index: string | null }>({
    text: `select c.relname as table, i.relname as index
      from pg_class c left join pg_index x on x.indrelid = c.oid
      left join pg_class i on i.oid = x.indexrelid
      where c.relkind = 'r' and c.relnamespace = current_schema()::regnamespace
        and c.relname not like 'knex%'`,
    values: [],
  })
  t.same(sections(DOCUMENT), sorted(Map.groupBy(rows, ({ table }) => table)))
})

/** Table → its indexes: `### name` heads a table, and `- \`name\`` each of its indexes. */
function sections(text: string): Record<string, string[]> {
  const parts = text.split(/^#+ /m).filter((part) => part.startsWith('`'))
  const entries = parts.map((part): [string, string[]] => {
    const [, table = ''] = /^`(\w+)`/.exec(part) ?? []
    return [table, Array.from(part.matchAll(/^- `(\w+)`/gm), ([, index = '']) => index).sort()]
  })
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)))
}

function sorted(tables: Map<string, { index: string | null }[]>): Record<string, string[]> {
  const entries = Array.from(tables, ([table, rows]): [string, string[]] => [
    table,
    rows.flatMap(({ index }) => index ?? []).sort(),
  ])
  return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)))
}

// Obstacles to distribution by Project (docs/scale.md): these lists may only shrink.

t.test('begins every key with the Project, with listed exceptions', async (t) => {
  const keys = await main.query<{ key: string }>({
    text: `select k.conrelid::regclass || ': ' || pg_get_constraintdef(k.oid) as key
      from pg_constraint k join pg_attribute p on p.attrelid = k.conrelid and p.attname = 'project'
      where k.contype in ('p', 'u') and k.conkey[1] <> p.attnum order by 1`,
    values: [],
  })
  t.same(
    keys.map(({ key }) => key),
    [
      'bot_run: PRIMARY KEY (bot, started, id)',
      'concept_owner: PRIMARY KEY (n)',
      'delivery: PRIMARY KEY (id)',
      'export_job: PRIMARY KEY (id)',
      'import_job: PRIMARY KEY (id)',
      'job: PRIMARY KEY (id)',
      'mail: PRIMARY KEY (id)',
      'occurrence: UNIQUE (run)',
      'pending_run: PRIMARY KEY (id)',
      'tenant: UNIQUE (fhir_id)',
    ],
  )
})

t.test('uses server-local locks and transactions in listed files only', (t) => {
  const OF_ONE_SERVER = /pg_(try_)?advisory|pg_(current_)?snapshot|backend_xid/
  const files = globSync('{server,shared,worker}/**/*.ts', { cwd: ROOT })
  t.same(
    files.filter((file) => OF_ONE_SERVER.test(readFileSync(new URL(file, ROOT), 'utf8'))).sort(),
    [
      'shared/export/rows/jobs.ts',
      'shared/identity/signing-keys.ts',
      'shared/import/jobs.ts',
      'shared/jobs/upkeep/upkeep.ts',
      'shared/postgres/postgres-dialect.ts',
      'shared/postgres/transaction.ts',
      'shared/store/migrate.ts',
      'shared/store/reindex/custom-parameters-index.ts',
      'shared/store/rows/counts.ts',
      'shared/store/write/requests.ts',
      'shared/subscriptions/new-deliveries.ts',
    ],
  )
  t.end()
})

t.test('describes the removal of rows for each table of a Project', async (t) => {
  const database = await anEmptyDatabase(t)
  await migrate(database)
  const rows = await database.query<{ name: string; columns: string[] }>({
    text: `select table_name as name, array_agg(column_name::text) as columns
      from information_schema.columns where table_schema = 'public' group by 1
      having bool_or(column_name = 'project')`,
    values: [],
  })
  const columns = new Map(rows.map(({ name, columns }) => [name, columns]))
  t.same(PROJECT_TABLES.map(({ name }) => name).sort(), [...columns.keys()].sort())
  for (const { name, id = 'project', isTyped } of PROJECT_TABLES) {
    t.ok(columns.get(name)?.includes(id), `${name}.${id}`)
    if (isTyped) t.ok(columns.get(name)?.includes('type'), `${name}.type`)
  }
})
