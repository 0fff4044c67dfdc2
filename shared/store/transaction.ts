/** Transactions of the repository: one connection, a group that shares statements, one check at the end. */

import type { Principal } from '../access/principal.ts'
import { type Pending, settle } from '../core/batching.ts'
import { LOST, retryOnConflict } from '../core/retry.ts'
import { nextTurn } from '../core/yielding.ts'
import type { Database } from '../postgres/database.ts'
import { SqlError } from '../postgres/sql-error.ts'
import type { Connection } from '../postgres/statement.ts'
import { lockStatement, type TransactionOptions } from '../postgres/transaction.ts'
import type { SearchRequest } from '../search/language/search-request.ts'
import type { StoreContext } from './rows/context.ts'
import { type Fetch, fetchAll, type RowKey } from './rows/newest.ts'
import type { VersionRow } from './rows/rows.ts'
import { writeStatement } from './rows/statements.ts'
import {
  type CheckedReference,
  type Deleted,
  type DeletionWrite,
  type PartWritten,
  rowsByCall,
  type StatementPart,
  type Submit,
  type Write,
  type Written,
} from './rows/write-rows.ts'
import { setsPatientAccounts } from './write/authorize.ts'
import { conditionKey } from './write/conditional.ts'
import { compareRows, deleteStatement } from './write/deletions.ts'
import { checkReferences, invalidReferences, missingReferences } from './write/references.ts'

/** Conditions that must not be decided concurrently by equal conditional writes. */
export interface TransactionLocks {
  readonly principal: Principal
  readonly conditions: readonly SearchRequest[]
  /** All reads see one snapshot; otherwise each statement has its own. */
  readonly oneState: boolean
}

export type Failed = (index: number, error: unknown) => unknown

export interface Inner {
  readonly store: StoreContext
  readonly group: Group
  readonly readAhead: (keys: readonly RowKey[]) => void
}

/** Serializes equal conditions in this process first, then in PostgreSQL. */
export async function runLockedTransaction<T>(
  database: Database,
  store: StoreContext,
  work: (inner: Inner) => Promise<T>,
  locks: TransactionLocks | undefined,
): Promise<T> {
  const keys = locks === undefined ? [] : lockedKeys(store, locks)
  // A rejected group runs again with a statement per write, to find the one that fails.
  let alone = false
  const run = () =>
    retryOnConflict<T>(async () => {
      const options = { locks: keys, oneState: locks?.oneState ?? false, alone }
      try {
        return await inTransaction(database, store, work, options)
      } catch (error) {
        if (!(error instanceof GroupRefused)) throw error
        alone = true
        return LOST
      }
    })
  return withTurns(store, keys, run)
}

/** Takes the turns in this order, holds all of them during `work`. */
function withTurns<T>(
  store: StoreContext,
  [key, ...others]: readonly bigint[],
  work: () => Promise<T>,
): Promise<T> {
  if (key === undefined) return work()
  return store.turns(key, () => withTurns(store, others, work))
}

/** Sorted, to prevent deadlocks. */
export function lockedKeys(
  store: StoreContext,
  { principal, conditions }: TransactionLocks,
): bigint[] {
  const keys = new Set(conditions.map((condition) => conditionKey(store, principal, condition)))
  return [...keys].sort((a, b) => (a < b ? -1 : 1))
}

interface Options extends TransactionOptions {
  readonly alone?: boolean
}

/** References are checked after all writes, so their order does not matter. */
export async function inTransaction<T>(
  database: Database,
  store: StoreContext,
  work: (inner: Inner) => Promise<T>,
  { alone = false, ...options }: Options,
): Promise<T> {
  const codes = new Set<bigint>()
  // A write that may be rolled back proves nothing about the dictionary.
  const seenCodes: StoreContext['seenCodes'] = {
    has: (key) => store.seenCodes.has(key),
    set: (key) => codes.add(key),
  }
  let hasEvents = false
  const announce = () => {
    hasEvents = true
  }
  const done = new Map<StatementPart, PartWritten[]>()
  const written: StoreContext['written'] = async (part, row) =>
    void done.set(part, [...(done.get(part) ?? []), row])
  const result = await database.transaction(async (connection) => {
    const deferred: CheckedReference[] = []
    const group = new StatementGroup(connection, alone)
    const ahead = createReadAhead(connection, group.fetch)
    const { submit, remove } = group
    const inner: StoreContext = nested({
      ...store,
      connection,
      fetch: ahead.fetch,
      recent: undefined,
      counts: undefined,
      submit,
      remove,
      seenCodes,
      announce,
      written,
      deferred,
    })
    const result = await work({ store: inner, group, readAhead: ahead.read })
    await checkReferences(connection, deferred)
    for (const [part, rows] of done) await part.beforeCommit?.(connection, rows)
    return result
  }, options)
  for (const key of codes) store.seenCodes.set(key, true)
  if (hasEvents) store.announce()
  const rows = [...done].flatMap(([part, rows]) => rows.map((row) => [part, row] as const))
  await Promise.all(rows.map(([part, row]) => store.written(part, row)))
  return result
}

