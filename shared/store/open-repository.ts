/** The repository as it runs: each of its calls → the file that does it. */
import { LRUCache } from 'lru-cache'
import { plainGrant } from '../access/compile.ts'
import { criteriaSql, needsSql, readDecided } from '../access/decisions/decide.ts'
import { compileGrant, createTypeScope } from '../access/decisions/grant-predicates.ts'
import { toIndexedRow } from '../access/decisions/match-row.ts'
import { INTERACTIONS } from '../access/grant.ts'
import type { Principal } from '../access/principal.ts'
import { notFound } from '../errors.ts'
import { typeName } from '../fhir/definitions.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Logger } from '../log.ts'
import { addMail } from '../platform/mail/mails.ts'
import type { Database } from '../platform/postgres/database.ts'
import type { Replica, Replicas } from '../platform/postgres/replicas.ts'
import { lockStatement } from '../platform/postgres/transaction.ts'
import type { SearchRequest } from '../query/search-request.ts'
import { createWatchers } from './events/subscribers.ts'
import { type OwnParametersReader, openOwnParameters } from './index/custom-parameters.ts'
import { indexRows } from './index/index-rows.ts'
import { Keys } from './index/keys.ts'
import { readBinaries, withVisibleBinaries } from './read/binaries.ts'
import { history, historyOf } from './read/history.ts'
import { metaSummary } from './read/meta-summary.ts'
import { read, readMany, readVersion } from './read/read.ts'
import { type Repository, type Transaction, withLinked } from './repository.ts'
import { routed } from './routed.ts'
import {
  rowKey,
  type Store,
  type Transact,
  until,
  type WritePart,
  type WriteRule,
} from './rows/context.ts'
import { KnownCounts } from './rows/counts.ts'
import { createFetch, fetchTogether } from './rows/fetch.ts'
import { createRecentVersions } from './rows/recent.ts'
import { createTenants } from './rows/tenants.ts'
import { readCompartment } from './search/compartment.ts'
import { searchDeleted } from './search/deleted.ts'
import { explain, search, searchMany, searchTypes } from './search/page.ts'
import { countPerReference, searchPerReference } from './search/per-reference.ts'
import { openStatistics } from './search/plan/statistics.ts'
import {
  type Inner,
  inTransaction,
  lockedKeys,
  runTogether,
  runTransaction,
} from './transaction.ts'
import { createCoalescer, retrying } from './write/coalesce.ts'
import {
  createConditional,
  createTurns,
  deleteConditional,
  updateConditional,
} from './write/conditional.ts'
import { create } from './write/create.ts'
import { deleteStatement, removeTogether } from './write/deletions.ts'
import { createPlanned, planCreate } from './write/planned-rows.ts'
import { remove } from './write/remove.ts'
import { patch, update } from './write/write.ts'

const SEEN_CODES = 50_000
const WARNED = 10_000
const ACCOUNT_HOLDERS = 10_000

/** Features register rules for writes by type, and parts of the writing statements in their order. */
export interface WriteFeatures {
  readonly rules: readonly WriteRule[]
  readonly parts: readonly WritePart[]
}

export interface RepositoryOptions {
  readonly ownParameters?: OwnParametersReader
  readonly log?: Logger
  /** Runs when the outbox has got something. */
  readonly announce?: Store['announce']
  /** Where reads may go instead. */
  readonly replicas?: Replicas | undefined
  /** Most searches come to this process, so it keeps more of what they find. */
  readonly answersSearches?: boolean
}

const DAMAGED = 'A stored version cannot be read, and was passed over'
const FAILED = 'A search parameter of a Project fails on a resource, which has no rows of it'

