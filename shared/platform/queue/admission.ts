/** Whether a run may join the queue, and how far back its project stands (`lane`, BullMQ's priority). */
import { HttpError, tooManyRequests, unavailable } from '../../errors.ts'
import type { Redis } from '../redis/redis.ts'
import type { BotQueue, ExecuteJob } from './jobs.ts'
import { ADMIT, keys, runScript } from './scripts.ts'

/** A run is remembered so long beyond its deadline. */
export const SLACK_MS = 60_000
/** Events are never refused; as a number that Lua takes. */
const ENDLESS = 1e15

export interface Admission {
  /** Counts the run and answers its lane. Errors: 429 backlog, 503 no worker. */
  admit(name: BotQueue, job: ExecuteJob, durable: boolean): Promise<number>
}

/** The runs of a project in one turn of the event loop: one command. */
interface Batch {
  readonly values: (string | number)[]
  size: number
  readonly lanes: Promise<unknown>
}

export function createAdmission(redis: Redis, backlogMax: number): Admission {
  const batches = new Map<string, Batch>()

  function batchOf(name: BotQueue, projectId: string, most: number, durable: boolean): Batch {
    const key = `${name} ${projectId} ${most} ${durable}`
    const known = batches.get(key)
    if (known !== undefined) return known
    const { promise: sent, resolve: send } = Promise.withResolvers<void>()
    const values: (string | number)[] = [most, durable ? 1 : 0]
    const names = [
      keys.flight(name, projectId),
      keys.workers(name),
      keys.lane(name, projectId),
      keys.seen(name),
    ]
    const lanes = sent.then(() => runScript(redis, ADMIT, names, values))
    const batch = { values, size: 0, lanes }
    batches.set(key, batch)
    setImmediate(() => {
      batches.delete(key)
      send()
    })
    return batch
  }

  return {
    async admit(name, job, durable) {
      const most = job.class === 'event' ? ENDLESS : backlogMax
      const batch = batchOf(name, job.projectId, most, durable)
      batch.values.push(job.runId, job.deadline - Date.now() + SLACK_MS)
      const place = batch.size++
      const lanes = await batch.lanes
      const lane = Array.isArray(lanes) ? Number(lanes[place]) : Number.NaN
      if (lane >= 0) return lane
      throw lane === -1 ? backlogFull() : unavailable('Queue')
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
