/**
 * Add, add-and-wait, cancel: the caller's end of the queues (`runs.ts` is the worker's). A job
 * carries ids and the input of the run; the answer travels on one pub/sub channel a
 * web process, since BullMQ's own events double the cost of waiting and lose finished jobs.
 */
import { createHash } from 'node:crypto'
import { Queue } from 'bullmq'
import type { Config } from '../../config/config.ts'
import { badRequest, HttpError, unavailable } from '../../errors.ts'
import type { Logger } from '../../log.ts'
import type { Bus } from '../redis/bus.ts'
import { endStart, openRedis, type Redis, untilReady } from '../redis/redis.ts'
import { createAdmission, LEASE_SLACK_MS } from './admission.ts'
import {
  BOT_QUEUES,
  type BotQueue,
  CANCEL,
  EXPORTS,
  type ExecuteJob,
  type ExecuteReply,
  IMPORTS,
  INLINE_BYTES,
  REQUESTS,
} from './jobs.ts'
import { openReplies, type Replies, type Waiter } from './replies.ts'
import { ALIVE, keys, LATE, PREFIX, runScript, useLeanScripts } from './scripts.ts'

export interface Wait {
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  /** True for a caller that can be sent away with a status URL: its run waits for a worker, whenever one comes. */
  readonly mayBeLate?: boolean
}

export interface Queues {
  /** Which Redis this is: a job is known in one only. */
  readonly home: string
  /** Redis commands sent for callers since the process started; tests pin the difference. */
  readonly commands: number
  /**
   * Adds a run and waits for its reply; undefined when `waitMs` ended first: the run goes on and its
   * result belongs to an AsyncJob. Errors: 429 backlog, 503 no worker or no Redis.
   */
  execute(job: ExecuteJob, wait: Wait): Promise<ExecuteReply | undefined>
  /** Admits a run, calls `store` to make it durable, adds it. Errors as `execute`. */
  enqueue(job: ExecuteJob, store: () => Promise<void>): Promise<void>
  /** Ends the wait of every caller of `execute`: this process stops. */
  sendAway(): void
  /** Marks a run as late; answers its reply if it ended meanwhile. */
  late(job: ExecuteJob): Promise<ExecuteReply | undefined>
  /** Adds a stored run again unless it is still queued; true when it was added. */
  restore(job: ExecuteJob): Promise<boolean>
  has(queue: BotQueue, runId: string): Promise<boolean>
  /** Adds a stored request, unless it is queued already; while Redis is away the upkeep of a worker does. */
  addRequest(id: string): Promise<void>
  hasRequest(id: string): Promise<boolean>
  /** Wakes up to `count` workers for parts of exports or imports; they also look by themselves now and then. */
  wake(name: typeof EXPORTS | typeof IMPORTS, count: number): Promise<void>
  /** Removes a waiting run, stops a running one. */
  cancel(runId: string, projectId: string): Promise<void>
  /** Ids of the workers that run bots for callers who wait. */
  workers(): Promise<readonly string[]>
  /** Ids of those whose clock is off by more than two seconds. */
  workersOffTime(): Promise<readonly string[]>
  /** Jobs by state of every queue. */
  depths(): Promise<Readonly<Record<string, Readonly<Record<string, number>>>>>
  /** Since when the longest waiting job of each queue that has one waits, epoch ms. */
  waitingSince(): Promise<Readonly<Record<string, number>>>
  /** Returns the metrics that each worker published last, as JSON text. */
  workerMetrics(): Promise<readonly string[]>
  ping(): Promise<number>
  close(): Promise<void>
}

/** Behind the lanes of all events. */
const BATCH_LANE = 64
/** So many jobs at the head of a queue are looked at for the oldest. */
const OLDEST_OF = 100

/** The connections and queues of a process. */
interface Parts {
  readonly config: Config
  readonly log: Logger
  readonly redis: Redis
  readonly counter: { readonly count: number }
  readonly bus: Bus
  readonly bots: ReadonlyMap<BotQueue, Queue>
  readonly requests: Queue
  readonly exports: Queue
  readonly imports: Queue
  readonly all: readonly Queue[]
}