/** A nested transaction shares the locks and the connection. */
function nested(store: StoreContext): StoreContext {
  const inner: StoreContext = {
    ...store,
    async transact(work, locks) {
      if (locks.length > 0) await store.connection.query(lockStatement(locks))
      return work(inner)
    },
  }
  return inner
}

/** Each result is used once: a second read sees newer state. */
function createReadAhead(connection: Connection, fetch: Fetch) {
  const ahead = new Map<string, Promise<VersionRow | undefined>>()
  const rowName = ({ project, type, id }: RowKey) => `${project}/${type}/${id}`
  return {
    read(keys: readonly RowKey[]) {
      if (keys.length === 0) return
      const rows = fetchAll(connection, keys)
      for (const [i, key] of keys.entries()) {
        const row = rows.then((found) => found[i])
        // A failure ends the transaction; this row may have no reader yet.
        row.catch(() => undefined)
        ahead.set(rowName(key), row)
      }
    },
    fetch(key: RowKey) {
      if (key.decide !== undefined) return fetch(key)
      const name = rowName(key)
      const row = ahead.get(name)
      ahead.delete(name)
      return row ?? fetch(key)
    },
  }
}

export async function runParallel<T>(
  { store, group }: Inner,
  pieces: readonly ((store: StoreContext) => Promise<T>)[],
  failed: Failed,
): Promise<T[]> {
  const own = pieces.map((): CheckedReference[] => [])
  const owned = () =>
    own.flatMap((list, owner) => list.map((reference) => ({ ...reference, owner })))
  const check = () => {
    const references = owned()
    const missing = missingReferences(store.connection, references)
    missing.catch(() => undefined)
    return { count: references.length, missing }
  }
  let checked: ReturnType<typeof check> | undefined
  const results = await group.run(
    pieces.map((piece, i) => () => piece(nested({ ...store, deferred: own[i] }))),
    failed,
    () => {
      checked = check()
    },
  )
  // Without a write the references are still checked.
  if (checked?.count !== owned().length) checked = check()
  const [first] = (await checked.missing).toSorted((a, b) => a.owner - b.owner)
  if (first === undefined) return results
  const paths = (await checked.missing).filter(({ owner }) => owner === first.owner)
  throw failed(first.owner, invalidReferences(paths.map(({ path }) => path)))
}

// Concurrent work in one transaction. When all pieces wait, rows are read first; once none waits for rows, deletions,
// inserts and updates are sent, one statement per kind. A failure stops all writes.

interface Group {
  readonly fetch: Fetch
  readonly submit: Submit
  readonly remove: (deletion: DeletionWrite) => Promise<readonly Deleted[]>
  /**
   * Throws the first failure in their order, mapped by `failed`. `sent` runs after the writes were sent, before their answers.
   */
  run<T>(pieces: readonly (() => Promise<T>)[], failed: Failed, sent: () => void): Promise<T[]>
}

/** A statement for several writes failed; the transaction must rerun with one statement each. */
class GroupRefused extends Error {}

/** A piece was stopped because another one failed. */
class Abandoned extends Error {}

/** Pieces start in portions, so that other requests get their turn. */
const PORTION = 32
/** Larger statements need their own plan: the generic one expects few rows. */
const NAMED_ROWS = 20

/** `alone`: one statement per write, so that each failure finds its owner. */
class StatementGroup implements Group {
  readonly #connection: Connection
  readonly #alone: boolean
  #live = 0
  #hasFailed = false
  #failure: unknown
  #afterWrites = () => {}
  readonly #reads: Pending<RowKey, VersionRow | undefined>[] = []
  readonly #deletions: Pending<DeletionWrite, readonly Deleted[]>[] = []
  readonly #writes: Pending<Write, readonly Written[]>[] = []
  readonly fetch: Fetch = (key) => this.#wait(this.#reads, key)
  readonly submit: Submit = (write) => this.#wait(this.#writes, write)
  readonly remove: Group['remove'] = (deletion) => this.#wait(this.#deletions, deletion)

  constructor(connection: Connection, alone: boolean) {
    this.#connection = connection
    this.#alone = alone
  }

