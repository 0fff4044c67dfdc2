/** Opens the Repository on a database. */
import { Cache } from '../core/cache.ts'
import type { Logger } from '../core/log.ts'
import { retryOnConflict } from '../core/retry.ts'
import { typeName } from '../fhir/definitions.ts'
import { chooseDialect } from '../postgres/chosen-dialect.ts'
import { CITUS } from '../postgres/citus-dialect.ts'
import type { Database } from '../postgres/database.ts'
import { POSTGRES } from '../postgres/postgres-dialect.ts'
import type { Replicas } from '../postgres/replicas.ts'
import { Keys } from './index/keys.ts'
import { openStatistics } from './index/statistics.ts'
import { Repository } from './repository.ts'
import type { StoreContext, WritePart, WriteRule } from './rows/context.ts'
import { KnownCounts } from './rows/counts.ts'
import { type OwnParametersReader, openOwnParameters } from './rows/custom-parameters.ts'
import { createFetch } from './rows/newest.ts'
import { createRecentVersions } from './rows/recent-versions.ts'
import { createCoalescer } from './rows/statements.ts'
import { createWatchers } from './rows/subscribers.ts'
import { inTransaction } from './transaction.ts'
import { createKeyedMutex } from './write/conditional.ts'
import { deleteStatement } from './write/deletions.ts'

const RECENT_SIZE = 32_000_000
const SEEN_CODES = 50_000
const WARNED = 10_000
const ACCOUNT_HOLDERS = 10_000

/** Write rules by type and statement parts in their order, registered by features. */
export interface WriteFeatures {
  readonly rules: readonly WriteRule[]
  readonly parts: readonly WritePart[]
}

export interface RepositoryOptions {
  readonly ownParameters?: OwnParametersReader
  readonly log?: Logger
  readonly announce?: StoreContext['announce']
  readonly replicas?: Replicas | undefined
  /** Characters of recent versions to cache. */
  readonly recentSize?: number
}

const DAMAGED = 'A stored version cannot be read, and was passed over'
const FAILED = 'A search parameter of a Project fails on a resource, which has no rows of it'

/** Reads the salt of the search keys, so the schema must exist. Errors: 503. */
export async function openRepository(
  database: Database,
  { rules, parts }: WriteFeatures,
  options: RepositoryOptions = {},
): Promise<Repository> {
  const [row] = await database.query<{ salt: Buffer; isCitus: boolean }>({
    text: `select salt, to_regclass('pg_dist_partition') is not null as "isCitus"
      from search_key_salt`,
  })
  if (row === undefined) throw new Error('The table search_key_salt is empty: restore its row')
  chooseDialect(row.isCitus ? CITUS : POSTGRES)
  const warned = new Cache<string, true>({ name: 'warned-parameters', max: WARNED })
  const store: StoreContext = {
    connection: database,
    submit: createCoalescer(database),
    fetch: createFetch(database),
    remove: (deletion) => database.query(deleteStatement([deletion])),
    recent: createRecentVersions(options.recentSize ?? RECENT_SIZE),
    // A snapshot covers one server, not the rows of others.
    counts: row.isCitus ? undefined : new KnownCounts(database),
    keys: new Keys(row.salt),
    ownParameters: options.ownParameters ?? openOwnParameters(database),
    warn({ stamp, base, code }) {
      const name = `${stamp} ${base}`
      if (!warned.has(name)) options.log?.warn({ parameter: `${base}.${code}` }, FAILED)
      warned.set(name, true)
    },
    logDamaged({ project, type, id, ver }) {
      options.log?.error({ project, type: typeName(type), id, ver }, DAMAGED)
    },
    projectNumber: createProjectNumbers(),
    watchers: createWatchers(),
    statistics: openStatistics(database),
    seenCodes: new Cache({ name: 'seen-codes', max: SEEN_CODES }),
    holders: new Cache({ name: 'patients-with-accounts', max: ACCOUNT_HOLDERS }),
    announce: options.announce ?? (() => {}),
    written: async (part, row) => part.committed?.(row),
    rules: new Map(rules.map((rule) => [rule.type, rule])),
    parts,
    turns: createKeyedMutex(),
    transact: (work, locks) =>
      retryOnConflict(() =>
        inTransaction(database, store, (inner) => work(inner.store), { locks }),
      ),
    deferred: undefined,
  }
  return new Repository(store, { database, replicas: options.replicas })
}

/** Numbers are never reused, so cached ones stay valid; unknown ids are read again. */
function createProjectNumbers(): StoreContext['projectNumber'] {
  const numbers = new Map<string, number>()
  return async (connection, rowId) => {
    const known = numbers.get(rowId)
    if (known !== undefined) return known
    const [row] = await connection.query<{ project: number }>({
      name: 'tenant',
      text: 'select project from tenant where fhir_id = $1',
      values: [rowId],
    })
    if (row) numbers.set(rowId, row.project)
    return row?.project
  }
}
