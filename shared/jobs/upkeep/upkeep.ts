/**
 * Counts work that waits in PostgreSQL, and does what PostgreSQL's autovacuum does too late: statistics of new
 * rows, pages that index scans may trust, the backlog of the GIN index.
 */
import type { Database } from '../../postgres/database.ts'
import type { Connection } from '../../postgres/statement.ts'

const TABLES = ['resource', 'version', 'idx_string', 'idx_range', 'code', 'unique_key'] as const
const UPKEEP_LOCK = 726_010
/** The name of a connection while it writes statistics and indexes only, and no resource. */
export const UPKEEP = 'botica-upkeep'
/** Autovacuum looks once a minute; a bulk load is over by then, and was planned without statistics. */
const GROWN = { rows: 1000, share: 0.5 }
/** A Project that has come to a large table, whose keys would be taken for rare. */
export const STALE = { rows: 10_000, share: 0 }
/** Searches scan them by an index alone. */
const SCANNED = ['resource', 'idx_string', 'idx_range', 'code', 'unique_key'] as const
/** Fewer pages that VACUUM has not seen are soon looked up. */
const UNSEEN_PAGES = 32
/** 256 MB, some 800,000 resources. Of larger tables a load is a small part, and autovacuum comes for it. */
const MOST_PAGES = 32_768

/** Rows ever inserted into `resource` and changed there, as far as PostgreSQL has counted them. */
export async function writtenResources(database: Database): Promise<number> {
  const [row] = await database.query<{ written: string }>({
    name: 'upkeep-written',
    text: `select pg_stat_get_tuples_inserted('resource'::regclass)
      + pg_stat_get_tuples_updated('resource'::regclass) as written`,
    values: [],
  })
  return Number(row?.written ?? 0)
}

/** Names of the migrations that have run, in their order. */
export async function appliedMigrations(connection: Connection): Promise<readonly string[]> {
  const rows = await connection.query<{ name: string }>({
    text: 'select name from knex_migrations order by id',
    values: [],
  })
  return rows.map(({ name }) => name)
}

/** Moves new keys into the tree of the GIN index, so that neither searches nor writes pay for it. */
export async function cleanPendingKeys(database: Database): Promise<void> {
  await runExclusively(database, `select gin_clean_pending_list('resource_keys')`)
}

/** Analyzes the tables in which so many rows, and more than that share, have changed since PostgreSQL last looked. */
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
  // The names come back from the fixed list above.
  for (const { name } of rows) await runExclusively(database, `analyze ${name}`)
  return rows.map(({ name }) => name)
}

/**
 * An index tells whether a row is there for all to see only if VACUUM has been at its page: until then a search that
 * finds 500 keys looks 500 rows up. This takes PostgreSQL 10 ms for 50,000 new rows. Rows that some reader may not see
 * yet are left for the next time. Dead keys go, too: autovacuum counts from the last VACUUM, and would never come
 * for what that has left. Answers the names of the tables that had pages to be seen.
 */
export async function vacuumGrown(database: Database): Promise<readonly string[]> {
  const rows = await database.query<{ name: string }>({
    name: 'upkeep-unseen',
    text: `with t as (select relname, relallvisible,
          pg_relation_size(oid) / current_setting('block_size')::int as pages
        from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'
          and relname = any($1::text[]))
      select relname as name from t where pages - relallvisible >= $2 and pages <= $3`,
    values: [SCANNED, UNSEEN_PAGES, MOST_PAGES],
  })
  const names = rows.map(({ name }) => name)
  // A table that another worker, autovacuum or a migration is at is left alone.
  for (const name of names) {
    await database.query({ text: `vacuum (skip_locked, truncate off) ${name}`, values: [] })
  }
  return names
}

/** One of several workers is enough. */
async function runExclusively(database: Database, text: string): Promise<void> {
  await database.transaction(async (connection) => {
    const [row] = await connection.query<{ mine: boolean }>({
      text: `select pg_try_advisory_xact_lock($1) as mine, set_config('application_name', $2, true)`,
      values: [UPKEEP_LOCK, UPKEEP],
    })
    if (row?.mine) await connection.query({ text, values: [] })
  })
}

interface QueueDepth {
  readonly queue: string
  /** Id of the Project. */
  readonly project: string
  readonly waiting: number
  readonly active: number
  readonly failed: number
  /** Milliseconds the longest waiting one has waited; null: none waits, or nobody knows. */
  readonly oldestMs: number | null
}

/** One statement. */
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
    values: [],
  })
}
