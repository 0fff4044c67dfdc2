/** Table maintenance for fast searches under load, and removal of unused storage content. */

import { removeOldDeadRuns } from '../../../shared/bots/dead-runs.ts'
import { deleteOldRuns } from '../../../shared/bots/run-records.ts'
import { removeOldExports } from '../../../shared/export/announce.ts'
import { removeOldJobs } from '../../../shared/jobs/async-requests.ts'
import { type Loop, startLoop } from '../../../shared/jobs/loop.ts'
import {
  analyzeGrown,
  cleanPendingKeys,
  STALE,
  vacuumGrown,
  writtenResources,
} from '../../../shared/jobs/upkeep/upkeep.ts'
import { sweepContents } from '../../../shared/request/binary/content.ts'
import type { Services } from '../../../shared/request/services.ts'
import { removeOldRequests } from '../../../shared/store/write/requests.ts'
import { removeOldDeliveries } from '../../../shared/subscriptions/state.ts'
import { removeOldWatches } from '../../../shared/subscriptions/store-socket-subscriptions.ts'
import { removeOldTopicEvents } from '../../../shared/subscriptions/store-topic-events.ts'

const EVERY_MS = 2000
/** Ticks between purges: stored replies by the thousand, content by the hundred. */
const FORGET_EVERY = 15
/** First tick of the hourly purge of old AsyncJobs, exports and unfinished uploads. */
const FIRST_PURGE = 30
const PURGE_EVERY = 1800
/** Above the longest upload. */
const ABANDONED_MS = 24 * 3600 * 1000
/** A smaller backlog does not affect searches. */
const MANY_ROWS = 500
/** Share of time for work on large tables: VACUUM next to a long read achieves nothing. */
const SHARE = 0.01

export function startTableUpkeep(services: Services): Loop {
  const { database, storage, log } = services
  let written = 0
  let ticks = 0
  const analyzeStale = throttled(() => analyzeGrown(database, STALE))
  const vacuum = throttled(() => vacuumGrown(database))

  async function tick(): Promise<boolean> {
    const now = await writtenResources(database)
    if (now - written > MANY_ROWS) {
      await cleanPendingKeys(database)
      written = now
    }
    ticks += 1
    if (ticks % PURGE_EVERY === FIRST_PURGE) {
      await removeOldJobs(services)
      await removeOldExports(services)
      // A bucket may forbid listing uploads; the rest goes on.
      await storage.removeAbandoned(new Date(Date.now() - ABANDONED_MS)).catch((error: Error) => {
        log.warn({ reason: error.message }, 'Uploads that were cut off could not be removed')
      })
    }
    await analyzeGrown(database)
    await analyzeStale()
    await vacuum()
    if (ticks % FORGET_EVERY !== 0) return false
    await removeOldRequests(database)
    await deleteOldRuns(services)
    await removeOldWatches(database)
    await removeOldDeliveries(database)
    await removeOldTopicEvents(database)
    await removeOldDeadRuns(database)
    await sweepContents(services)
    return false
  }

  return startLoop({ log, name: 'Upkeep of the tables', everyMs: EVERY_MS, level: 'debug' }, tick)
}

function throttled(work: () => Promise<unknown>): () => Promise<void> {
  let dueAt = 0
  return async () => {
    const start = performance.now()
    if (start < dueAt) return
    await work()
    const end = performance.now()
    dueAt = end + (end - start) / SHARE
  }
}
