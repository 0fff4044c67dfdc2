/** Admission of runs to their queues, and their lanes. */
import { LRUCache } from 'lru-cache'
import { HttpError, tooManyRequests, unavailable } from '../core/errors.ts'
import { presenceKeys } from '../redis/presence.ts'
import type { Redis } from '../redis/redis.ts'
import { NOW, runScript, script } from '../redis/script.ts'
import type { BotQueue, ExecuteJob } from './jobs.ts'
import { keys } from './jobs.ts'

/** Runs are remembered this long beyond their deadline. */
export const SLACK_MS = 60_000
/** Events are never rejected; a number that Lua can represent. */
const ENDLESS = 1e15
const PROJECTS = 10_000
/** A project idle for this long starts again in lane 0. */
const FORGET_MS = 2000
const LANE_0 = 8

/**
 * KEYS flight, workers, seen; ARGV max in flight, durable (1: may wait for a worker indefinitely), then runId and ms to
 * remember for each run. Returns for each run the number of runs in flight, or -1 beyond the limit; -2 for all when no
 * worker was live for a minute.
 */
const ADMIT = script(`${NOW}
local counts = {}
local isDead = ARGV[2] == '0' and redis.call('ZCOUNT', KEYS[2], now, '+inf') == 0
  and redis.call('EXISTS', KEYS[3]) == 0
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local count = redis.call('ZCARD', KEYS[1])
for i = 3, #ARGV, 2 do
  if isDead then table.insert(counts, -2)
  elseif count >= tonumber(ARGV[1]) then table.insert(counts, -1)
  else
    count = count + redis.call('ZADD', KEYS[1], now + tonumber(ARGV[i + 1]), ARGV[i])
    table.insert(counts, count)
  end
end
return counts`)

export interface Admission {
  /** Errors: 429 backlog, 503 no worker. */
  admit(name: BotQueue, job: ExecuteJob, durable: boolean): Admitted
}

export interface Admitted {
  /** BullMQ priority for fairness: a project with 8, 16, 32, … runs in flight adds to lane 1, 2, 3, … */
  readonly lane: number
  readonly counted: Promise<void>
}

interface Batch {
  readonly values: (string | number)[]
  size: number
  readonly counts: Promise<unknown>
}

interface Project {
  /** Runs in flight at the last count by Redis. */
  inFlight: number
  uncounted: number
  lane: number
}

export function createAdmission(redis: Redis, backlogMax: number): Admission {
  const batches = new Map<string, Batch>()
  const projects = new LRUCache<string, Project>({ max: PROJECTS, ttl: FORGET_MS })

  function joinBatch(name: BotQueue, projectId: string, most: number, durable: boolean): Batch {
    const key = `${name} ${projectId} ${most} ${durable}`
    const open = batches.get(key)
    if (open !== undefined) return open
    const { promise: full, resolve: send } = Promise.withResolvers<void>()
    const values: (string | number)[] = [most, durable ? 1 : 0]
    const names = [
      keys.flight(name, projectId),
      presenceKeys.workers(name),
      presenceKeys.seen(name),
    ]
    const batch = {
      values,
      size: 0,
      counts: full.then(() => runScript(redis, ADMIT, names, values)),
    }
    batches.set(key, batch)
    setImmediate(() => {
      batches.delete(key)
      send()
    })
    return batch
  }

  return {
    admit(name, job, durable) {
      const key = `${name} ${job.projectId}`
      const project = projects.get(key) ?? { inFlight: 0, uncounted: 0, lane: 0 }
      projects.set(key, project)
      project.lane = nextLane(project.lane, project.inFlight + project.uncounted)
      const most = job.class === 'event' ? ENDLESS : backlogMax
      const batch = joinBatch(name, job.projectId, most, durable)
      batch.values.push(job.runId, job.deadline - Date.now() + SLACK_MS)
      const place = batch.size++
      project.uncounted++
      const counted = batch.counts.then(
        (counts) => {
          project.uncounted--
          const count = Array.isArray(counts) ? Number(counts[place]) : Number.NaN
          if (!(count >= 0)) throw count === -1 ? backlogFull() : unavailable('Queue')
          project.inFlight = count
        },
        (error: unknown) => {
          project.uncounted--
          throw error
        },
      )
      return { lane: project.lane, counted }
    },
  }
}

/** A project leaves a lane at half its threshold, otherwise later runs would overtake its earlier ones. */
function nextLane(before: number, count: number): number {
  let lane = count === 0 ? 0 : before
  while (count >= LANE_0 * 2 ** lane) lane++
  while (lane > 0 && count < LANE_0 * 2 ** (lane - 2)) lane--
  return lane
}

/** 429; from `t=3` on the SDK reports the error instead of retrying at once. */
function backlogFull(): HttpError {
  const seconds = 5
  const { outcome, headers } = tooManyRequests(seconds)
  return new HttpError(429, outcome, {
    headers: { ...headers, RateLimit: `"bots";r=0;t=${seconds}` },
  })
}
