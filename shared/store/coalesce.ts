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

const LANES = 2
/** One that PostgreSQL runs and one that it finds waiting when that is done. */
const IN_FLIGHT = 2
/** A batch that takes so long waits for a lock, and whoever sends the next one should not. */
const STUCK_MS = 50
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

/** A connection, and since when each batch that it has not answered is under way. */
interface Lane {
  readonly connection: Connection
  readonly since: number[]
}

export function createCoalescer(database: Pick<Database, 'query' | 'lane'>): Submit {
  let queue: Pending[] = []
  let isStarting = false
  let late: NodeJS.Timeout | undefined
  // Connections of their own keep the prepared statements of all shapes warm: planning one anew takes
  // as long as running it. The second one is for when the first is stuck: two of PostgreSQL's processes
  // would fight with this one for the CPU. Measured at 16 callers: a quarter more writes with one.
  const lanes: readonly Lane[] = Array.from({ length: LANES }, () => ({
    connection: database.lane(),
    since: [],
  }))
  const alone = submitAlone(database)

  return (write) =>
    new Promise((resolve, reject) => {
      queue.push({ write, resolve, reject })
      startWriter()
    })

  /** The first lane that is not stuck, if it has room. */
  function freeLane(): Lane | undefined {
    const now = performance.now()
    const lane = lanes.find(
      ({ since: [oldest] }) => oldest === undefined || now - oldest < STUCK_MS,
    )
    return lane !== undefined && lane.since.length < IN_FLIGHT ? lane : undefined
  }

  function startWriter(): void {
    if (isStarting || queue.length === 0) return
    const lane = freeLane()
    if (lane === undefined) {
      lookAgain()
      return
    }
    isStarting = true
    // Failures reach the callers through `reject`; the loop itself does not throw.
    void drain(lane)
  }

  /** Nothing else tells when a lane has become stuck. */
  function lookAgain(): void {
    if (late !== undefined) return
    late = setTimeout(() => {
      late = undefined
      startWriter()
    }, STUCK_MS)
  }

  async function drain(lane: Lane): Promise<void> {
    await nextTurn()
    isStarting = false
    while (queue.length > 0 && lane.since.length < IN_FLIGHT) {
      // One batch of all would let every caller wait at once: this process would rest while PostgreSQL
      // works, and the other way round. So a writer leaves the next one its share.
      const share = Math.ceil(queue.length / (IN_FLIGHT - lane.since.length))
      const [batch, rest] = takeBatch(queue, Math.max(share, FEWEST_ROWS))
      queue = rest
      lane.since.push(performance.now())
      if (queue.length > 0) startWriter()
      await run(lane.connection, batch)
      lane.since.shift()
    }
    startWriter()
  }

  async function run(connection: Connection, batch: readonly Pending[]): Promise<void> {
    try {
      const rows = await connection.query<Written>(writeStatement(batch.map(({ write }) => write)))
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
