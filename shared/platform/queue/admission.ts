/** Whether a run may join the queue, and how far back its project stands (`lane`, BullMQ's priority). */
import { HttpError, tooManyRequests, unavailable } from '../../errors.ts'
import type { Redis } from '../redis/redis.ts'
import type { BotQueue, ExecuteJob } from './jobs.ts'
import { ADMIT, keys, runScript } from './scripts.ts'

export const LEASE_SLACK_MS = 60_000
/** Events are never refused; as a number that Lua takes. */
const ENDLESS = 1e15

export interface Admission {
  /** Counts the run and answers its lane. Errors: 429 backlog, 503 no worker. */
  admit(name: BotQueue, job: ExecuteJob, durable: boolean): Promise<number>
  /** Counts the run and adds it to `bots-sync` in the same step, where it is admitted. Errors: as `admit`. */
  enter(job: ExecuteJob, durable: boolean): Promise<void>
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
    const values: (string | number)[] = [most, durable ? 1 : 0, keys.queue(name, ''), Date.now()]
    const names = [
      keys.flight(name, projectId),
      keys.workers(name),
      keys.lane(name, projectId),
      keys.seen(name),
      ...['wait', 'prioritized', 'pc', 'marker'].map((part) => keys.queue(name, part)),
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

  /** `data` is the job's, '' where it is added later. */
  function join(name: BotQueue, job: ExecuteJob, durable: boolean, data: string): Promise<number> {
    const most = job.class === 'event' ? ENDLESS : backlogMax
    const batch = batchOf(name, job.projectId, most, durable)
    batch.values.push(job.runId, job.deadline - Date.now() + LEASE_SLACK_MS, data)
    return laneOf(batch, batch.size++)
  }

  async function laneOf({ lanes }: Batch, at: number): Promise<number> {
    const answers = await lanes
    const lane = Array.isArray(answers) ? Number(answers[at]) : Number.NaN
    if (lane >= 0) return lane
    throw lane === -1 ? backlogFull() : unavailable('Queue')
  }

  return {
    admit: (name, job, durable) => join(name, job, durable, ''),
    enter: async (job, durable) =>
      void (await join('bots-sync', job, durable, JSON.stringify(job))),
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