/** Reads the salt of the search keys, so the schema must be there. Errors: 503. */
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
  // By size, not by number: a cache of a number has room for all from the start, 0.1 ms for each thousand.
  const seen = new LRUCache<bigint, true>({ maxSize: SEEN_CODES, sizeCalculation: () => 1 })
  const holders = new LRUCache<string, true>({ max: ACCOUNT_HOLDERS })
  const warned = new LRUCache<string, true>({ max: WARNED })
  const store: Store = {
    connection: database,
    submit: createCoalescer(database),
    fetch: createFetch(database),
    remove: (deletion) => database.query(deleteStatement([deletion])),
    recent: createRecentVersions(options.answersSearches),
    // The snapshot of one server says nothing of the rows of others.
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
    turns: createTurns(),
    deferred: undefined,
  }
  const transactions: Transactions = {
    run: (work, locks) =>
      retrying(() => inTransaction(database, store, (inner) => work(inner.store), { locks })),
    runAll: (work, guard) =>
      runTransaction(database, store, (inner) => work(transactionOf(inner)), guard),
  }
  const primary = repositoryOf(store, transactions)
  const { replicas } = options
  return replicas === undefined
    ? primary
    : routed(primary, replicas, readersOf(store, transactions, replicas))
}

function readersOf(store: Store, transactions: Transactions, { all }: Replicas) {
  const readers = new Map(
    all.map((replica) => {
      const { database } = replica
      const there = { ...store, connection: database, fetch: createFetch(database) }
      return [replica, repositoryOf(there, transactions)]
    }),
  )
  return (replica: Replica) => readers.get(replica) ?? repositoryOf(store, transactions)
}

/** A transaction that begins inside another one is a part of it: it has its locks, and no state of its own. */
function transactionOf(inner: Inner): Transaction {
  const repositoryIn = (store: Store): Repository =>
    repositoryOf(store, {
      run: async (work, locks) => {
        if (locks.length > 0) await store.connection.query(lockStatement(locks))
        return work(store)
      },
      runAll: async (work, guard) => {
        const locks = guard === undefined ? [] : lockedKeys(store, guard)
        if (locks.length > 0) await store.connection.query(lockStatement(locks))
        return work(transactionOf({ ...inner, store }))
      },
    })
  return {
    ...repositoryIn(inner.store),
    addMail: (projectId, mail) => addMail(inner.store.connection, projectId, mail),
    beside: (work) => work(inner.store.connection),
    createPlanned: (principal, plans) => createPlanned(inner.store, principal, plans),
    readAhead: (principal, references) =>
      inner.readAhead(references.map(({ type, id }) => rowKey(inner.store, principal, type, id))),
    together: (pieces, failed) =>
      runTogether(
        inner,
        pieces.map((piece) => (store: Store) => piece(repositoryIn(store))),
        failed,
      ),
  }
}

interface Transactions {
  readonly run: Transact
  readonly runAll: Repository['transaction']
}

function repositoryOf(store: Store, transactions: Transactions): Repository {
  return withLinked(withVisibleBinaries(store, ownRepository(store, transactions)))
}

/** The Principal's own Project, searches aside. */
function ownRepository(store: Store, transactions: Transactions): Repository {
  return {
    ...readsOf(store),
    ...writesOf(store, transactions.run),
    ...searchesOf(store),
    feature: opener(store, transactions.run),
    transaction: transactions.runAll,
    sideBySide: () => {
      const { connection } = store
      const shared = { fetch: fetchTogether(connection), remove: removeTogether(connection) }
      return repositoryOf({ ...store, ...shared }, transactions)
    },
  }
}

type Reads =
  | 'read'
  | 'readMany'
  | 'readBinaries'
  | 'readVersion'
  | 'history'
  | 'historyOf'
  | 'rulings'
  | 'metaSummary'

function readsOf(store: Store): Pick<Repository, Reads> {
  return {
    read: (principal, type, id) => read(store, principal, type, id),
    readMany: (principal, references, signal) =>
      readMany(until(store, signal), principal, references),
    readBinaries: (principal, ids) => readBinaries(store, principal, ids),
    readVersion: (principal, type, id, ver) => readVersion(store, principal, { type, id, ver }),
    history: (principal, type, id, request) => history(store, principal, type, { id, request }),
    historyOf: (principal, type, request) => historyOf(store, principal, type, request),
    rulings: async (principal, type, id) => {
      const found = await readDecided(store, principal, type, { id, interactions: INTERACTIONS })
      if (found === undefined) throw notFound()
      return found.decisions
    },
    metaSummary: (principal, type) => metaSummary(store, principal, type),
  }
}

