/**
 * Takes parts of exports, a few at a time. PostgreSQL knows what is to be done; that somebody says so
 * through Redis only spares the time until the next look.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { endExport } from '../../../shared/bulk/exports/announce.ts'
import { blockKey, fileKey } from '../../../shared/bulk/exports/file.ts'
import {
  endedExport,
  markSwept,
  wholeFiles,
  writtenBlocks,
} from '../../../shared/bulk/exports/rows/files.ts'
import { failExport } from '../../../shared/bulk/exports/rows/jobs.ts'
import {
  PARTS,
  postponePart,
  releasePart,
  renewLease,
  type TakenPart,
  takePart,
} from '../../../shared/bulk/exports/rows/parts.ts'
import { giveUp, memberOf } from '../../../shared/bulk/exports/status.ts'
import { type CopySessions, openCopySessions } from '../../../shared/platform/postgres/copy.ts'
import type { Services } from '../../../shared/services.ts'
import { backoffMs, isAway, LeaseLost, type Loop, startLoop, whileLeased } from '../../loop.ts'
import { createBlocks, createPace } from './block.ts'
import type { ExportMetrics } from './metrics.ts'
import { GivenUp, runPart } from './part.ts'
import { type Exporting, mostUnderWay } from './writer.ts'

const AT_ONCE = 2
const LOOK_MS = 2000
const RENEW_MS = PARTS.leaseMs / 3
/** So often a part may throw, and lose its worker, before its export is given up. */
const MOST_FAILURES = 3
const MOST_TRIES = 10
const PAUSE_MS = 1000
/** An export waits for PostgreSQL and the storage for a day, and looks at least so often. */
const LONGEST_OUTAGE_MS = 24 * 3_600_000
const LONGEST_PAUSE_MS = 300_000
/** How often each export has waited since this worker has ended a part of it. */
const waits = new LRUCache<string, number>({ max: 1000 })

/** `stop` leaves parts under way for other workers, behind their last block. */
export function startExports(
  services: Services,
  metrics: ExportMetrics,
  isBusy: () => boolean,
): Pick<Loop, 'wake' | 'stop'> {
  const { log } = services
  const copies = openSources(services)
  const blocks = createBlocks(services.config.exportCompressionLevel)
  const pace = createPace(isBusy)
  const exporting: Exporting = {
    ...services,
    metrics,
    copies,
    blocks,
    pace,
    wake: () => loop.wake(),
  }
  const loop = startLoop(
    { log, name: 'Exports', everyMs: LOOK_MS, lanes: AT_ONCE, onRest: blocks.clear },
    async (signal, lane) => (lane === 0 || !pace.isAwaited()) && (await work(exporting, signal)),
  )
  return {
    wake: loop.wake,
    async stop() {
      await loop.stop()
      await copies.close()
    },
  }
}

/** Sessions on the primary, and on a replica once that has all that was there when a part was begun. */
function openSources({ database, replicas }: Services): Exporting['copies'] {
  const primary = openCopySessions(database)
  const there = new Map(replicas?.all.map((one) => [one, openCopySessions(one.database)]))
  return {
    async open(signal, isBegun) {
      const replica = isBegun ? undefined : await replicas?.caughtUp()
      const sessions = replica && there.get(replica)
      if (replica === undefined || sessions === undefined) return await primary.open(signal)
      try {
        return await sessions.open(signal)
      } catch {
        signal.throwIfAborted()
        replicas?.failed(replica)
        return await primary.open(signal)
      }
    },
    async close() {
      await Promise.all([primary, ...there.values()].map((one: CopySessions) => one.close()))
    },
  }
}

/** False when there was nothing to do. */
async function work(services: Exporting, stopping: AbortSignal): Promise<boolean> {
  return (await takeAndRun(services, stopping)) || (await sweepExport(services))
}

async function takeAndRun(services: Exporting, stopping: AbortSignal): Promise<boolean> {
  let taken = await takePart(services.database)
  if (taken === undefined) return false
  while (taken !== undefined) taken = await run(services, taken, stopping)
  return true
}

/** Answers what is to be run next, if something was taken with its end. */
async function run(
  services: Exporting,
  taken: TakenPart,
  stopping: AbortSignal,
): Promise<TakenPart | undefined> {
  const { database, log, metrics } = services
  const { job, part } = taken
  if (part.epoch > 1) metrics.retried()
  const lease = { log, everyMs: RENEW_MS, renew: () => renewLease(database, job.id, part) }
  try {
    if (part.tries > MOST_TRIES) throw new Error('It has lost its worker again and again')
    const principal = await memberOf(services, job.input)
    if (principal !== undefined) {
      const run = (signal: AbortSignal) => runPart(services, principal, taken, signal)
      const next = await whileLeased(lease, stopping, run)
      waits.delete(job.id)
      return next
    }
    await giveUp(services, job)
  } catch (error) {
    await settle(services, taken, error, stopping.aborted)
  }
  return undefined
}

async function settle(
  services: Services,
  { job, part }: TakenPart,
  error: unknown,
  isStopping: boolean,
): Promise<void> {
  const { database, config, log } = services
  if (error instanceof LeaseLost || isStopping) {
    return releasePart(database, job.id, part, false)
  }
  if (isAway(error) && Date.now() - Date.parse(String(job.requested)) < LONGEST_OUTAGE_MS) {
    return await postpone(services, { job, part }, error)
  }
  const isLast =
    error instanceof GivenUp || part.failures + 1 >= MOST_FAILURES || part.tries > MOST_TRIES
  log.error({ export: job.id, part: part.n, isLast, err: error }, 'A part of an export failed')
  if (isLast) {
    const failure =
      error instanceof GivenUp ? error.failure : { status: 500, text: 'The export failed' }
    await endExport(services, job, { status: 'error' }, (connection) =>
      failExport(connection, job.id, failure, config.exportTtlHours),
    )
    return
  }
  await delay(PAUSE_MS)
  await releasePart(database, job.id, part, true)
}

/** The part waits for room, or for what is away, longer each time; its tries are not counted. */
async function postpone({ database, log }: Services, { job, part }: TakenPart, cause: unknown) {
  const times = (waits.get(job.id) ?? 0) + 1
  waits.set(job.id, times)
  const pauseMs = backoffMs(times, PAUSE_MS, LONGEST_PAUSE_MS)
  const level = times === 1 ? 'warn' : 'debug'
  log[level]({ export: job.id, part: part.n, pauseMs, cause }, 'An export waits')
  await postponePart(database, job.id, part, pauseMs)
}

/** One export; false when there is none. */
export async function sweepExport({ database, storage, log }: Services): Promise<boolean> {
  const ended = await endedExport(database)
  if (ended === undefined) return false
  const { id, projectId } = ended
  for (const { part, kind, epoch, last } of await writtenBlocks(database, id)) {
    // A worker that died may have stored a few more than it could write down.
    for (let seq = 0; seq <= last + mostUnderWay(kind); seq++) {
      await storage.delete(blockKey(projectId, { job: id, part, epoch, seq }))
    }
  }
  for (const { part, seq } of await wholeFiles(database, id)) {
    await storage.delete(fileKey(projectId, id, part, seq))
  }
  await markSwept(database, id)
  log.info({ export: id }, 'The files of an export are gone')
  return true
}
