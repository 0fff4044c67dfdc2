/** Transactions of the repository: one connection, a group that shares statements, one check at the end. */

import type { Principal } from '../access/principal.ts'
import { LOST, retryOnConflict } from '../core/retry.ts'
import { nextTurn } from '../core/yielding.ts'
import type { Database } from '../postgres/database.ts'
import { SqlError } from '../postgres/sql-error.ts'
import type { Connection } from '../postgres/statement.ts'
import { lockStatement, type TransactionOptions } from '../postgres/transaction.ts'
import type { SearchRequest } from '../search/language/search-request.ts'
import type { StoreContext } from './rows/context.ts'
import { type Fetch, fetchAll, type RowKey } from './rows/fetch.ts'
import type { CheckedReference, Deleted, DeletionWrite, Submit } from './rows/ports.ts'
import type { VersionRow } from './rows/rows.ts'
import { writeStatement } from './rows/statements.ts'
import type { PartWritten, StatementPart, Write, Written } from './rows/write-rows.ts'
import { setsPatientAccounts } from './write/accounts.ts'
import { conditionKey } from './write/conditional.ts'
import { compareRows, deleteStatement } from './write/deletions.ts'
import { checkReferences, invalidReferences, missingReferences } from './write/references.ts'

/** Conditions that no other conditional write of equal criteria may decide on meanwhile. */
export interface Guard {
  readonly principal: Principal
  readonly conditions: readonly SearchRequest[]
  /** All reads of the transaction see one state; otherwise each statement sees the state of its time. */
  readonly oneState: boolean
}

/** Makes the error of a transaction from that of one of its pieces. */
export type Failed = (index: number, error: unknown) => unknown

/** A store inside a transaction, and the group of it. */
export interface Inner {
  readonly store: StoreContext
  readonly group: Group
  /** Asks for rows that will be fetched, together with whatever statement comes next. */
  readonly readAhead: (keys: readonly RowKey[]) => void
}

/** Equal conditions are waited for in this process first, then in PostgreSQL. */
export async function runTransaction<T>(
  database: Database,
  store: StoreContext,
  work: (inner: Inner) => Promise<T>,
  guard: Guard | undefined,
): Promise<T> {
  const locks = guard === undefined ? [] : lockedKeys(store, guard)
  // A refused group runs again with a statement for each write, to name the one that fails.
  let alone = false
  const run = () =>
    retryOnConflict<T>(async () => {
      const options = { locks, oneState: guard?.oneState ?? false, alone }
      try {
        return await inTransaction(database, store, work, options)
      } catch (error) {
        if (!(error instanceof GroupRefused)) throw error
        alone = true
        return LOST
      }
    })
  return locks.reduceRight<() => Promise<T>>((inside, key) => () => store.turns(key, inside), run)()
}

/** In one order for all, so that nobody waits in a circle. */
export function lockedKeys(store: StoreContext, { principal, conditions }: Guard): bigint[] {
  const keys = new Set(conditions.map((condition) => conditionKey(store, principal, condition)))
  return [...keys].sort((a, b) => (a < b ? -1 : 1))
}

interface Options extends TransactionOptions {
  /** A statement for each write. */
  readonly alone?: boolean
}

/** References are checked when all is written, so the order inside does not matter. */
export async function inTransaction<T>(
  database: Database,
  store: StoreContext,
  work: (inner: Inner) => Promise<T>,
  { alone = false, ...options }: Options,
): Promise<T> {
  const codes = new Set<bigint>()
  // A write that may still be rolled back proves nothing about the dictionary.
  const seenCodes: StoreContext['seenCodes'] = {
    has: (key) => store.seenCodes.has(key),
    add: (key) => void codes.add(key),
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
  for (const key of codes) store.seenCodes.add(key)
  if (hasEvents) store.announce()
  const rows = [...done].flatMap(([part, rows]) => rows.map((row) => [part, row] as const))
  await Promise.all(rows.map(([part, row]) => store.written(part, row)))
  return result
}

/** A transaction inside this one has its locks, and no connection of its own. */
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

/** Early reads are one statement, and each result is given once: a second read sees what is there by then. */
function createReadAhead(connection: Connection, fetch: Fetch) {
  const ahead = new Map<string, Promise<VersionRow | undefined>>()
  const rowName = ({ project, type, id }: RowKey) => `${project}/${type}/${id}`
  return {
    read(keys: readonly RowKey[]) {
      if (keys.length === 0) return
      const rows = fetchAll(connection, keys)
      for (const [i, key] of keys.entries()) {
        const row = rows.then((found) => found[i])
        // A failure ends the transaction; nobody may be waiting for this row yet.
        row.catch(() => undefined)
        ahead.set(rowName(key), row)
      }
    },
    fetch(key: RowKey) {
      if (key.ruling !== undefined) return fetch(key)
      const name = rowName(key)
      const row = ahead.get(name)
      ahead.delete(name)
      return row ?? fetch(key)
    },
  }
}

/** As `Transaction.together`: each piece gets a store that knows which references are its own. */
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
  // A piece that changes nothing writes nothing, and its references are checked all the same.
  if (checked?.count !== owned().length) checked = check()
  const [first] = (await checked.missing).toSorted((a, b) => a.owner - b.owner)
  if (first === undefined) return results
  const paths = (await checked.missing).filter(({ owner }) => owner === first.owner)
  throw failed(first.owner, invalidReferences(paths.map(({ path }) => path)))
}

// Work that runs side by side in one transaction and shares its statements. Each piece of work asks
// for one row, write or deletion at a time and waits; when all wait, what they ask for is sent: rows
// first, and only when nobody waits for a row any more the deletions, inserts and updates, one
// statement a kind. Nothing is written once a piece has failed, since the transaction is lost.