/** Waits up to 30 s for Redis. */
export async function openQueues(config: Config, bus: Bus, log: Logger): Promise<Queues> {
  const parts = await openParts(config, bus, log)
  const { redis, counter, all } = parts
  const jobs = botJobs(parts)
  const replies = await openReplies({
    redis,
    bus,
    log,
    has: (runId) => jobs.has('bots-sync', runId),
    add: async (job) => void (await jobs.add('bots-sync', job, 0)),
    withdraw: (job) => jobs.withdraw('bots-sync', job),
  })
  return {
    home: homeOf(config.redisUrl),
    get commands() {
      return counter.count
    },
    ...botRuns(parts, jobs, replies),
    has: jobs.has,
    ...otherJobs(parts),
    ...observation(parts),
    async close() {
      replies.close()
      await Promise.allSettled(all.map((queue) => queue.close()))
      redis.disconnect()
    },
  }
}

async function openParts(config: Config, bus: Bus, log: Logger): Promise<Parts> {
  const redis = openRedis(config, 'request', log)
  await untilReady(redis, log)
  useLeanScripts(redis)
  const counter = countCommands(redis)
  const open = (name: string) => {
    const queue = new Queue(name, { connection: redis, prefix: PREFIX })
    queue.on('error', (error) => log.debug({ queue: name, reason: error.message }, 'Queue'))
    return queue
  }
  const bots = new Map(BOT_QUEUES.map((name) => [name, open(name)] as const))
  const [requests, exports, imports] = [open(REQUESTS), open(EXPORTS), open(IMPORTS)]
  const all = [...bots.values(), requests, exports, imports]
  await Promise.all(all.map((queue) => queue.waitUntilReady()))
  endStart(redis, config)
  return { config, log, redis, counter, bus, bots, requests, exports, imports, all }
}

type BotJobs = ReturnType<typeof botJobs>

/** Jobs of the bot queues by the id of their run. */
function botJobs({ redis, bots }: Parts) {
  const queueOf = (name: BotQueue): Queue => {
    const queue = bots.get(name)
    if (queue === undefined) throw new Error(`Queue ${name} is not open`)
    return queue
  }
  const remove = (name: BotQueue, runId: string) => queueOf(name).remove(runId)
  return {
    has: async (name: BotQueue, runId: string) =>
      (await redis.exists(queueOf(name).toKey(runId))) === 1,
    add: (name: BotQueue, job: ExecuteJob, lane: number) =>
      queueOf(name).add('execute', job, {
        jobId: job.runId,
        priority: name === 'bots-async' && job.class !== 'event' ? lane + BATCH_LANE : lane,
        removeOnComplete: true,
        removeOnFail: true,
      }),
    remove,
    withdraw: async (name: BotQueue, { runId, projectId }: ExecuteJob) => {
      await Promise.all([
        remove(name, runId),
        redis.zrem(keys.flight(name, projectId), runId),
        redis.unlink(keys.input(runId)),
      ])
    },
    /** The key is written before the job: a worker can be faster than a second connection. */
    async checkIn(job: ExecuteJob): Promise<ExecuteJob> {
      const { input, ...rest } = job
      if (input === undefined || Buffer.byteLength(input) <= INLINE_BYTES) return job
      const inputKey = keys.input(job.runId)
      await redis.set(inputKey, input, 'PX', job.deadline - Date.now() + LEASE_SLACK_MS)
      return { ...rest, inputKey }
    },
  }
}

type BotRuns = Pick<Queues, 'execute' | 'enqueue' | 'sendAway' | 'late' | 'restore' | 'cancel'>

