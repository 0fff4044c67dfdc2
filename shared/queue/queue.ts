/** The caller's end of the queues. Replies travel on one channel per web process: BullMQ's events lose finished jobs. */
import { createHash } from 'node:crypto'
import type { Queue } from 'bullmq'
import { batchPerTick } from '../core/batching.ts'
import type { Config } from '../core/config/config.ts'
import { badRequest, HttpError, unavailable } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import type { Bus } from '../redis/bus.ts'
import { type LiveWorkers, liveWorkers } from '../redis/presence.ts'
import type { Redis } from '../redis/redis.ts'
import { runScript, script } from '../redis/script.ts'
import { createAdmission, SLACK_MS } from './admission.ts'
import {
  BOT_QUEUES,
  type BotQueue,
  CANCEL,
  EXPORTS,
  type ExecuteJob,
  type ExecuteReply,
  type IMPORTS,
  INLINE_BYTES,
  keys,
} from './jobs.ts'
import { type Observation, observation } from './observation.ts'
import { openParts, type Parts } from './parts.ts'
import { openReplies, type Replies, type Waiter } from './replies.ts'

/**
 * KEYS reply, late; ARGV ms to keep the mark. Returns the reply, otherwise sets the mark: only one side writes the
 * AsyncJob.
 */
const LATE = script(`
local reply = redis.call('GET', KEYS[1])
if reply then return reply end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[1])
return false`)

interface Wait {
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  /** True for a caller that accepts a status URL: its run may wait for a worker. */
  readonly mayBeLate?: boolean
}

export interface Queues extends Observation, LiveWorkers {
  /** Identifies the Redis instance that knows the job. */
  readonly home: string
  /** Adds a run and waits for its reply; undefined after `waitMs`. Errors: 429 backlog, 503 no worker or no Redis. */
  execute(job: ExecuteJob, wait: Wait): Promise<ExecuteReply | undefined>
  /** Admits a run, makes it durable with `store`, then adds it. Errors as `execute`. */
  enqueue(job: ExecuteJob, store: () => Promise<void>): Promise<void>
  sendAway(): void
  /** Marks a run as late; returns its reply if it has finished. */
  late(job: ExecuteJob): Promise<ExecuteReply | undefined>
  /** Adds a stored run again unless it is queued; true if added. */
  restore(job: ExecuteJob): Promise<boolean>
  has(queue: BotQueue, runId: string): Promise<boolean>
  /** Adds a stored request unless it is queued; during a Redis outage the worker's upkeep does. */
  addRequest(id: string): Promise<void>
  hasRequest(id: string): Promise<boolean>
  /** Wakes up to `count` workers, which also poll. */
  wake(name: typeof EXPORTS | typeof IMPORTS, count: number): Promise<void>
  cancel(runId: string, projectId: string): Promise<void>
  close(): Promise<void>
}

const BATCH_LANE = 64

/** Waits up to 30 s for Redis. */
export async function openQueues(config: Config, bus: Bus, log: Logger): Promise<Queues> {
  const parts = await openParts(config, bus, log)
  const { redis, all } = parts
  const jobs = botJobs(parts)
  const replies = await openReplies({
    redis,
    bus,
    log,
    has: (runId) => jobs.has('bots-sync', runId),
    withdraw: (job) => jobs.withdraw('bots-sync', job),
  })
  return {
    home: homeOf(config.redisUrl),
    ...botRuns(parts, jobs, replies),
    has: jobs.has,
    ...otherJobs(parts),
    ...observation(parts),
    ...liveWorkers(redis, BOT_QUEUES),
    async close() {
      replies.close()
      await Promise.allSettled(all.map((queue) => queue.close()))
      redis.disconnect()
    },
  }
}

type BotJobs = ReturnType<typeof botJobs>

function botJobs({ redis, bots }: Parts) {
  const queueOf = (name: BotQueue): Queue => {
    const queue = bots.get(name)
    if (queue === undefined) throw new Error(`Queue ${name} is not open`)
    return queue
  }
  const remove = (name: BotQueue, runId: string) => queueOf(name).remove(runId)
  const adding = new Map([...bots].map(([name, queue]) => [name, addsTogether(queue)] as const))
  return {
    has: async (name: BotQueue, runId: string) => await isKnown(queueOf(name), runId),
    add: (name: BotQueue, job: ExecuteJob, lane: number) =>
      adding.get(name)?.(
        job,
        name === 'bots-async' && job.class !== 'event' ? lane + BATCH_LANE : lane,
      ),
    remove,
    withdraw: async (name: BotQueue, { runId, projectId }: ExecuteJob) => {
      await Promise.all([
        remove(name, runId),
        redis.zrem(keys.flight(name, projectId), runId),
        redis.unlink(keys.input(runId)),
      ])
    },
    /** Stores the input before the job: a worker may be faster than a second connection. */
    async checkIn(job: ExecuteJob): Promise<ExecuteJob> {
      const { input, ...rest } = job
      if (input === undefined || Buffer.byteLength(input) <= INLINE_BYTES) return job
      const inputKey = keys.input(job.runId)
      await redis.set(inputKey, input, 'PX', job.deadline - Date.now() + SLACK_MS)
      return { ...rest, inputKey }
    },
  }
}

/** Adds the runs of one turn of the event loop by one pipeline, behind the admissions of the same turn. */
function addsTogether(queue: Queue): (job: ExecuteJob, priority: number) => Promise<unknown> {
  const add = batchPerTick<Added, unknown>((jobs) => queue.addBulk([...jobs]))
  return (job, priority) =>
    add({
      name: 'execute',
      data: job,
      opts: { jobId: job.runId, priority, removeOnComplete: true, removeOnFail: true },
    })
}

