/**
 * Imports: PostgreSQL knows what is left of each, Redis only wakes. A worker takes one part after the
 * other, and gives back what it does not end; what a dead one had is taken when its lease is over.
 */

import { removeOldImports } from '../../../shared/bulk/imports/imports.ts'
import { isRefusal } from '../../../shared/bulk/imports/lines.ts'
import {
  releasePart,
  renewLease,
  type TakenPart,
  takePart,
} from '../../../shared/bulk/imports/parts.ts'
import { lineFailure, PartLost } from '../../../shared/bulk/imports/writes.ts'
import { waits } from '../../../shared/config/waits.ts'
import { HttpError } from '../../../shared/errors.ts'
import type { Services } from '../../../shared/services.ts'
import { backoffMs, type Loop, startLoop, whileLeased } from '../../loop.ts'
import { finishManifest, finishPart, importPart, PartTooEarly, type Spare } from './part.ts'
import { readManifest, unreadable } from './source.ts'

/** More would only share the same processor. */
const AT_ONCE = 2
const RENEW_MS = 5000
/** So often a source may fail, or we, without a line in between. */
const SOURCE_ATTEMPTS = 4
/** With the longest pause between two of them they last for a day. */
const ATTEMPTS = 300
const LONGEST_PAUSE_MS = 300_000

/** Looks for parts by a wake, and every `lookMs`; `stop` gives back what runs at the end of its batches. */
export function startImports(
  services: Services,
  lookMs = waits.sweepMs / 2,
): Pick<Loop, 'wake' | 'stop'> {
  const { database, config, log } = services
  const spare: Spare = { plans: [], blocks: [] }
  const onRest = (working: number) => {
    if (working > 0) return
    spare.plans.length = 0
    spare.blocks.length = 0
  }
  const options = { log, name: 'Imports', everyMs: lookMs, level: 'debug' } as const
  const loop = startLoop({ ...options, lanes: AT_ONCE, onRest }, async (signal) => {
    const part = await takePart(database)
    if (part === undefined) return false
    // Where there was one there may be more.
    loop.wake()
    await runPart(services, spare, part, signal)
    return true
  })
  const purging = startLoop({ ...options, name: 'Removal of old imports' }, async () => {
    await removeOldImports(database, config.exportTtlHours)
    return false
  })
  return {
    wake: loop.wake,
    async stop() {
      await Promise.all([loop.stop(), purging.stop()])
    },
  }
}

async function runPart(
  services: Services,
  spare: Spare,
  part: TakenPart,
  stop: AbortSignal,
): Promise<void> {
  const { database, config, log } = services
  const { job, part: number } = part
  const lease = { log, everyMs: RENEW_MS, renew: () => renewLease(database, part) }
  await whileLeased(lease, stop, async (signal) => {
    try {
      if (part.type === null) {
        const inputs = await readManifest(config, part.url, signal)
        await finishManifest(services, part, inputs)
      } else {
        await importPart(services, spare, part, signal)
      }
      if (signal.aborted) await releasePart(database, part, 0)
      log.info({ job, part: number, given: signal.aborted ? 'back' : 'up' }, 'A part of an import')
    } catch (error) {
      const isLeft = signal.aborted || error instanceof PartTooEarly
      if (isLeft) await releasePart(database, part, 0)
      else await afterFailure(services, part, error)
    }
  })
}

async function afterFailure(services: Services, part: TakenPart, error: unknown): Promise<void> {
  const { database, log } = services
  const { job, part: number, attempts, nextLine } = part
  if (error instanceof PartLost) return
  const isOurs = error instanceof HttpError && error.status >= 500
  const isLast = attempts >= (isOurs ? ATTEMPTS : SOURCE_ATTEMPTS)
  log.warn({ job, part: number, attempts, isLast, cause: error }, 'An import was interrupted')
  if (!isLast && !isRefusal(error)) {
    const pauseMs = backoffMs(attempts, waits.retryMs, LONGEST_PAUSE_MS)
    return await releasePart(database, part, pauseMs)
  }
  const refusal = isRefusal(error) ? error : unreadable(error)
  await finishPart(services, part, { line: nextLine, outcome: lineFailure(nextLine, refusal) })
}
