/** Admission of runs to their queues, and their lanes. */
import { batchPerTick } from '../core/batching.ts'
import { Cache } from '../core/cache.ts'
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

export type Admission = ReturnType<typeof createAdmission>

interface Admitted {
  /** BullMQ priority for fairness: a project with 8, 16, 32, … runs in flight adds to lane 1, 2, 3, … */
  readonly lane: number
  /** Far from the backlog's limit at the last count: the run may be added before it is counted. */
  readonly isSure: boolean
  readonly counted: Promise<void>
}

interface Entry {
  readonly name: BotQueue
  readonly job: ExecuteJob
  readonly most: number
  readonly durable: boolean
}

interface Project {
  /** Runs in flight at the last count by Redis. */
  inFlight: number
  uncounted: number
  lane: number
  lastAt: number
}

export function createAdmission(redis: Redis, backlogMax: number) {
  /** The runs of a project in one turn of the event loop are one command. */
  const count = batchPerTick<Entry, unknown>(
    (entries) => countEntries(redis, entries),
    ({ name, job, most, durable }) => `${name} ${job.projectId} ${most} ${durable}`,
  )
  const projects = new Cache<string, Project>({ name: 'lanes', max: 10_000 })

  return {
    /** Errors, of the count: 429 backlog, 503 no worker. */
    admit(name: BotQueue, job: ExecuteJob, durable: boolean): Admitted {
      const key = `${name} ${job.projectId}`
      const now = Date.now()
      const found = projects.get(key)
      const known = found !== undefined && now - found.lastAt < FORGET_MS ? found : undefined
      const project = known ?? { inFlight: 0, uncounted: 0, lane: 0, lastAt: now }
      if (known === undefined) projects.set(key, project)
      project.lastAt = now
      const isSure =
        known !== undefined && known.inFlight + known.uncounted < Math.floor(backlogMax / 2)
      project.lane = nextLane(project.lane, project.inFlight + project.uncounted)
      const most = job.class === 'event' ? ENDLESS : backlogMax
      project.uncounted++
      const counted = count({ name, job, most, durable })
        .finally(() => project.uncounted--)
        .then((answer) => {
          const count = Number(answer)
          // A full backlog: the next runs are counted before they are added.
          if (count === -1) project.inFlight = backlogMax
          if (!(count >= 0)) throw count === -1 ? backlogFull() : unavailable('Queue')
          project.inFlight = count
        })
      return { lane: project.lane, isSure, counted }
    },
  }
}

/** `entries` differ in their runs alone. */
async function countEntries(redis: Redis, entries: readonly Entry[]): Promise<readonly unknown[]> {
  const [first] = entries
  if (first === undefined) return []
  const { name, job, most, durable } = first
  const counts = await runScript(
    redis,
    ADMIT,
    [keys.flight(name, job.projectId), presenceKeys.workers(name), presenceKeys.seen(name)],
    [
      most,
      durable ? 1 : 0,
      ...entries.flatMap(({ job }) => [job.runId, job.deadline - Date.now() + SLACK_MS]),
    ],
  )
  return Array.isArray(counts) ? counts : []
}

/**
 * A project leaves a lane only at half of the number that moved it there: with the plain number in flight, late runs
 * would overtake earlier ones of the same project whenever some finish.
 */
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
