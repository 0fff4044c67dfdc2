/**
 * Concurrent single writes become one statement. There is no timer: what arrives while the writers
 * are busy goes into the next batch, so nobody waits longer than alone. Answers come after commit.
 * If a batch fails its members run one by one, so that each gets its own error.
 */
import { setImmediate as nextTurn } from 'node:timers/promises'
import { type Connection, type Database, SqlError } from '../database.ts'
import { conflict } from '../errors.ts'
import { type Write, type Written, writeStatement } from './statements.ts'

/** The rows of the answer that belong to one write: none when an update lost its race. */
export type Submit = (write: Write) => Promise<readonly Written[]>

const WRITERS = 2
const FEWEST_ROWS = 4
const MAX_ROWS = 100
const MAX_BATCH_CHARACTERS = 4_000_000
const RETRIES = 3
/** Serialization failure, deadlock, lock timeout: the same statement may succeed the next time. */
const TRANSIENT = new Set(['40001', '40P01', '55P03'])

interface Pending {
  readonly write: Write
  readonly resolve: (rows: readonly Written[]) => void
  readonly reject: (error: unknown) => void
}

export function isTransient(error: unknown): boolean {
  return error instanceof SqlError && TRANSIENT.has(error.code)
}

/** Runs `work` again, up to three times with jitter, when PostgreSQL asks for it; then 409. */
export async function retrying<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await work()
    } catch (error) {
      if (!isTransient(error)) throw error
      if (attempt === RETRIES) throw conflict('Too many concurrent changes, try again')
      const pauseMs = 50 * 2 ** attempt * (0.75 + Math.random() / 2)
      await new Promise((resolve) => setTimeout(resolve, pauseMs))
    }
  }
}

/** One write, one statement: inside a transaction, or when a batch has failed. */
export function submitAlone(connection: Connection): Submit {
  return (write) => connection.query<Written>(writeStatement([write]))
}

export function createCoalescer(database: Pick<Database, 'query' | 'lane'>): Submit {
  let queue: Pending[] = []
  let isStarting = false
  // Connections of their own keep the prepared statements of all shapes warm: planning one anew
  // takes as long as running it.
  const idle = Array.from({ length: WRITERS }, () => database.lane())
  const alone = submitAlone(database)

  return (write) =>
    new Promise((resolve, reject) => {
      queue.push({ write, resolve, reject })
      startWriter()
    })

  function startWriter(): void {
    if (isStarting) return
    const writer = idle.pop()
    if (writer === undefined) return
    isStarting = true
    // Failures reach the callers through `reject`; the loop itself does not throw.
    void drain(writer)
  }

  async function drain(writer: Connection): Promise<void> {
    await nextTurn()
    isStarting = false
    while (queue.length > 0) {
      // One batch of all would let every caller wait at once: this process would rest while PostgreSQL
      // works, and the other way round. So a writer leaves an idle one its share.
      const share = Math.ceil(queue.length / (1 + idle.length))
      const [batch, rest] = takeBatch(queue, Math.max(share, FEWEST_ROWS))
      queue = rest
      if (queue.length > 0) startWriter()
      await run(writer, batch)
    }
    idle.push(writer)
  }

  async function run(writer: Connection, batch: readonly Pending[]): Promise<void> {
    try {
      const rows = await writer.query<Written>(writeStatement(batch.map(({ write }) => write)))
      const found = Map.groupBy(rows, (row) => row.n)
      batch.forEach(({ resolve }, i) => {
        resolve(found.get(i + 1) ?? [])
      })
    } catch (error) {
      // Without an answer from PostgreSQL nobody knows what was committed: do not write again.
      const again = error instanceof SqlError && (batch.length > 1 || isTransient(error))
      for (const { write, resolve, reject } of batch) {
        if (again) await retrying(() => alone(write)).then(resolve, reject)
        else reject(error)
      }
    }
  }
}

/** The longest head of the queue that one statement can hold: one kind, each resource once. */
function takeBatch(queue: readonly Pending[], share: number): [Pending[], Pending[]] {
  const most = Math.min(share, MAX_ROWS)
  const batch: Pending[] = []
  const rest: Pending[] = []
  const taken = new Set<string>()
  const kind = queue[0]?.write.kind
  let size = 0
  for (const pending of queue) {
    const { write } = pending
    const row = `${write.project}/${write.type}/${write.id}`
    size += write.tail.length
    const fits = batch.length < most && (batch.length === 0 || size < MAX_BATCH_CHARACTERS)
    if (fits && write.kind === kind && !taken.has(row)) batch.push(pending)
    else rest.push(pending)
    taken.add(row)
  }
  return [batch, rest]
}