type Added = Parameters<Queue['addBulk']>[0][number]

async function isKnown(queue: Queue, id: string): Promise<boolean> {
  return (await queue.getJobState(id)) !== 'unknown'
}

type BotRuns = Pick<Queues, 'execute' | 'enqueue' | 'sendAway' | 'late' | 'restore' | 'cancel'>

function botRuns(parts: Parts, jobs: BotJobs, replies: Replies): BotRuns {
  const { config, log, redis } = parts
  const admission = createAdmission(redis, config.queueBacklogMax)

  async function start(job: ExecuteJob, { waitMs, signal, mayBeLate }: Wait): Promise<Waiter> {
    const awaited = { reply: replies.channel, waitUntil: Date.now() + waitMs }
    const ready = await jobs.checkIn({ ...job, ...awaited })
    const waiter = replies.wait(ready, waitMs, signal)
    const { lane, isSure, counted } = admission.admit('bots-sync', ready, mayBeLate === true)
    // A rejected run must not have run: a fast worker could finish it before it is removed.
    if (!isSure) await counted
    const adding = Promise.resolve(jobs.add('bots-sync', ready, lane))
    const [admitted, added] = await Promise.allSettled([counted, adding])
    if (added.status === 'rejected') throw added.reason
    // A rejected run that a worker has already taken continues.
    if (admitted.status === 'rejected' && (await jobs.remove('bots-sync', job.runId)) === 1) {
      throw admitted.reason
    }
    return waiter
  }

  async function execute(job: ExecuteJob, wait: Wait): Promise<ExecuteReply | undefined> {
    const waiter = await start(job, wait).catch((error: unknown) => {
      replies.abandon(job)
      throw error
    })
    const reply = await waiter.reply
    if (reply === 'gone') {
      await cancelRun(parts, jobs, job.runId, job.projectId)
      const reason: unknown = wait.signal?.reason
      throw reason instanceof HttpError ? reason : badRequest('The caller has gone')
    }
    return reply === undefined ? undefined : withBody(redis, reply)
  }

  return {
    execute: (job, wait) => failAs503(() => execute(job, wait)),
    async enqueue(job, store) {
      const { lane, counted } = admission.admit('bots-async', job, true)
      await failAs503(() => counted)
      await store()
      try {
        await jobs.add('bots-async', await jobs.checkIn({ ...job, asynchronous: true }), lane)
      } catch (error) {
        // The stored run is added by a worker's upkeep once Redis is back.
        log.warn({ runId: job.runId, cause: error }, 'An asynchronous run waits for Redis')
      }
    },
    sendAway: () => replies.sendAway(),
    late: (job) => failAs503(() => lateReply(parts, job)),
    async restore(job) {
      if (await jobs.has('bots-async', job.runId)) return false
      await jobs.add('bots-async', await jobs.checkIn({ ...job, asynchronous: true }), 0)
      return true
    },
    cancel: (runId, projectId) => failAs503(() => cancelRun(parts, jobs, runId, projectId)),
  }
}

async function cancelRun(
  { redis, bus, requests }: Parts,
  jobs: BotJobs,
  runId: string,
  projectId: string,
): Promise<void> {
  for (const name of BOT_QUEUES) {
    if ((await jobs.remove(name, runId)) === 1) {
      await redis.zrem(keys.flight(name, projectId), runId)
    }
  }
  await requests.remove(runId)
  await redis.unlink(keys.input(runId))
  await bus.publish(CANCEL, runId)
}

async function lateReply(
  { config, redis }: Parts,
  { runId, deadline }: ExecuteJob,
): Promise<ExecuteReply | undefined> {
  const lease = deadline - Date.now() + 2 * SLACK_MS + config.botTimeoutMaxMs
  const reply = await runScript(redis, LATE, [keys.reply(runId), keys.late(runId)], [lease])
  return typeof reply === 'string' ? withBody(redis, JSON.parse(reply)) : undefined
}

type OtherJobs = Pick<Queues, 'addRequest' | 'hasRequest' | 'wake'>

function otherJobs({ log, requests, exports, imports }: Parts): OtherJobs {
  return {
    async addRequest(id) {
      const options = { jobId: id, removeOnComplete: true, removeOnFail: true }
      await requests.add('request', {}, options).catch((cause: unknown) => {
        log.warn({ jobId: id, cause }, 'An accepted request waits for Redis')
      })
    },
    hasRequest: async (id) => await isKnown(requests, id),
    async wake(name, count) {
      const options = { removeOnComplete: true, removeOnFail: true }
      const wakes = Array.from({ length: count }, () => ({ name: 'wake', data: {}, opts: options }))
      await (name === EXPORTS ? exports : imports).addBulk(wakes).catch((cause: unknown) => {
        log.warn({ queue: name, cause }, 'Parts wait for Redis')
      })
    },
  }
}

async function withBody(redis: Redis, reply: ExecuteReply): Promise<ExecuteReply> {
  if (reply.bodyKey === undefined) return reply
  const body = await redis.getdel(reply.bodyKey)
  if (body === null) throw new Error(`The result of run ${reply.runId} has expired`)
  return { ...reply, body }
}

async function failAs503<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof HttpError) throw error
    throw unavailable('Queue', error)
  }
}

/** Host, port and database number; never the password. */
function homeOf(redisUrl: string): string {
  const { host, pathname } = new URL(redisUrl)
  return createHash('sha256').update(`${host}${pathname}`).digest('hex').slice(0, 16)
}
