/**
 * Takes parts of exports, a few at a time. PostgreSQL knows what is to be done; that somebody says so
 * through Redis only spares the time until the next look.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { endExport } from '../../../shared/bulk/exports/announce.ts'
import { memberOf } from '../../../shared/bulk/exports/member.ts'
import { failExport } from '../../../shared/bulk/exports/rows/jobs.ts'
import {
  releasePart,
  renewLease,
  type TakenPart,
  takePart,
} from '../../../shared/bulk/exports/rows/parts.ts'
import { giveUp } from '../../../shared/bulk/exports/status.ts'
import { HttpError } from '../../../shared/errors.ts'
import { openCopySessions } from '../../../shared/platform/postgres/copy.ts'
import type { Services } from '../../../shared/services.ts'
import { createBlocks } from './block.ts'
import type { ExportMetrics } from './metrics.ts'
import { createPace } from './pace.ts'
import { GivenUp, runPart } from './part.ts'
import { sweepExport } from './sweep.ts'
import { type Exporting, LeaseLost } from './writer.ts'

const AT_ONCE = 2
const LOOK_MS = 2000
const RENEW_MS = 10_000
/** So often a part may throw, and lose its worker, before its export is given up. */
const MOST_FAILURES = 3
const MOST_TRIES = 10
const PAUSE_MS = 1000

export interface ExportRuns {
  /** There may be parts to be taken. */
  wake(): void
  /** Parts under way are left for other workers, behind their last block. */
  stop(): Promise<void>
}

export function startExports(
  services: Services,
  metrics: ExportMetrics,
  isBusy: () => boolean,
): ExportRuns {
  const stopping = new AbortController()
  const copies = openCopySessions(services.database)
  const blocks = createBlocks(services.config.exportCompressionLevel)
  const pace = createPace(isBusy)
  let wakes: (() => void)[] = []
  let woken = 0
  const wake = () => {
    woken += 1
    for (const resolve of wakes) resolve()
    wakes = []
  }
  const exporting: Exporting = { ...services, metrics, copies, blocks, pace, wake }
  const { signal } = stopping

  /** Until somebody wakes it, or for a while. */
  async function rest(seen: number): Promise<void> {
    if (seen !== woken || signal.aborted) return
    blocks.clear()
    const { promise, resolve } = Promise.withResolvers<void>()
    wakes.push(resolve)
    const timer = setTimeout(resolve, LOOK_MS)
    await promise
    clearTimeout(timer)
  }

  async function loop(isFirst: boolean): Promise<void> {
    while (!signal.aborted) {
      const seen = woken
      const isWorking =
        (isFirst || !pace.isAwaited()) &&
        (await work(exporting, signal).catch((error: Error) => {
          // That PostgreSQL is away is said once, by its pool.
          const isAway = error instanceof HttpError && error.status === 503
          services.log[isAway ? 'debug' : 'warn']({ reason: error.message }, 'Exports failed')
          return false
        }))
      if (!isWorking) await rest(seen)
    }
  }

  const loops = Array.from({ length: AT_ONCE }, (_, i) => loop(i === 0))
  return {
    wake,
    async stop() {
      stopping.abort(new Error('The worker stops'))
      wake()
      await Promise.all(loops)
      await copies.close()
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
  const lost = new AbortController()
  const signal = AbortSignal.any([stopping, lost.signal])
  const renewing = setInterval(() => {
    renewLease(database, job.id, part).then(
      (isHeld) => isHeld || lost.abort(new LeaseLost()),
      (error: Error) => log.debug({ reason: error.message }, 'A lease was not renewed'),
    )
  }, RENEW_MS)
  try {
    if (part.tries > MOST_TRIES) throw new Error('It has lost its worker again and again')
    const principal = await memberOf(services, job.input)
    if (principal !== undefined) return await runPart(services, principal, taken, signal)
    await giveUp(services, job)
  } catch (error) {
    await settle(services, taken, error, stopping.aborted)
  } finally {
    clearInterval(renewing)
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
