/**
 * Work that runs side by side in one transaction and shares its statements. Each piece of work asks
 * for one row, write or deletion at a time and waits; when all wait, what they ask for is sent: rows
 * first, and only when nobody waits for a row any more the deletions, inserts and updates, one
 * statement a kind. Nothing is written once a piece has failed, since the transaction is lost.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { SqlError } from '../platform/postgres/sql-error.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import { type Fetch, fetchAll, type RowKey } from './rows/fetch.ts'
import type { Deleted, Deletion, Submit } from './rows/ports.ts'
import type { VersionRow } from './rows/rows.ts'
import { writeStatement } from './rows/statements.ts'
import type { Write, Written } from './rows/write-rows.ts'
import { givesAccounts } from './write/accounts.ts'
import { compareRows, deleteStatement } from './write/deletions.ts'

export interface Group {
  readonly fetch: Fetch
  readonly submit: Submit
  readonly remove: (deletion: Deletion) => Promise<readonly Deleted[]>
  /**
   * Throws the failure of the first piece that failed, in their order, as `failed` makes it. Whatever
   * `sent` sends goes out behind the writes, before these are answered.
   */
  run<T>(
    pieces: readonly (() => Promise<T>)[],
    failed: (index: number, error: unknown) => unknown,
    sent: () => void,
  ): Promise<T[]>
}

/**
 * A statement for several writes was refused and PostgreSQL does not say for which of them. The
 * transaction is to be run again with a statement each.
 */
export class GroupRefused extends Error {}

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
export class StatementGroup implements Group {
  readonly #connection: Connection
  readonly #alone: boolean
  #live = 0
  #hasFailed = false
  #failure: unknown
  #afterWrites = () => {}
  readonly #reads: Waiting<RowKey, VersionRow | undefined>[] = []
  readonly #deletions: Waiting<Deletion, readonly Deleted[]>[] = []
  readonly #writes: Waiting<Write, readonly Written[]>[] = []
  readonly fetch: Fetch = (key) => this.#wait(this.#reads, key)
  readonly submit: Submit = (write) => this.#wait(this.#writes, write)
  readonly remove: Group['remove'] = (deletion) => this.#wait(this.#deletions, deletion)

  constructor(connection: Connection, alone: boolean) {
    this.#connection = connection
    this.#alone = alone
  }

  async run<T>(
    pieces: readonly (() => Promise<T>)[],
    failed: (index: number, error: unknown) => unknown,
    sent: () => void,
  ) {
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
    removed: Waiting<Deletion, readonly Deleted[]>[],
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
      givesAccounts(call) ? 'givers' : 'others',
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

  async #sendDeletions(calls: readonly Deletion[]) {
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

  async #answerAll<Call extends Deletion | Write, Answer>(
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