function botRuns(parts: Parts, jobs: BotJobs, replies: Replies): BotRuns {
  const { config, log, redis } = parts
  const admission = createAdmission(redis, config.queueBacklogMax)

  async function start(job: ExecuteJob, { waitMs, signal, mayBeLate }: Wait): Promise<Waiter> {
    const ready = await jobs.checkIn({
      ...job,
      reply: replies.channel,
      waitUntil: Date.now() + waitMs,
    })
    const waiter = replies.wait(ready, waitMs, signal)
    await admission.enter(ready, mayBeLate === true)
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
      const lane = await failAs503(() => admission.admit('bots-async', job, true))
      await store()
      try {
        await jobs.add('bots-async', await jobs.checkIn({ ...job, asynchronous: true }), lane)
      } catch (error) {
        // It is stored: the upkeep of a worker adds it when Redis is back.
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
  const lease = deadline - Date.now() + 2 * LEASE_SLACK_MS + config.botTimeoutMaxMs
  const reply = await runScript(redis, LATE, [keys.reply(runId), keys.late(runId)], [lease])
  return typeof reply === 'string' ? withBody(redis, JSON.parse(reply)) : undefined
}

type OtherJobs = Pick<Queues, 'addRequest' | 'hasRequest' | 'wake'>

function otherJobs({ log, redis, requests, exports, imports }: Parts): OtherJobs {
  return {
    async addRequest(id) {
      const options = { jobId: id, removeOnComplete: true, removeOnFail: true }
      await requests.add('request', {}, options).catch((cause: unknown) => {
        log.warn({ jobId: id, cause }, 'An accepted request waits for Redis')
      })
    },
    hasRequest: async (id) => (await redis.exists(requests.toKey(id))) === 1,
    async wake(name, count) {
      const options = { removeOnComplete: true, removeOnFail: true }
      const wakes = Array.from({ length: count }, () => ({ name: 'wake', data: {}, opts: options }))
      await (name === EXPORTS ? exports : imports).addBulk(wakes).catch((cause: unknown) => {
        log.warn({ queue: name, cause }, 'Parts wait for Redis')
      })
    },
  }
}

type Observation = Pick<
  Queues,
  'workers' | 'depths' | 'waitingSince' | 'workerMetrics' | 'ping' | 'workersOffTime'
>

function observation({ redis, all }: Parts): Observation {
  return {
    workers: () => alive(redis, 'bots-sync'),
    async workersOffTime() {
      const ids = await alive(redis, 'bots-sync')
      const clocks = ids.length === 0 ? [] : await redis.mget(ids.map(keys.clock))
      return ids.filter((_, i) => clocks[i] !== null)
    },
    async depths() {
      const counts = await Promise.all(
        all.map(async (queue) => [queue.name, await queue.getJobCounts()] as const),
      )
      return Object.fromEntries(counts)
    },
    async waitingSince() {
      const oldest = await Promise.all(
        all.map(async (queue) => {
          // Lanes make the order in the queue another one than that of arrival.
          const found = await Promise.all(
            (['waiting', 'prioritized'] as const).map((state) =>
              queue.getJobs([state], 0, OLDEST_OF - 1, true),
            ),
          )
          // A job that is taken meanwhile is no longer there.
          const times = found.flat().flatMap((job) => job?.timestamp ?? [])
          return times.length === 0 ? [] : [[queue.name, Math.min(...times)] as const]
        }),
      )
      return Object.fromEntries(oldest.flat())
    },
    async workerMetrics() {
      const ids = new Set((await Promise.all(BOT_QUEUES.map((name) => alive(redis, name)))).flat())
      if (ids.size === 0) return []
      const texts = await redis.mget([...ids].map(keys.metrics))
      return texts.filter((text) => text !== null)
    },
    async ping() {
      const started = performance.now()
      await redis.ping()
      return performance.now() - started
    },
  }
}

/** A claim-checked body is fetched once and forgotten. */
async function withBody(redis: Redis, reply: ExecuteReply): Promise<ExecuteReply> {
  if (reply.bodyKey === undefined) return reply
  const body = await redis.getdel(reply.bodyKey)
  if (body === null) throw new Error(`The result of run ${reply.runId} has expired`)
  return { ...reply, body }
}

async function alive(redis: Redis, queue: BotQueue): Promise<readonly string[]> {
  const ids = await runScript(redis, ALIVE, [keys.workers(queue)], [])
  return Array.isArray(ids) ? ids.map(String) : []
}

async function failAs503<T>(work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (error instanceof HttpError) throw error
    throw unavailable('Queue', error)
  }
}

/** Host, port and number of the database; never the password. */
function homeOf(redisUrl: string): string {
  const { host, pathname } = new URL(redisUrl)
  return createHash('sha256').update(`${host}${pathname}`).digest('hex').slice(0, 16)
}

function countCommands(redis: Redis): { count: number } {
  const counter = { count: 0 }
  const send = redis.sendCommand.bind(redis)
  redis.sendCommand = (command, stream) => {
    counter.count++
    return send(command, stream)
  }
  return counter
}