interface Group {
  readonly fetch: Fetch
  readonly submit: Submit
  readonly remove: (deletion: DeletionWrite) => Promise<readonly Deleted[]>
  /**
   * Throws the failure of the first piece that failed, in their order, as `failed` makes it. Whatever
   * `sent` sends goes out behind the writes, before these are answered.
   */
  run<T>(pieces: readonly (() => Promise<T>)[], failed: Failed, sent: () => void): Promise<T[]>
}

/**
 * A statement for several writes was refused and PostgreSQL does not say for which of them. The
 * transaction is to be run again with a statement each.
 */
class GroupRefused extends Error {}

/** A piece did not go on, since another one has failed. */
class Abandoned extends Error {}

/** Pieces are started in portions, so that other requests get their turn. */
const PORTION = 32
/** Larger statements are worth a plan of their own: the one for all sizes expects few rows. */
const NAMED_ROWS = 20

interface Waiting<Call, Answer> {
  readonly call: Call
  resolve(answer: Answer): void
  reject(error: unknown): void
}

/** `alone` sends a statement a write, so that each failure finds its owner. */
class StatementGroup implements Group {
  readonly #connection: Connection
  readonly #alone: boolean
  #live = 0
  #hasFailed = false
  #failure: unknown
  #afterWrites = () => {}
  readonly #reads: Waiting<RowKey, VersionRow | undefined>[] = []
  readonly #deletions: Waiting<DeletionWrite, readonly Deleted[]>[] = []
  readonly #writes: Waiting<Write, readonly Written[]>[] = []
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

  #wait<Call, Answer>(list: Waiting<Call, Answer>[], call: Call): Promise<Answer> {
    return new Promise((resolve, reject) => {
      list.push({ call, resolve, reject })
      this.#sendWhenAllWait()
    })
  }

  #sendWhenAllWait(): void {
    const waiting = this.#reads.length + this.#deletions.length + this.#writes.length
    if (waiting === 0 || waiting < this.#live) return
    // Failures reach the pieces through `reject`; the functions themselves do not throw.
    if (this.#reads.length > 0) void this.#sendReads(this.#reads.splice(0))
    else void this.#sendWrites(this.#deletions.splice(0), this.#writes.splice(0))
  }

  async #sendReads(asked: Waiting<RowKey, VersionRow | undefined>[]): Promise<void> {
    await this.#answer(asked, (calls) => fetchAll(this.#connection, calls))
  }

  async #sendWrites(
    removed: Waiting<DeletionWrite, readonly Deleted[]>[],
    written: Waiting<Write, readonly Written[]>[],
  ): Promise<void> {
    if (this.#hasFailed) {
      for (const { reject } of [...removed, ...written]) reject(new Abandoned())
      return
    }
    // In the order of FHIR, and the rows of a kind in one order for all transactions.
    // https://hl7.org/fhir/R4/http.html#trules
    const inserts = written.filter(({ call }) => call.kind === 'insert')
    const { givers = [], others = [] } = Object.groupBy(inserts, ({ call }) =>
      setsPatientAccounts(call) ? 'givers' : 'others',
    )
    const kinds = [
      () => this.#answerAll(removed, (calls) => this.#sendDeletions(calls)),
      // Statements behind it see the patients that their rows inherit from.
      () => this.#answerAll(givers, (calls) => this.#sendRows(calls)),
      () => this.#answerAll(others, (calls) => this.#sendRows(calls)),
      () =>
        this.#answerAll(
          written.filter(({ call }) => call.kind === 'update'),
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
    const rows = await this.#connection.query<Deleted>(deleteStatement(calls))
    const found = Map.groupBy(rows, ({ n }) => n)
    return calls.map((_, i) => found.get(i + 1) ?? [])
  }

  async #sendRows(calls: readonly Write[]) {
    const { name, ...statement } = writeStatement(calls)
    const isNamed = name !== undefined && calls.length <= NAMED_ROWS
    const rows = await this.#connection.query<Written>(isNamed ? { name, ...statement } : statement)
    const found = Map.groupBy(rows, ({ n }) => n)
    return calls.map((_, i) => found.get(i + 1) ?? [])
  }

  async #answerAll<Call extends DeletionWrite | Write, Answer>(
    list: Waiting<Call, Answer>[],
    send: (calls: readonly Call[]) => Promise<readonly Answer[]>,
  ): Promise<void> {
    if (list.length === 0) return
    const sorted = list.toSorted((a, b) => compareRows(a.call, b.call))
    if (!this.#alone) return this.#answer(sorted, send)
    for (const one of sorted) {
      if (this.#hasFailed) one.reject(new Abandoned())
      else await this.#answer([one], send)
    }
  }

  async #answer<Call, Answer>(
    list: readonly Waiting<Call, Answer>[],
    send: (calls: readonly Call[]) => Promise<readonly Answer[]>,
  ): Promise<void> {
    try {
      const answers = await send(list.map(({ call }) => call))
      // Each place of the answers belongs to the call in that place.
      list.forEach(({ resolve }, i) => {
        resolve(answers[i] as Answer)
      })
    } catch (error) {
      // A statement sent behind one that failed is rejected with the reason of that one.
      const isEcho = error === this.#failure
      this.#hasFailed = true
      this.#failure ??= error
      const isRefused = error instanceof SqlError && list.length > 1
      const refused = isRefused ? new GroupRefused(error.message, { cause: error }) : error
      for (const { reject } of list) reject(isEcho ? new Abandoned() : refused)
    }
  }
}
