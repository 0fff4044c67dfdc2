/** Opens the Repository on a database. */
import { Cache } from '../core/cache.ts'
import type { Logger } from '../core/log.ts'
import { retryOnConflict } from '../core/retry.ts'
import { typeName } from '../fhir/definitions.ts'
import type { Database } from '../postgres/database.ts'
import type { Replicas } from '../postgres/replicas.ts'
import { Keys } from './index/keys.ts'
import { openStatistics } from './index/statistics.ts'
import { Repository } from './repository.ts'
import type { StoreContext, WritePart, WriteRule } from './rows/context.ts'
import { KnownCounts } from './rows/counts.ts'
import { type OwnParametersReader, openOwnParameters } from './rows/custom-parameters.ts'
import { createFetch } from './rows/fetch.ts'
import { createRecentVersions } from './rows/recent.ts'
import { createWatchers } from './rows/subscribers.ts'
import { createTenants } from './rows/tenants.ts'
import { inTransaction } from './transaction.ts'
import { createCoalescer } from './write/coalesce.ts'
import { createKeyedMutex } from './write/conditional.ts'
import { deleteStatement } from './write/deletions.ts'

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
  readonly answersSearches?: boolean
}

const DAMAGED = 'A stored version cannot be read, and was passed over'
const FAILED = 'A search parameter of a Project fails on a resource, which has no rows of it'

/** Reads the salt of the search keys, so the schema must exist. Errors: 503. */
export async function openRepository(
  database: Database,
  { rules, parts }: WriteFeatures,
  options: RepositoryOptions = {},
): Promise<Repository> {
  const [row] = await database.query<{ salt: Buffer; isDistributed: boolean }>({
    text: `select salt, to_regclass('pg_dist_partition') is not null as "isDistributed"
      from search_key_salt`,
    values: [],
  })
  if (row === undefined) throw new Error('The table search_key_salt is empty: restore its row')
  if (row.isDistributed) database.distribute()
  // Limited by size: a `max` would allocate for all entries up front.
  const seen = new Cache<bigint, true>({ name: 'seen-codes', max: SEEN_CODES })
  const holders = new Cache<string, true>({ name: 'patients-with-accounts', max: ACCOUNT_HOLDERS })
  const warned = new Cache<string, true>({ name: 'warned-parameters', max: WARNED })
  const store: StoreContext = {
    connection: database,
    submit: createCoalescer(database),
    fetch: createFetch(database),
    remove: (deletion) => database.query(deleteStatement([deletion])),
    recent: createRecentVersions(options.answersSearches),
    // A snapshot covers one server, not the rows of others.
    counts: row.isDistributed ? undefined : new KnownCounts(database),
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
    tenants: createTenants(),
    watchers: createWatchers(),
    statistics: openStatistics(database),
    seenCodes: { has: (key) => seen.has(key), add: (key) => void seen.set(key, true) },
    holders: { has: (id) => holders.has(id), add: (id) => void holders.set(id, true) },
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