type Writes =
  | 'create'
  | 'planCreate'
  | 'update'
  | 'patch'
  | 'delete'
  | 'createConditional'
  | 'updateConditional'
  | 'deleteConditional'

function writesOf(store: Store, transact: Transact): Pick<Repository, Writes> {
  /** Runs in a transaction where it takes PostgreSQL to rule on what was written. */
  const ruled = <T>(
    principal: Principal,
    type: string,
    interaction: 'create' | 'update',
    work: (inner: Store) => Promise<T>,
  ): Promise<T> => {
    // An update may create.
    const asked = ['create', interaction] as const
    const isLate = asked.some((item) => needsSql(store, principal, type, item))
    return isLate ? transact(work, []) : work(store)
  }
  return {
    create: (principal, resource, options) =>
      ruled(principal, resource.resourceType, 'create', (inner) =>
        create(inner, principal, resource, options),
      ),
    planCreate: (principal, resource, plans) => planCreate(store, principal, resource, plans),
    update: (principal, resource, options) =>
      ruled(principal, resource.resourceType, 'update', (inner) =>
        update(inner, principal, resource, options),
      ),
    patch: (principal, { type, id }, change, options = {}) =>
      ruled(principal, type, 'update', (inner) =>
        patch(inner, principal, { type, id, apply: change, options }),
      ),
    delete: (principal, type, id, options) => remove(store, principal, { type, id, options }),
    createConditional: (principal, resource, condition, options) =>
      createConditional(store, transact, principal, { resource, condition, options }),
    updateConditional: (principal, resource, condition, options) =>
      updateConditional(store, transact, principal, { resource, condition, options }),
    deleteConditional: (principal, condition, limit) =>
      deleteConditional(store, transact, principal, { condition, limit }),
  }
}

type Searches =
  | 'criteriaSql'
  | 'search'
  | 'finder'
  | 'requireForm'
  | 'searchDeleted'
  | 'explain'
  | 'searchTypes'
  | 'searchMany'
  | 'searchPerReference'
  | 'countPerReference'
  | 'compartment'

function searchesOf(store: Store): Pick<Repository, Searches> {
  return {
    criteriaSql: (principal, type, grant) => criteriaSql(store, principal, type, grant),
    search: (principal, request, signal) => search(until(store, signal), principal, request),
    finder: (principal, request) => finder(store, principal, request),
    requireForm({ project }, resource) {
      const rule = store.rules.get(resource.resourceType)
      rule?.checkForm?.(resource)
      rule?.checkParameters?.(resource, project.parameters)
    },
    searchDeleted: (principal, request) => searchDeleted(store, principal, request),
    explain: (principal, request) => explain(store, principal, request),
    searchTypes: (principal, requests, signal) =>
      searchTypes(until(store, signal), principal, requests),
    searchMany: (principal, requests) => searchMany(store, principal, requests),
    searchPerReference: (principal, wanted, maxRows, signal) =>
      searchPerReference(until(store, signal), principal, wanted, maxRows),
    countPerReference: (principal, wanted, signal) =>
      countPerReference(until(store, signal), principal, wanted),
    compartment: (principal, request) => readCompartment(store, principal, request),
  }
}

/** Opens each feature once. */
function opener(store: Store, transact: Transact): Repository['feature'] {
  const opened = new Map<unknown, unknown>()
  return <T>(open: (store: Store, transact: Transact) => T): T => {
    if (!opened.has(open)) opened.set(open, open(store, transact))
    return opened.get(open) as T // what `open` itself has returned
  }
}

/** Whether the search would find a resource; what takes PostgreSQL to tell finds none. */
function finder(
  store: Store,
  principal: Principal,
  { type, conditions }: SearchRequest,
): (resource: Resource) => boolean {
  if (conditions.length === 0) return () => true
  const place = createTypeScope(store.keys, principal, type, principal.project.number)
  const grant = { ...plainGrant(type, ['search'], 'search'), criteria: conditions }
  const { matches } = compileGrant(place, grant)
  if (matches === undefined) return () => false
  return (resource) => {
    const rows = indexRows(store, place.project, resource, { parameters: place.own })
    const rowId = store.keys.rowId(type, resource.id ?? '')
    return matches(toIndexedRow(rowId, rows))
  }
}
