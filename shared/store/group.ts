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

/** Why a piece did not go on: another one has failed. */
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
export function createGroup(connection: Connection, alone: boolean): Group {
  let live = 0
  let hasFailed = false
  let failure: unknown
  let afterWrites = () => {}
  const reads: Waiting<RowKey, VersionRow | undefined>[] = []
  const deletions: Waiting<Deletion, readonly Deleted[]>[] = []
  const writes: Waiting<Write, readonly Written[]>[] = []

  function wait<Call, Answer>(list: Waiting<Call, Answer>[], call: Call): Promise<Answer> {
    return new Promise((resolve, reject) => {
      list.push({ call, resolve, reject })
      sendWhenAllWait()
    })
  }

  function sendWhenAllWait(): void {
    const waiting = reads.length + deletions.length + writes.length
    if (waiting === 0 || waiting < live) return
    // Failures reach the pieces through `reject`; the functions themselves do not throw.
    if (reads.length > 0) void sendReads(reads.splice(0))
    else void sendWrites(deletions.splice(0), writes.splice(0))
  }

  async function sendReads(asked: typeof reads): Promise<void> {
    await answer(asked, (calls) => fetchAll(connection, calls))
  }

  async function sendWrites(removed: typeof deletions, written: typeof writes): Promise<void> {
    if (hasFailed) {
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
      () => answerAll(removed, sendDeletions),
      // Statements behind it see the patients that their rows inherit from.
      () => answerAll(givers, sendRows),
      () => answerAll(others, sendRows),
      () =>
        answerAll(
          written.filter(({ call }) => call.kind === 'update'),
          sendRows,
        ),
    ]
    const answered: Promise<void>[] = []
    for (const send of kinds) {
      answered.push(send())
      if (alone) await answered.at(-1)
    }
    afterWrites()
    await Promise.all(answered)
  }

  const sendDeletions = async (calls: readonly Deletion[]) => {
    const rows = await connection.query<Deleted>(deleteStatement(calls))
    const found = Map.groupBy(rows, ({ n }) => n)
    return calls.map((_, i) => found.get(i + 1) ?? [])
  }

  const sendRows = async (calls: readonly Write[]) => {
    const { name, ...statement } = writeStatement(calls)
    const isNamed = name !== undefined && calls.length <= NAMED_ROWS
    const rows = await connection.query<Written>(isNamed ? { name, ...statement } : statement)
    const found = Map.groupBy(rows, ({ n }) => n)
    return calls.map((_, i) => found.get(i + 1) ?? [])
  }

  async function answerAll<Call extends Deletion | Write, Answer>(
    list: Waiting<Call, Answer>[],
    send: (calls: readonly Call[]) => Promise<readonly Answer[]>,
  ): Promise<void> {
    if (list.length === 0) return
    const sorted = list.toSorted((a, b) => compareRows(a.call, b.call))
    if (!alone) return answer(sorted, send)
    for (const one of sorted) {
      if (hasFailed) one.reject(new Abandoned())
      else await answer([one], send)
    }
  }

  async function answer<Call, Answer>(
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
      // What was sent behind a statement that failed is given the reason of that one.
      const isEcho = error === failure
      hasFailed = true
      failure ??= error
      const isRefused = error instanceof SqlError && list.length > 1
      const refused = isRefused ? new GroupRefused(error.message, { cause: error }) : error
      for (const { reject } of list) reject(isEcho ? new Abandoned() : refused)
    }
  }

  return {
    fetch: (key) => wait(reads, key),
    submit: (write) => wait(writes, write),
    remove: (deletion) => wait(deletions, deletion),
    async run<T>(
      pieces: readonly (() => Promise<T>)[],
      failed: (index: number, error: unknown) => unknown,
      sent: () => void,
    ) {
      live += pieces.length
      afterWrites = sent
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
              hasFailed = true
              failures.push({ index, error })
            })
            .finally(() => {
              live -= 1
              sendWhenAllWait()
            }),
        )
      }
      await Promise.all(running)
      const first = failures
        .filter(({ error }) => !(error instanceof Abandoned))
        .sort((a, b) => a.index - b.index)[0]
      if (first !== undefined) throw failed(first.index, first.error)
      return results
    },
  }
}
