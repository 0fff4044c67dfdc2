/** Whether a run may join the queue, and how far back its project stands (`lane`, BullMQ's priority). */
import { LRUCache } from 'lru-cache'
import { HttpError, tooManyRequests, unavailable } from './errors.ts'
import type { BotQueue, ExecuteJob } from './queue-jobs.ts'
import { ADMIT, keys, runScript } from './queue-scripts.ts'
import type { Redis } from './redis.ts'

export const LEASE_SLACK_MS = 60_000
const FRESH_MS = 1000
const PROJECTS = 10_000
/** Runs in flight of a project in lane 1; each lane holds twice as many (queue-scripts.ts). */
const FIRST_LANE = 8
/** Events are never refused; as a number that Lua takes. */
const ENDLESS = 1e15

export interface Admission {
  /** Counts the run and answers its lane. Errors: 429 backlog, 503 no worker. */
  admit(name: BotQueue, job: ExecuteJob, durable: boolean): Promise<number>
  /**
   * The lane that the project had a moment ago, if it was far from its backlog: good enough to add the
   * job together with its admission, which saves a round trip. Undefined: ask first.
   */
  recentLane(projectId: string): number | undefined
}

export function createAdmission(redis: Redis, backlogMax: number): Admission {
  const recent = new LRUCache<string, { readonly lane: number; ahead: number }>({
    max: PROJECTS,
    ttl: FRESH_MS,
  })
  return {
    async admit(name, job, durable) {
      const lease = job.deadline - Date.now() + LEASE_SLACK_MS
      const names = [
        keys.flight(name, job.projectId),
        keys.workers(name),
        keys.lane(name, job.projectId),
      ]
      const most = job.class === 'event' ? ENDLESS : backlogMax
      const lane = Number(
        await runScript(redis, ADMIT, names, [job.runId, lease, most, durable ? 1 : 0]),
      )
      if (lane >= 0) {
        if (name === 'bots-sync') recent.set(job.projectId, { lane, ahead: 0 })
        return lane
      }
      recent.delete(job.projectId)
      throw lane === -1 ? backlogFull() : unavailable('Queue')
    },
    recentLane(projectId) {
      const known = recent.get(projectId)
      if (known === undefined) return undefined
      const size = FIRST_LANE * 2 ** known.lane
      // A burst that outruns the answers would all be in one lane.
      if (2 * size >= backlogMax || ++known.ahead > size) return undefined
      return known.lane
    },
  }
}

/** 429; with `t` of at least 3 the SDK hands it to its caller instead of repeating at once. */
function backlogFull(): HttpError {
  const seconds = 5
  const { outcome, headers } = tooManyRequests(seconds)
  return new HttpError(429, outcome, {
    headers: { ...headers, RateLimit: `"bots";r=0;t=${seconds}` },
  })
}