  async run<T>(pieces: readonly (() => Promise<T>)[], failed: Failed, sent: () => void) {
    this.#live += pieces.length
    this.#afterWrites = sent
    const running: Promise<unknown>[] = []
    const failures: { index: number; error: unknown }[] = []
    const results: T[] = []
    for (const [index, piece] of pieces.entries()) {
      if (index % PORTION === PORTION - 1) await nextTurn()
      running.push(
        piece()
          .then((result) => {
            results[index] = result
          })
          .catch((error: unknown) => {
            this.#hasFailed = true
            failures.push({ index, error })
          })
          .finally(() => {
            this.#live -= 1
            this.#sendWhenAllWait()
          }),
      )
    }
    await Promise.all(running)
    const first = failures
      .filter(({ error }) => !(error instanceof Abandoned))
      .sort((a, b) => a.index - b.index)[0]
    if (first !== undefined) throw failed(first.index, first.error)
    return results
  }

  #wait<Call, Answer>(list: Pending<Call, Answer>[], item: Call): Promise<Answer> {
    return new Promise((resolve, reject) => {
      list.push({ item, resolve, reject })
      this.#sendWhenAllWait()
    })
  }

  #sendWhenAllWait(): void {
    const waiting = this.#reads.length + this.#deletions.length + this.#writes.length
    if (waiting === 0 || waiting < this.#live) return
    // Never rejects: failures reach the pieces through `reject`.
    if (this.#reads.length > 0) void this.#sendReads(this.#reads.splice(0))
    else void this.#sendWrites(this.#deletions.splice(0), this.#writes.splice(0))
  }

  async #sendReads(asked: Pending<RowKey, VersionRow | undefined>[]): Promise<void> {
    await this.#answer(asked, (calls) => fetchAll(this.#connection, calls))
  }

  async #sendWrites(
    removed: Pending<DeletionWrite, readonly Deleted[]>[],
    written: Pending<Write, readonly Written[]>[],
  ): Promise<void> {
    if (this.#hasFailed) {
      for (const { reject } of [...removed, ...written]) reject(new Abandoned())
      return
    }
    // FHIR's order of verbs, and one row order for all transactions: https://hl7.org/fhir/R4/http.html#trules
    const inserts = written.filter(({ item }) => item.kind === 'insert')
    const { givers = [], others = [] } = Object.groupBy(inserts, ({ item }) =>
      setsPatientAccounts(item) ? 'givers' : 'others',
    )
    const kinds = [
      () => this.#answerAll(removed, (calls) => this.#sendDeletions(calls)),
      // Later statements see the patients that their rows inherit from.
      () => this.#answerAll(givers, (calls) => this.#sendRows(calls)),
      () => this.#answerAll(others, (calls) => this.#sendRows(calls)),
      () =>
        this.#answerAll(
          written.filter(({ item }) => item.kind === 'update'),
          (calls) => this.#sendRows(calls),
        ),
    ]
    const answered: Promise<void>[] = []
    for (const send of kinds) {
      answered.push(send())
      if (this.#alone) await answered.at(-1)
    }
    this.#afterWrites()
    await Promise.all(answered)
  }

  async #sendDeletions(calls: readonly DeletionWrite[]) {
    return rowsByCall(await this.#connection.query<Deleted>(deleteStatement(calls)), calls)
  }

  async #sendRows(calls: readonly Write[]) {
    const { name, ...statement } = writeStatement(calls)
    const isNamed = name !== undefined && calls.length <= NAMED_ROWS
    const rows = await this.#connection.query<Written>(isNamed ? { name, ...statement } : statement)
    return rowsByCall(rows, calls)
  }

  async #answerAll<Call extends DeletionWrite | Write, Answer>(
    list: Pending<Call, Answer>[],
    send: (calls: readonly Call[]) => Promise<readonly Answer[]>,
  ): Promise<void> {
    if (list.length === 0) return
    const sorted = list.toSorted((a, b) => compareRows(a.item, b.item))
    if (!this.#alone) return this.#answer(sorted, send)
    for (const one of sorted) {
      if (this.#hasFailed) one.reject(new Abandoned())
      else await this.#answer([one], send)
    }
  }

  async #answer<Call, Answer>(
    list: readonly Pending<Call, Answer>[],
    send: (calls: readonly Call[]) => Promise<readonly Answer[]>,
  ): Promise<void> {
    await settle(list, async (calls) => {
      try {
        return await send(calls)
      } catch (error) {
        // Statements after a failed one are rejected with its error.
        const isEcho = error === this.#failure
        this.#hasFailed = true
        this.#failure ??= error
        if (isEcho) throw new Abandoned()
        const isRefused = error instanceof SqlError && calls.length > 1
        throw isRefused ? new GroupRefused(error.message, { cause: error }) : error
      }
    })
  }
}
