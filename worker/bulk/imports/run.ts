/**
 * Imports: PostgreSQL knows what is left of each, Redis only wakes. A worker takes one part after the
 * other, and gives back what it does not end; what a dead one had is taken when its lease is over.
 */

import { removeOldImports } from '../../../shared/bulk/imports/imports.ts'
import { isRefusal } from '../../../shared/bulk/imports/lines.ts'
import {
  hasWaitingPart,
  releasePart,
  renewLease,
  type TakenPart,
  takePart,
} from '../../../shared/bulk/imports/parts.ts'
import { lineFailure, PartLost } from '../../../shared/bulk/imports/writes.ts'
import { waits } from '../../../shared/config/waits.ts'
import { HttpError } from '../../../shared/errors.ts'
import type { Services } from '../../../shared/services.ts'
import { finishManifest, finishPart } from './end.ts'
import { readManifest } from './manifest.ts'
import { importPart, PartTooEarly, type Spare } from './part.ts'
import { unreadable } from './source.ts'

/** More would only share the same processor. */
export const IMPORTS_AT_ONCE = 2
const RENEW_MS = 5000
/** So often a source may fail, or we, without a line in between. */
const SOURCE_ATTEMPTS = 4
const ATTEMPTS = 12
const LONGEST_PAUSE_MS = 60_000

export interface Imports {
  /** Takes parts, several at a time, until none is waiting. */
  drain(): Promise<void>
  /** What runs is given back at the end of its batches. */
  stop(): Promise<void>
}

/** `sweepMs`: so often it looks for parts that nobody told it of. */
export function startImports(services: Services, sweepMs = waits.sweepMs / 2): Imports {
  const { database, config, log } = services
  const stopping = new AbortController()
  const draining = new Set<Promise<void>>()
  const spare: Spare = { plans: [], blocks: [] }
  let asked = 0

  async function run(): Promise<void> {
    while (!stopping.signal.aborted) {
      const seen = asked
      const part = await takePart(database)
      if (part !== undefined) {
        // Where there was one there may be more.
        drain().catch(noteFailure)
        await runPart(services, spare, part, stopping.signal)
      } else if (seen === asked) return
    }
  }

  async function drain(): Promise<void> {
    // Those at work look again before they end.
    asked += 1
    if (draining.size >= IMPORTS_AT_ONCE) return
    const work = run().finally(() => {
      draining.delete(work)
      if (draining.size > 0) return
      spare.plans.length = 0
      spare.blocks.length = 0
    })
    draining.add(work)
    await work
  }

  const sweep = async () => {
    await removeOldImports(database, config.exportTtlHours)
    if (await hasWaitingPart(database)) await drain()
  }
  // An outage of PostgreSQL is told by those who wait for it, and the next sweep takes what is left.
  const noteFailure = ({ message: reason }: Error) => log.debug({ reason }, 'Imports rest')
  const timer = setInterval(() => void sweep().catch(noteFailure), sweepMs)

  return {
    drain,
    async stop() {
      stopping.abort()
      clearInterval(timer)
      await Promise.allSettled(draining)
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
  const lost = new AbortController()
  const signal = AbortSignal.any([stop, lost.signal])
  const renewing = setInterval(() => {
    renewLease(database, part)
      .then((isOurs) => isOurs || lost.abort())
      .catch((error: Error) => log.debug({ job, reason: error.message }, 'Renewal of a lease'))
  }, RENEW_MS)
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
  } finally {
    clearInterval(renewing)
  }
}

async function afterFailure(services: Services, part: TakenPart, error: unknown): Promise<void> {
  const { database, log } = services
  const { job, part: number, attempts, nextLine } = part
  if (error instanceof PartLost) return
  const isOurs = error instanceof HttpError && error.status >= 500
  const isLast = attempts >= (isOurs ? ATTEMPTS : SOURCE_ATTEMPTS)
  log.warn({ job, part: number, attempts, isLast, cause: error }, 'An import was interrupted')
  if (!isLast && !isRefusal(error)) {
    const pauseMs = Math.min(waits.retryMs * 2 ** (attempts - 1), LONGEST_PAUSE_MS)
    return await releasePart(database, part, pauseMs)
  }
  const refusal = isRefusal(error) ? error : unreadable(error)
  await finishPart(services, part, { line: nextLine, outcome: lineFailure(nextLine, refusal) })
}
