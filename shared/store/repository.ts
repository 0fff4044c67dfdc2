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
import { createFetch, fetchTogether } from './rows/newest.ts'
import type { Deletion, WriteOptions, WriteResult } from './rows/version.ts'
import {
  type Failed,
  type Inner,
  lockedKeys,
  runLockedTransaction,
  runParallel,
  type TransactionLocks,
} from './transaction.ts'
import { createConditional, deleteConditional, updateConditional } from './write/conditional.ts'
import { remove, removeTogether } from './write/deletions.ts'
import { createPlanned, type PlannedCreates, planCreate } from './write/planned-rows.ts'
import { create, patch, update } from './write/write.ts'

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

  /** Reads on a replica that has all writes of the caller's Projects, or on the primary. */
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

  /** Concurrent reads by id, and deletions, share a statement per event-loop turn. */
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

  /** Reads, applies `change` and writes; repeats after a lost race. */
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

  /** Idempotent; returns the deletion. */
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

  /**
   * If-None-Exist: 0 matches creates, 1 returns it as `unchanged`, more is 412. Racing calls never create duplicates.
   */
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

  /** False when only the write itself can decide. Errors: like create. */
  async planCreate(
    principal: Principal,
    resource: Resource,
    plans: PlannedCreates,
  ): Promise<boolean> {
    if (isLinked(principal, resource.resourceType)) return false
    return planCreate(this.store, principal, resource, plans)
  }

  /** Opens a feature's statements on this connection; inside a transaction they belong to it. */
  withStore<T>(open: (store: StoreContext) => T): T {
    return open(this.store)
  }

  /** All or nothing. Serialization failures are retried up to three times, then 409. */
  transaction<T>(work: (inside: Transaction) => Promise<T>, locks?: TransactionLocks): Promise<T> {
    if (this.#places === undefined) throw new Error('A transaction opens its own part')
    const { database, replicas } = this.#places
    const done = runLockedTransaction(
      database,
      this.store,
      (inner) => work(new Transaction(inner)),
      locks,
    )
    return replicas === undefined ? done : marked(replicas, locks?.principal, done)
  }

  #write<T>(principal: Principal, work: (store: StoreContext) => Promise<T>): Promise<T> {
    const { replicas } = this.#places ?? {}
    const done = work(this.store)
    return replicas === undefined ? done : marked(replicas, principal, done)
  }
}

/** A nested transaction is part of the outer one, with the same locks and isolation. */
export class Transaction extends Repository {
  readonly #inner: Inner

  constructor(inner: Inner) {
    super(inner.store, undefined)
    this.#inner = inner
  }

  override async transaction<T>(
    work: (inside: Transaction) => Promise<T>,
    locks?: TransactionLocks,
  ): Promise<T> {
    const keys = locks === undefined ? [] : lockedKeys(this.store, locks)
    if (keys.length > 0) await this.store.connection.query(lockStatement(keys))
    return work(this)
  }

  /** A worker sends it after the commit. One SQL statement. */
  addMail(projectId: string, mail: Mail): Promise<string> {
    return addMail(this.store.connection, projectId, mail)
  }

  /** Statements on other tables, such as jobs; they commit with the transaction. */
  withConnection<T>(work: (connection: Connection) => Promise<T>): Promise<T> {
    return work(this.store.connection)
  }

  /** False when one was not written: the transaction must not commit. Errors: for an id that is taken. */
  createPlanned(principal: Principal, plans: PlannedCreates): Promise<boolean> {
    return createPlanned(this.store, principal, plans)
  }

  /** Requests rows early, in the round trip of the next statement. */
  prefetch(principal: Principal, references: readonly ResourceId[]): void {
    this.#inner.readAhead(references.map(({ type, id }) => rowKey(this.store, principal, type, id)))
  }

  /**
   * Runs pieces concurrently with shared statements. Throws the first failure in their order, mapped by `failed`; 400
   * for unresolved references.
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

/** Errors: 403 for a resource of a linked Project, 404 for an invisible Binary. */
async function requireChangeable(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<void> {
  await requireOwn(store, principal, type, id)
  if (type === BINARY) await requireVisibleId(store, principal, id)
}

/** Resolves once replicas know of the write. On an error it may have been committed anyway. */
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
