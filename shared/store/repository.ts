/** Every read and write of resources, as a Principal: the only access to them. */

import { needsSql } from '../access/decisions/decide.ts'
import { type Principal, SYSTEM_PROJECT_NUMBER } from '../access/principal.ts'
import type { Resource } from '../fhir/resource.ts'
import { addMail, type Mail } from '../outbound/mails.ts'
import type { Database } from '../postgres/database.ts'
import type { Replica, Replicas } from '../postgres/replicas.ts'
import type { Connection } from '../postgres/statement.ts'
import { lockStatement } from '../postgres/transaction.ts'
import type { SearchRequest } from '../search/language/search-request.ts'
import { BINARY, requireVisibleId } from './binaries.ts'
import { isLinked, type ResourceId, requireOwn } from './read/read.ts'
import { Reads, type ReplicaStore } from './reads.ts'
import { rowKey, type StoreContext } from './rows/context.ts'
import { createFetch, fetchTogether } from './rows/fetch.ts'
import type { Deletion, WriteOptions, WriteResult } from './rows/version.ts'
import {
  type Failed,
  type Guard,
  type Inner,
  lockedKeys,
  runParallel,
  runTransaction,
} from './transaction.ts'
import { createConditional, deleteConditional, updateConditional } from './write/conditional.ts'
import { removeTogether } from './write/deletions.ts'
import { createPlanned, type PlannedCreates, planCreate } from './write/planned-rows.ts'
import { remove } from './write/remove.ts'
import { create, patch, update } from './write/write.ts'

/** Where transactions and the reads of requests go. */
interface Places {
  readonly database: Database
  readonly replicas: Replicas | undefined
}

export class Repository extends Reads {
  readonly #places: Places | undefined

  /** `places` undefined: inside a transaction. */
  constructor(store: StoreContext, places: Places | undefined, replica?: ReplicaStore) {
    super(store, replica)
    this.#places = places
  }

  /**
   * Returns the Repository for a request that only reads: on a replica that has all writes of the
   * caller's Projects, otherwise on the primary. Rights and the registry are read on the primary.
   */
  async forReads(principal: Principal): Promise<Repository> {
    const { project, isSuperAdmin } = principal
    const { replicas } = this.#places ?? {}
    if (replicas === undefined || isSuperAdmin) return this
    if (project.number === SYSTEM_PROJECT_NUMBER) return this
    const linked = project.linked?.map(({ number }) => number) ?? []
    const replica = await replicas.choose([project.number, ...linked])
    if (replica === undefined) return this
    const failed = () => replicas.failed(replica)
    return new Repository(this.store, this.#places, {
      store: storeOn(this.store, replica),
      failed,
    })
  }

  /** For pieces of work that run concurrently: their reads by id, and deletions, of one turn share a statement. */
  batched(): Repository {
    const { connection } = this.store
    const shared = { fetch: fetchTogether(connection), remove: removeTogether(connection) }
    return new Repository({ ...this.store, ...shared }, this.#places)
  }

  /** Errors: 403 not allowed, 400 bad reference, 409 unique violation. One SQL statement. */
  create(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult> {
    return this.#write(principal, (store) =>
      ruled(store, { principal, type: resource.resourceType }, ['create'], (inner) =>
        create(inner, principal, resource, options),
      ),
    )
  }

  /** Errors: 403, 404, 412. An unchanged body writes nothing. */
  update(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult> {
    const { resourceType: type, id = '' } = resource
    return this.#write(principal, async (store) => {
      await requireChangeable(store, principal, type, id)
      return ruled(store, { principal, type }, ['create', 'update'], (inner) =>
        update(inner, principal, resource, options),
      )
    })
  }

  /** Reads, applies `change`, writes; a lost race re-reads and applies it again. */
  patch(
    principal: Principal,
    { type, id }: ResourceId,
    change: (current: Resource) => Resource | Promise<Resource>,
    options: WriteOptions = {},
  ): Promise<WriteResult> {
    return this.#write(principal, async (store) => {
      await requireChangeable(store, principal, type, id)
      return ruled(store, { principal, type }, ['create', 'update'], (inner) =>
        patch(inner, principal, { type, id, apply: change, options }),
      )
    })
  }

  /** Idempotent; the version returned is the deletion. */
  delete(
    principal: Principal,
    type: string,
    id: string,
    options?: WriteOptions,
  ): Promise<Deletion> {
    return this.#write(principal, async (store) => {
      await requireChangeable(store, principal, type, id)
      return remove(store, principal, { type, id, options })
    })
  }

  /** If-None-Exist: 0 matches creates, 1 returns it as `unchanged`, more is 412. Racing calls never make twins. */
  createConditional(
    principal: Principal,
    resource: Resource,
    condition: SearchRequest,
    options?: WriteOptions,
  ): Promise<WriteResult> {
    return this.#write(principal, (store) =>
      createConditional(store, principal, { resource, condition, options }),
    )
  }

  /** `PUT Type?query`. */
  updateConditional(
    principal: Principal,
    resource: Resource,
    condition: SearchRequest,
    options?: WriteOptions,
  ): Promise<WriteResult> {
    return this.#write(principal, (store) =>
      updateConditional(store, principal, { resource, condition, options }),
    )
  }

  /** `DELETE Type?query`; more matches than `limit` is 412. */
  deleteConditional(
    principal: Principal,
    condition: SearchRequest,
    limit: number,
  ): Promise<readonly Deletion[]> {
    return this.#write(principal, (store) =>
      deleteConditional(store, principal, { condition, limit }),
    )
  }

  /**
   * Adds a create under the id of the resource to those that a transaction is to write soon; false where only the
   * write itself can tell. Errors: as create.
   */
  async planCreate(
    principal: Principal,
    resource: Resource,
    plans: PlannedCreates,
  ): Promise<boolean> {
    if (isLinked(principal, resource.resourceType)) return false
    return planCreate(this.store, principal, resource, plans)
  }

  /**
   * The statements of a feature, opened on this Repository's connection: inside a transaction they are a part
   * of it.
   */
  withStore<T>(open: (store: StoreContext) => T): T {
    return open(this.store)
  }

  /**
   * All or nothing: everything `work` does through the Repository it is given. What PostgreSQL cannot
   * serialise is run again from the start, up to three times, then 409.
   */
  transaction<T>(work: (inside: Transaction) => Promise<T>, guard?: Guard): Promise<T> {
    if (this.#places === undefined) throw new Error('A transaction opens its own part')
    const { database, replicas } = this.#places
    const done = runTransaction(
      database,
      this.store,
      (inner) => work(new Transaction(inner)),
      guard,
    )
    return replicas === undefined ? done : marked(replicas, guard?.principal, done)
  }

  #write<T>(principal: Principal, work: (store: StoreContext) => Promise<T>): Promise<T> {
    const { replicas } = this.#places ?? {}
    const done = work(this.store)
    return replicas === undefined ? done : marked(replicas, principal, done)
  }
}

