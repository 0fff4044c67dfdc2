/** Startup checks of connection limits and poolers. Poolers drop session settings, so the role carries them. */
import type { Database } from './database.ts'
import {
  discard,
  LOCK_TIMEOUT_MS,
  type RawConnection,
  rawPool,
  STATEMENT_TIMEOUT_MS,
} from './pool.ts'
import type { Connection } from './statement.ts'

const SETTINGS = {
  jit: 'off',
  statement_timeout: String(STATEMENT_TIMEOUT_MS),
  lock_timeout: String(LOCK_TIMEOUT_MS),
}
const HELD = 3
const PROBE_MS = 3000

/** Stores the settings on the role, which also covers connections opened by a pooler. */
export async function keepSessionSettings(connection: Connection): Promise<void> {
  for (const [name, value] of Object.entries(SETTINGS)) {
    await connection.query({
      text: `do $$ begin
        execute format('alter role current_user in database %I set ${name} = %L', current_database(), '${value}');
      end $$`,
    })
  }
}

/** Returns a sentence that explains why the connections are unusable. `isPooled`: a pooler is expected. */
export async function checkPooler(
  { knex }: Database,
  isPooled: boolean,
): Promise<string | undefined> {
  const pool = rawPool(knex)
  const taken: RawConnection[] = []
  const take = async () => {
    const connection = await pool.acquireConnection()
    taken.push(connection)
    return connection
  }
  try {
    const first = await take()
    if (!isPooled) return (await isBehindPooler(first)) ? UNNAMED : undefined
    const isKept = await Promise.race([keepsStatements(first, take), pause(PROBE_MS, true)])
    if (!isKept) return FORGETS
    const { rows } = await first.query("select current_setting('statement_timeout') as limit")
    return rows[0]?.limit === '0' ? UNSET : undefined
  } finally {
    for (const connection of taken) {
      // Discards any state the probe left in the session.
      discard(connection)
      connection.connection.stream.destroy()
      await pool.releaseConnection(connection)
    }
  }
}

const UNNAMED =
  'DATABASE_URL is the address of a pooler; set DATABASE_DIRECT_URL to the address of PostgreSQL itself, ' +
  'which the release step needs'
const FORGETS =
  'The pooler of DATABASE_URL forgets prepared statements: PgBouncer keeps them in transaction mode from version 1.21 ' +
  'on, with max_prepared_statements above 0; an older one has to be in session mode'
const UNSET =
  'Sessions behind the pooler of DATABASE_URL have no time limits; run `node scripts/migrate.ts`, which sets them at ' +
  'the role of DATABASE_DIRECT_URL, and have the pooler reopen its connections (RECONNECT)'

/** A pooler assigns its own connection ids. */
async function isBehindPooler(connection: RawConnection): Promise<boolean> {
  const { rows } = await connection.query('select pg_backend_pid() as pid')
  return rows[0]?.pid !== connection.processID
}

/** True when a prepared statement survives use of its session by others. */
async function keepsStatements(
  first: RawConnection,
  take: () => Promise<RawConnection>,
): Promise<boolean> {
  const probe = { name: 'probe', text: 'select 1' }
  await first.query(probe)
  for (let held = 0; held < HELD; held++) {
    const other = await take()
    await other.query('begin')
    await other.query('select 1')
  }
  try {
    await first.query(probe)
    return true
  } catch {
    return false
  }
}

interface Room {
  readonly most: number
  readonly used: number
}

export async function connectionRoom(connection: Connection): Promise<Room> {
  const [room] = await connection.query<Room>({
    text: `select least(
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
        case when not rolsuper then nullif(rolconnlimit, -1) end,
        case when not rolsuper then nullif(datconnlimit, -1) end) as most,
      (select count(*)::int from pg_stat_activity where datid is not null) as used
      from pg_roles, pg_database where rolname = current_user and datname = current_database()`,
  })
  return room ?? { most: Number.POSITIVE_INFINITY, used: 0 }
}

function pause<T>(ms: number, value: T): Promise<T> {
  return new Promise((resolve) => {
    setTimeout(resolve, ms, value).unref()
  })
}
