/** Queue depths, and maintenance that autovacuum runs too late: statistics, the visibility map, the GIN pending list. */
import type { Database } from '../../postgres/database.ts'
import type { Connection } from '../../postgres/statement.ts'

const TABLES = ['resource', 'version', 'idx_string', 'idx_range', 'code', 'unique_key'] as const
const UPKEEP_LOCK = 726_010
/** Application name of connections that write only statistics and indexes. */
export const UPKEEP = 'botica-upkeep'
/** Autovacuum runs once a minute: by then a bulk load is over and was planned without statistics. */
const GROWN = { rows: 1000, share: 0.5 }
/** A new Project in a large table: its keys would be estimated as rare. */
export const STALE = { rows: 10_000, share: 0 }
/** Tables that searches read by index-only scans. */
const SCANNED = ['resource', 'idx_string', 'idx_range', 'code', 'unique_key'] as const
/**
 * Pages that are not all-visible, both at least. Fewer are cheap to look up; a share, since a VACUUM reads whole indexes
 * and has every process read the statistics again.
 */
const UNSEEN = { pages: 32, share: 0.1 }
/** 256 MB, about 800,000 resources. In larger tables a load is a small share, and autovacuum suffices. */
const MOST_PAGES = 32_768

/** Returns PostgreSQL's estimate of rows inserted into and updated in `resource`. */
export async function writtenResources(database: Database): Promise<number> {
  const [row] = await database.query<{ written: string }>({
    name: 'upkeep-written',
    text: `select pg_stat_get_tuples_inserted('resource'::regclass)
      + pg_stat_get_tuples_updated('resource'::regclass) as written`,
  })
  return Number(row?.written ?? 0)
}

export async function appliedMigrations(connection: Connection): Promise<readonly string[]> {
  const rows = await connection.query<{ name: string }>({
    text: 'select name from knex_migrations order by id',
  })
  return rows.map(({ name }) => name)
}

/** Flushes the GIN pending list so that searches and writes do not pay for it. */
export async function cleanPendingKeys(database: Database): Promise<void> {
  await runExclusively(database, `select gin_clean_pending_list('resource_keys')`)
}

/** Analyzes tables in which at least this many rows, and this share, changed since the last ANALYZE. */
export async function analyzeGrown(
  database: Database,
  { rows: least, share }: typeof GROWN = GROWN,
): Promise<readonly string[]> {
  const rows = await database.query<{ name: string }>({
    name: 'upkeep-grown',
    text: `select relname as name from pg_stat_user_tables
      where schemaname = current_schema() and relname = any($1::text[])
        and n_mod_since_analyze > $2 and n_mod_since_analyze > n_live_tup * $3::float8`,
    values: [TABLES, least, share],
  })
  for (const { name } of rows) await runExclusively(database, `analyze ${name}`)
  return rows.map(({ name }) => name)
}

/**
 * Vacuums tables whose pages are not all-visible, since index-only scans otherwise look every row up. Also removes dead
 * keys: autovacuum counts from the last VACUUM and would never return for them. Returns the table names.
 */
export async function vacuumGrown(database: Database): Promise<readonly string[]> {
  const rows = await database.query<{ name: string }>({
    name: 'upkeep-unseen',
    text: `with t as (select relname, relallvisible,
          pg_relation_size(oid) / current_setting('block_size')::int as pages
        from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'
          and relname = any($1::text[]))
      select relname as name from t where pages - relallvisible >= greatest($2, pages * $3::float8)
        and pages <= $4`,
    values: [SCANNED, UNSEEN.pages, UNSEEN.share, MOST_PAGES],
  })
  const names = rows.map(({ name }) => name)
  // Skips a table in use by another worker, autovacuum or a migration.
  for (const name of names) {
    await database.query({ text: `vacuum (skip_locked, truncate off) ${name}` })
  }
  return names
}

/** Runs on one worker at a time. */
async function runExclusively(database: Database, text: string): Promise<void> {
  await database.transaction(async (connection) => {
    const [row] = await connection.query<{ mine: boolean }>({
      text: `select pg_try_advisory_xact_lock($1) as mine, set_config('application_name', $2, true)`,
      values: [UPKEEP_LOCK, UPKEEP],
    })
    if (row?.mine) await connection.query({ text })
  })
}

interface QueueDepth {
  readonly queue: string
  readonly project: string
  readonly waiting: number
  readonly active: number
  readonly failed: number
  /** Wait of the oldest item in ms; null if there is none or it is unknown. */
  readonly oldestMs: number | null
}

export async function queueDepths(connection: Connection): Promise<readonly QueueDepth[]> {
  return await connection.query<QueueDepth>({
    name: 'queue-depths',
    text: `with work(queue, project, state, since) as (
        select 'change', project, 'waiting', null::timestamptz from outbox
        union all select 'change', project, state, added from delivery
        union all select 'schedules', project,
          case when home is null then 'waiting' else 'active' end, scheduled
          from occurrence where due <= clock_timestamp()
        union all select 'export', project,
          case state when 'accepted' then 'waiting' when 'error' then 'failed' else state end,
          requested from export_job where state in ('accepted', 'active', 'error')
        union all select 'import', project, state, added from import_job where state = 'active'
        union all select case kind when 'request' then 'requests' else 'upkeep' end, project, state,
          touched from job),
      named as (
        select queue, t.fhir_id::text as project, state, since from work join tenant t using (project)
        union all select 'mail', project, state, added from mail where state <> 'kept')
      select queue, project, count(*) filter (where state = 'waiting')::int as waiting,
        count(*) filter (where state = 'active')::int as active,
        count(*) filter (where state = 'failed')::int as failed,
        (extract(epoch from clock_timestamp() - min(since) filter (where state = 'waiting'))
          * 1000)::float8 as "oldestMs"
      from named group by queue, project order by queue, project`,
  })
}