/** A transaction that begins inside another one is a part of it: it has its locks, and no state of its own. */
export class Transaction extends Repository {
  readonly #inner: Inner

  constructor(inner: Inner) {
    super(inner.store, undefined)
    this.#inner = inner
  }

  override async transaction<T>(
    work: (inside: Transaction) => Promise<T>,
    guard?: Guard,
  ): Promise<T> {
    const locks = guard === undefined ? [] : lockedKeys(this.store, guard)
    if (locks.length > 0) await this.store.connection.query(lockStatement(locks))
    return work(this)
  }

  /** Sent by a worker once all is committed. One SQL statement. */
  addMail(projectId: string, mail: Mail): Promise<string> {
    return addMail(this.store.connection, projectId, mail)
  }

  /** Statements about what is no resource, such as the jobs that resources name; they commit with the rest. */
  withConnection<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    return work(this.store.connection)
  }

  /** False when one was not written: the transaction must not be committed. Errors: for an id that is taken. */
  createPlanned(principal: Principal, plans: PlannedCreates): Promise<boolean> {
    return createPlanned(this.store, principal, plans)
  }

  /** Rows that are read by id later on are asked for now, in the same round trip as what comes next. */
  prefetch(principal: Principal, references: readonly ResourceId[]): void {
    this.#inner.readAhead(references.map(({ type, id }) => rowKey(this.store, principal, type, id)))
  }

  /**
   * Runs pieces of work concurrently, each through a Repository of its own: their reads by id are one
   * statement, their inserts one, their updates one, their deletions one. Throws the failure of the
   * first that failed, in their order, as `failed` makes it; 400 for references that do not resolve.
   */
  runParallel<T>(
    pieces: readonly ((repository: Repository) => Promise<T>)[],
    failed: Failed,
  ): Promise<T[]> {
    const runs = pieces.map(
      (piece) => (store: StoreContext) => piece(new Transaction({ ...this.#inner, store })),
    )
    return runParallel(this.#inner, runs, failed)
  }
}

const stores = new WeakMap<
  Replica,
  { readonly primary: StoreContext; readonly store: StoreContext }
>()

function storeOn(primary: StoreContext, replica: Replica): StoreContext {
  const known = stores.get(replica)
  if (known?.primary === primary) return known.store
  const { database } = replica
  const store = { ...primary, connection: database, fetch: createFetch(database) }
  stores.set(replica, { primary, store })
  return store
}

/** Writes in a transaction where only PostgreSQL can rule on what was written. */
function ruled<T>(
  store: StoreContext,
  caller: { readonly principal: Principal; readonly type: string },
  interactions: readonly ('create' | 'update')[],
  work: (store: StoreContext) => Promise<T>,
): Promise<T> {
  const { principal, type } = caller
  const isLate = interactions.some((one) => needsSql(store, principal, type, one))
  return isLate ? store.transact(work, []) : work(store)
}

/** Errors: 403 for what only a linked Project has, 404 for a Binary that is not visible. */
async function requireChangeable(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  await requireOwn(store, principal, type, id)
  if (type === BINARY) await requireVisibleId(store, principal, id)
}

/** Resolves once replicas know of the write; a failed write may have been committed. Errors: those of `work`, the primary's. */
async function marked<T>(
  replicas: Replicas,
  principal: Principal | undefined,
  work: Promise<T>,
): Promise<T> {
  const isOne = principal !== undefined && !principal.isSuperAdmin
  const project = isOne ? principal.project.number : undefined
  const done = await work.catch(async (error: unknown) => {
    await replicas.written(project).catch(() => undefined)
    throw error
  })
  await replicas.written(project)
  return done
}
