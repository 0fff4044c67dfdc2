/**
 * Combines concurrent single writes into one statement. If it fails, its writes run one by one, so that each gets its
 * own error.
 */
import { batchInLanes, type Pending } from '../../core/batching.ts'
import { conflict, RunLeaseLost, TransactionConflict } from '../../core/errors.ts'
import { retryOnConflict } from '../../core/retry.ts'
import type { Database } from '../../postgres/database.ts'
import { SqlError } from '../../postgres/sql-error.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { StoreContext } from '../rows/context.ts'
import type { Submit } from '../rows/ports.ts'
import { timeText } from '../rows/rows.ts'
import { ACCOUNT_PATIENT } from '../rows/side-rows.ts'
import { writeStatement } from '../rows/statements.ts'
import type { WriteResult } from '../rows/version.ts'
import type { Write, Written } from '../rows/write-rows.ts'
import type { Prepared } from './prepare.ts'
import { invalidReferences } from './references.ts'

const MAX_ROWS = 100
const MAX_BATCH_CHARACTERS = 4_000_000

type Waiting = Pending<Write, readonly Written[]>

/** One write, one statement: inside a transaction, or when a batch has failed. */
function submitAlone(connection: Connection): Submit {
  return (write) => connection.query<Written>(writeStatement([write]))
}

export function createCoalescer(database: Pick<Database, 'query' | 'lane'>): Submit {
  const alone = submitAlone(database)
  return batchInLanes<Connection, Write, readonly Written[]>(() => database.lane(), {
    take: takeBatch,
    async run(connection, batch) {
      try {
        const writes = batch.map(({ item }) => item)
        const rows = await connection.query<Written>(writeStatement(writes))
        const found = Map.groupBy(rows, (row) => row.n)
        batch.forEach(({ resolve }, i) => {
          resolve(found.get(i + 1) ?? [])
        })
      } catch (error) {
        // Without a response the commit state is unknown: do not write again.
        const isOfOne = error instanceof SqlError || error instanceof RunLeaseLost
        const again = error instanceof TransactionConflict || (isOfOne && batch.length > 1)
        for (const { item, resolve, reject } of batch) {
          if (again) await retryOnConflict(() => alone(item)).then(resolve, reject)
          else reject(error)
        }
      }
    },
  })
}

/** One kind, each resource once. */
function takeBatch(queue: readonly Waiting[], share: number): [Waiting[], Waiting[]] {
  const most = Math.min(share, MAX_ROWS)
  const batch: Waiting[] = []
  const rest: Waiting[] = []
  const taken = new Set<string>()
  const kind = queue[0]?.item.kind
  let size = 0
  for (const pending of queue) {
    const { item: write } = pending
    const row = `${write.project}/${write.type}/${write.id}`
    size += write.tail.length
    const fits = batch.length < most && (batch.length === 0 || size < MAX_BATCH_CHARACTERS)
    if (fits && write.kind === kind && !taken.has(row)) batch.push(pending)
    else rest.push(pending)
    taken.add(row)
  }
  return [batch, rest]
}

/** Undefined when an update lost a race, `held` when a patient holds accounts. Errors: 400 for references, 409. */
export async function submit(
  store: StoreContext,
  prepared: Prepared,
): Promise<Date | 'held' | undefined> {
  const { write, references } = prepared
  const { resourceType: type } = prepared.resource
  // A statement behind the writes checks them, before the writes are answered.
  store.deferred?.push(...references)
  const rows = await store.submit(write).catch((error: unknown) => {
    const isSecond = error instanceof SqlError && error.constraint === 'unique_key_pkey'
    throw isSecond ? conflict(`${type} with this value already exists`) : error
  })
  if (rows.some(({ target }) => target === ACCOUNT_PATIENT)) return 'held'
  const missing = rows.flatMap(({ target }) => target ?? [])
  if (missing.length > 0) {
    throw invalidReferences(missing.map((place) => references[place]?.path ?? type))
  }
  if (rows.some(({ hasEvents }) => hasEvents)) store.announce()
  if (rows.length === 0) return undefined
  for (const { p, k } of write.rows?.codes ?? []) store.seenCodes.add(p ^ k)
  const { project, parts } = write
  for (const { part, row } of parts) await store.written(part, { project, row })
  return rows[0]?.lu ?? undefined
}

/** Caches the written version, so that its next change skips the read. */
export function toWriteResult(
  { recent }: StoreContext,
  { write, resource }: Prepared,
  id: string,
  { lastUpdated, outcome }: Pick<WriteResult, 'lastUpdated' | 'outcome'>,
): WriteResult {
  const { project, ver, metaAt, metaExtension } = write
  const content = write.head + timeText(lastUpdated) + write.tail
  recent?.keep({
    ...{ project, type: write.type, id: write.id, ver, lu: lastUpdated, content },
    ...{ meta_at: metaAt, meta_ext: metaExtension },
  })
  return {
    type: resource.resourceType,
    id,
    ver,
    lastUpdated,
    content,
    metaAt,
    metaExtension,
    outcome,
  }
}

/** True when the row or one of its ids exists. */
export function isTaken(error: unknown): boolean {
  return (
    error instanceof SqlError &&
    /^(version|resource|idx_string|idx_range)_pkey$/.test(error.constraint ?? '')
  )
}
