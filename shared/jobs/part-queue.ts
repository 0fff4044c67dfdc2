/**
 * Queues of the parts of bulk jobs in PostgreSQL. A worker leases a part of the Project with the fewest running ones and
 * renews the lease; after a crash another worker continues the part.
 */
import { LeaseLost } from '../core/errors.ts'
import {
  endLease,
  isLeased,
  type Lease,
  type LeaseTable,
  leaseEnd,
  leaseNext,
  leaseValues,
  type NextLease,
} from '../postgres/leases.ts'
import { type Connection, hasRows } from '../postgres/statement.ts'
import type { Services } from '../request/services.ts'
import { type Loop, type LoopOptions, startLoop, withLease } from './loop.ts'

/** Parts have columns `job`, `state` and `lease`. */
export interface PartTable extends LeaseTable {
  readonly jobs: string
  /** SQL: the job `j` has not ended. */
  readonly isOpen: string
  /** SQL: a worker has the part `a`. */
  readonly isRunning: string
  /** SQL: the assignments at a release, where the attempt counts as failed and where it does not count. */
  readonly failed: string
  readonly uncounted: string
}

/** Leases the first free part `x` of a job `j` that meets a condition. */
export async function leasePart<Row>(
  connection: Connection,
  table: PartTable,
  { where, orderBy, ...next }: NextLease,
): Promise<(Row & Pick<Lease, 'token'>) | undefined> {
  return await leaseNext<Row>(connection, table, {
    ...next,
    join: `join ${table.jobs} j on j.id = x.job`,
    where: `${table.isOpen} and ${where}`,
    orderBy: `(select count(*) from ${table.name} a join ${table.jobs} b on b.id = a.job
      where b.project = j.project and ${table.isRunning}), ${orderBy}`,
  })
}

/** SQL: true for an unfinished part with this lease. The lease values are the first parameters. */
export function isHeld(table: PartTable, row: string): string {
  return `${isLeased(table, row)} and ${row}.state <> 'done'`
}

/** False when the lease is lost or the job has ended. Extends it anyway, so that no files are removed during an upload. */
export async function renewPart(
  connection: Connection,
  table: PartTable,
  lease: Lease,
): Promise<boolean> {
  const [row] = await connection.query<{ isOpen: boolean }>({
    name: `${table.name}-renew`,
    isMaintenance: true,
    text: `update ${table.name} p set ${table.expiresAt} = ${leaseEnd(table)}
      from ${table.jobs} j where j.id = p.job and ${isHeld(table, 'p')}
      returning ${table.isOpen} as "isOpen"`,
    values: leaseValues(lease),
  })
  return row?.isOpen === true
}

export interface Release {
  /** Time until a worker may lease the part again. */
  readonly pauseMs: number
  readonly isFailed: boolean
}

/** Unless it has ended or another worker has it. */
export async function releasePart(
  connection: Connection,
  table: PartTable,
  lease: Lease,
  { pauseMs, isFailed }: Release,
): Promise<void> {
  await connection.query({
    name: `${table.name}-release-${isFailed ? 'failed' : 'uncounted'}`,
    text: `update ${table.name} p set ${isFailed ? table.failed : table.uncounted}, ${endLease(table, 'p')},
        ${table.expiresAt} = clock_timestamp() + $4::float8 * interval '1 ms'
      where ${isHeld(table, 'p')}`,
    values: [...leaseValues(lease), pauseMs],
  })
}

/** SQL: ends a held part `p`. */
export function endPartSql(table: PartTable): string {
  return `update ${table.name} p set state = 'done', lease = null where ${isHeld(table, 'p')} returning p.job`
}

/** False when the lease is lost. */
export async function endPart(
  connection: Connection,
  table: PartTable,
  lease: Lease,
): Promise<boolean> {
  const [name, text] = [`${table.name}-end`, endPartSql(table)]
  return await hasRows(connection, { name, text, values: leaseValues(lease) })
}

interface PartQueue<Part> extends Omit<LoopOptions, 'log'> {
  readonly table: PartTable
  toLease(part: Part): Lease
  /** False to start no part now; default true. */
  mayStart?(lane: number): boolean
  /** Returns undefined if no part is free. */
  next(connection: Connection): Promise<Part | undefined>
  /** Continues a part to its end. Errors: LeaseLost, or the reason of `signal`, to leave it to another worker. */
  run(part: Part, signal: AbortSignal): Promise<void>
  /** Ends the part, or returns when to continue it. */
  afterFailure(part: Part, error: unknown): Promise<Release | undefined>
  /** Runs in the first lane while no part is free. Returns true when there is more to do. */
  whileIdle(): Promise<boolean>
}

export const RELEASE: Release = { pauseMs: 0, isFailed: false }

/** `stop` aborts running parts and releases them. */
export function startPartQueue<Part>(
  { database, log }: Services,
  queue: PartQueue<Part>,
): Pick<Loop, 'wake' | 'stop'> {
  const { table } = queue
  const everyMs = table.leaseMs / 3
  const loop = startLoop({ ...queue, log }, async (stopping, lane) => {
    if (queue.mayStart?.(lane) === false) return false
    const part = await queue.next(database)
    if (part === undefined) return lane === 0 && (await queue.whileIdle())
    // More parts may be free.
    loop.wake()
    const lease = queue.toLease(part)
    const renew = () => renewPart(database, table, lease)
    await withLease({ log, everyMs, renew }, stopping, async (signal) => {
      const release = await queue.run(part, signal).then(
        () => undefined,
        (error: unknown) => {
          const isLeft = signal.aborted || error instanceof LeaseLost
          return isLeft ? RELEASE : queue.afterFailure(part, error)
        },
      )
      if (release !== undefined) await releasePart(database, table, lease, release)
    })
    return true
  })
  return loop
}
