/** Whether a run may join the queue, and how far back its project stands (`lane`, BullMQ's priority). */
import { LRUCache } from 'lru-cache'
import { HttpError, tooManyRequests, unavailable } from '../../errors.ts'
import type { Redis } from '../redis/redis.ts'
import type { BotQueue, ExecuteJob } from './jobs.ts'
import { ADMIT, keys, runScript } from './scripts.ts'

export const LEASE_SLACK_MS = 60_000
const FRESH_MS = 1000
const PROJECTS = 10_000
/** Runs in flight of a project in lane 1; each lane holds twice as many (scripts.ts). */
const FIRST_LANE = 8
/** Events are never refused; as a number that Lua takes. */
const ENDLESS = 1e15

export interface Admission {
  /** Counts the run and answers its lane. Errors: 429 backlog, 503 no worker. */
  admit(name: BotQueue, job: ExecuteJob, durable: boolean): Promise<number>
  /**
   * The same for a run of `bots-sync`. If the project was far from its backlog a moment ago, its lane of then
   * is good enough to add the job right behind its admission, which saves a round trip.
   */
  enter(job: ExecuteJob, durable: boolean): Promise<Entry>
}

export interface Entry {
  readonly lane: number
  /** Errors: as `admit`. */
  readonly admitted: Promise<number>
}

/** The runs of a project in one turn of the event loop: one command, before any of their jobs. */
interface Batch {
  readonly values: (string | number)[]
  size: number
  readonly sent: Promise<void>
  readonly lanes: Promise<unknown>
}

export function createAdmission(redis: Redis, backlogMax: number): Admission {
  const recent = createRecentLanes(backlogMax)
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
    const batch = { values, size: 0, sent, lanes }
    batches.set(key, batch)
    setImmediate(() => {
      batches.delete(key)
      send()
    })
    return batch
  }

  function join(name: BotQueue, job: ExecuteJob, durable: boolean) {
    const most = job.class === 'event' ? ENDLESS : backlogMax
    const batch = batchOf(name, job.projectId, most, durable)
    batch.values.push(job.runId, job.deadline - Date.now() + LEASE_SLACK_MS)
    return { sent: batch.sent, admitted: laneOf(batch, batch.size++, name, job) }
  }

  async function laneOf({ lanes }: Batch, at: number, name: BotQueue, { projectId }: ExecuteJob) {
    const answers = await lanes
    const lane = Array.isArray(answers) ? Number(answers[at]) : Number.NaN
    if (lane >= 0) {
      if (name === 'bots-sync') recent.set(projectId, lane)
      return lane
    }
    recent.delete(projectId)
    throw lane === -1 ? backlogFull() : unavailable('Queue')
  }

  return {
    admit: (name, job, durable) => join(name, job, durable).admitted,
    async enter(job, durable) {
      const lane = recent.next(job.projectId)
      const { sent, admitted } = join('bots-sync', job, durable)
      if (lane === undefined) return { lane: await admitted, admitted }
      // Its caller may fail before it looks.
      admitted.catch(() => undefined)
      await sent
      return { lane, admitted }
    },
  }
}

/** The lanes that projects had a moment ago, as long as those are far from the backlog. */
function createRecentLanes(backlogMax: number) {
  const known = new LRUCache<string, { readonly lane: number; ahead: number }>({
    max: PROJECTS,
    ttl: FRESH_MS,
  })
  return {
    set: (projectId: string, lane: number) => void known.set(projectId, { lane, ahead: 0 }),
    delete: (projectId: string) => void known.delete(projectId),
    /** The lane of one more run; undefined: its admission has to be awaited. */
    next(projectId: string): number | undefined {
      const recent = known.get(projectId)
      if (recent === undefined) return undefined
      const size = FIRST_LANE * 2 ** recent.lane
      // A burst that outruns the answers would all be in one lane.
      if (2 * size >= backlogMax || ++recent.ahead > size) return undefined
      return recent.lane
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
