/**
 * Takes parts of exports, a few at a time. PostgreSQL knows what is to be done; that somebody says so
 * through Redis only spares the time until the next look.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { memberOf } from '../../shared/api/exports/member.ts'
import { REVOKED } from '../../shared/api/exports/status.ts'
import { HttpError } from '../../shared/errors.ts'
import type { Services } from '../../shared/services.ts'
import { failExport, revokeExport } from '../../shared/store/exports/jobs.ts'
import {
  releasePart,
  renewLease,
  type TakenPart,
  takePart,
} from '../../shared/store/exports/parts.ts'
import { runPart } from './part.ts'
import { sweepExport } from './sweep.ts'
import { LeaseLost } from './writer.ts'

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

export function startExports(services: Services): ExportRuns {
  const stopping = new AbortController()
  const { signal } = stopping
  let wakes: (() => void)[] = []
  let woken = 0

  /** Until somebody wakes it, or for a while. */
  async function rest(seen: number): Promise<void> {
    if (seen !== woken || signal.aborted) return
    const { promise, resolve } = Promise.withResolvers<void>()
    wakes.push(resolve)
    const timer = setTimeout(resolve, LOOK_MS)
    await promise
    clearTimeout(timer)
  }

  async function loop(): Promise<void> {
    while (!signal.aborted) {
      const seen = woken
      const isBusy = await work(services, signal).catch((error: Error) => {
        // That PostgreSQL is away is said once, by its pool.
        const isAway = error instanceof HttpError && error.status === 503
        services.log[isAway ? 'debug' : 'warn']({ reason: error.message }, 'Exports failed')
        return false
      })
      if (!isBusy) await rest(seen)
    }
  }

  const wake = () => {
    woken += 1
    for (const resolve of wakes) resolve()
    wakes = []
  }
  const loops = Array.from({ length: AT_ONCE }, loop)
  return {
    wake,
    async stop() {
      stopping.abort(new Error('The worker stops'))
      wake()
      await Promise.all(loops)
    },
  }
}

/** False when there was nothing to do. */
async function work(services: Services, stopping: AbortSignal): Promise<boolean> {
  return (await takeAndRun(services, stopping)) || (await sweepExport(services))
}

async function takeAndRun(services: Services, stopping: AbortSignal): Promise<boolean> {
  const { database, log } = services
  const taken = await takePart(database)
  if (taken === undefined) return false
  const { job, part } = taken
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
    if (principal === undefined) await revokeExport(database, job.id, REVOKED)
    else await runPart(services, principal, taken, signal)
  } catch (error) {
    await settle(services, taken, error, stopping.aborted)
  } finally {
    clearInterval(renewing)
  }
  return true
}

async function settle(
  { database, config, log }: Services,
  { job, part }: TakenPart,
  error: unknown,
  isStopping: boolean,
): Promise<void> {
  if (error instanceof LeaseLost || isStopping) {
    return releasePart(database, job.id, part, false)
  }
  const isLast = part.failures + 1 >= MOST_FAILURES || part.tries > MOST_TRIES
  log.error({ export: job.id, part: part.n, isLast, err: error }, 'A part of an export failed')
  if (isLast) {
    const failure = { status: 500, text: 'The export failed' }
    await failExport(database, job.id, failure, config.exportTtlHours)
    return
  }
  await delay(PAUSE_MS)
  await releasePart(database, job.id, part, true)
}
