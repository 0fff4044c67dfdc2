/** The caller's end of the queues. Replies travel on one channel per web process: BullMQ's events lose finished jobs. */
import { hash } from 'node:crypto'
import { Queue } from 'bullmq'
import type { Config } from '../core/config/config.ts'
import { badRequest, HttpError, unavailable } from '../core/errors.ts'
import type { Logger } from '../core/log.ts'
import { yieldAfterPendingIo } from '../core/yielding.ts'
import type { Bus } from '../redis/bus.ts'
import { type LiveWorkers, liveWorkers } from '../redis/presence.ts'
import { endStart, openRedis, type Redis, untilReady } from '../redis/redis.ts'
import { PREFIX, runScript, script } from '../redis/script.ts'
import { type Admission, createAdmission, SLACK_MS } from './admission.ts'
import {
  BOT_QUEUES,
  type BotQueue,
  CANCEL,
  type ExecuteJob,
  type ExecuteReply,
  INLINE_BYTES,
  keys,
} from './jobs.ts'
import { hasJob, Lines, type Wait as LineWait } from './lines.ts'
import { openReplies, type Replies, type Waiter } from './replies.ts'
import { StreamedAnswer } from './streams.ts'

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

type Execute = (job: ExecuteJob, wait: Wait) => Promise<ExecuteReply | undefined>

/** Waiting jobs looked at for the oldest: priorities change the order of arrival. */
const OLDEST_OF = 100
const BATCH_LANE = 64

interface Parts {
  readonly config: Config
  readonly log: Logger
  readonly redis: Redis
  readonly bus: Bus
  readonly bots: Readonly<Record<BotQueue, Queue>>
  readonly lines: Lines
  readonly replies: Replies
  readonly admission: Admission
  /** Runs the bots that a bot calls, in place of the queue. */
  readonly nested?: Execute
}

/** Waits up to 30 s for Redis. */
export async function openQueues(config: Config, bus: Bus, log: Logger): Promise<Queues> {
  const redis = openRedis(config, 'request', log)
  await untilReady(redis, log)
  const open = (name: string) => {
    // BullMQ's queue events have no reader.
    const streams = { events: { maxLen: 1 } }
    const queue = new Queue(name, { connection: redis, prefix: PREFIX, streams })
    queue.on('error', (error) => log.debug({ queue: name, reason: error.message }, 'Queue'))
    return queue
  }
  const bots = { 'bots-sync': open('bots-sync'), 'bots-async': open('bots-async') }
  await Promise.all(Object.values(bots).map((queue) => queue.waitUntilReady()))
  endStart(redis, config)
  const lines = new Lines(redis, bots, log)
  const replies = await openReplies({
    redis,
    bus,
    log,
    has: (runId) => hasJob(bots['bots-sync'], runId),
    withdraw: (job) => withdraw({ redis, bots, lines }, 'bots-sync', job),
  })
  const admission = createAdmission(redis, config.queueBacklogMax)
  return new Queues({ config, log, redis, bus, bots, lines, replies, admission })
}

export class Queues implements LiveWorkers {
  /** Identifies the Redis instance that knows the job. */
  readonly home: string
  readonly lines: Lines
  readonly workers: LiveWorkers['workers']
  readonly workersOffTime: LiveWorkers['workersOffTime']
  readonly workerMetrics: LiveWorkers['workerMetrics']
  readonly #parts: Parts

  constructor(parts: Parts) {
    this.home = describeHome(parts.config.redisUrl)
    this.lines = parts.lines
    const live = liveWorkers(parts.redis, BOT_QUEUES)
    this.workers = live.workers
    this.workersOffTime = live.workersOffTime
    this.workerMetrics = live.workerMetrics
    this.#parts = parts
  }

  /** Returns the same queues, whose `execute` is `nested`. */
  withExecute(nested: Execute): Queues {
    return new Queues({ ...this.#parts, nested })
  }

  /** Adds a run and waits for its reply; undefined after `waitMs`. Errors: 429 backlog, 503 no worker or no Redis. */
  async execute(job: ExecuteJob, wait: Wait): Promise<ExecuteReply | undefined> {
    const { nested } = this.#parts
    if (nested !== undefined) return await nested(job, wait)
    const reply = await failAs503(() => this.#runAwaited(job, wait))
    if (reply instanceof StreamedAnswer) throw new Error('A run streams its answer unasked')
    return reply
  }

  /** Like `execute` for a caller that also takes a streamed answer. */
  executeStreaming(
    job: ExecuteJob,
    wait: Wait,
  ): Promise<ExecuteReply | StreamedAnswer | undefined> {
    const { address } = this.#parts.replies
    return failAs503(() => this.#runAwaited({ ...job, stream: address }, wait))
  }

  /** Admits a run, makes it durable with `store`, then adds it. Errors as `execute`. */
  async enqueue(job: ExecuteJob, store: () => Promise<void>): Promise<void> {
    const { admission, log } = this.#parts
    const queued: ExecuteJob = { ...job, asynchronous: true }
    const { lane, counted } = admission.admit('bots-async', queued, true)
    await failAs503(() => counted)
    const wait = await failAs503(() => this.#joinLines('bots-async', queued))
    await store().catch(async (error: unknown) => {
      await withdraw(this.#parts, 'bots-async', queued).catch(() => undefined)
      throw error
    })
    try {
      await this.#add('bots-async', await this.#storeInput(queued), lane, wait)
    } catch (error) {
      // The stored run is added by a worker's upkeep once Redis is back.
      log.warn({ runId: job.runId, cause: error }, 'An asynchronous run waits for Redis')
    }
  }

  detachWaitingCallers(): void {
    this.#parts.replies.detachWaitingCallers()
  }

  /** Marks a run as late; returns its reply if it has finished. */
  late({ runId, deadline }: ExecuteJob): Promise<ExecuteReply | undefined> {
    const { config, redis } = this.#parts
    const keepMs = deadline - Date.now() + 2 * SLACK_MS + config.botTimeoutMaxMs
    return failAs503(async () => {
      const reply = await runScript(redis, LATE, [keys.reply(runId), keys.late(runId)], [keepMs])
      return typeof reply === 'string' ? withBody(redis, JSON.parse(reply)) : undefined
    })
  }

  /** Adds a stored run again; harmless if it is queued. */
  async restore(job: ExecuteJob): Promise<void> {
    const queued: ExecuteJob = { ...job, asynchronous: true }
    const wait = await this.#parts.lines.join(queued, true)
    await this.#add('bots-async', await this.#storeInput(queued), 0, wait)
  }

  has(queue: BotQueue, runId: string): Promise<boolean> {
    return hasJob(this.#parts.bots[queue], runId)
  }

  cancel(runId: string, projectId: string): Promise<void> {
    const { redis, bus, bots, lines } = this.#parts
    return failAs503(async () => {
      for (const name of BOT_QUEUES) {
        const job = await bots[name].getJob(runId)
        if ((await bots[name].remove(runId)) === 1) {
          await redis.zrem(keys.flight(name, projectId), runId)
          if (job !== undefined) await lines.leave(job.data)
        }
      }
      await redis.unlink(keys.input(runId))
      await bus.publish(CANCEL, runId)
    })
  }

  async close(): Promise<void> {
    const { replies, bots, redis } = this.#parts
    replies.close()
    await Promise.allSettled(Object.values(bots).map((queue) => queue.close()))
    redis.disconnect()
  }

  async #runAwaited(
    job: ExecuteJob,
    wait: Wait,
  ): Promise<ExecuteReply | StreamedAnswer | undefined> {
    const { redis, replies } = this.#parts
    const waiter = await this.#startAwaited(job, wait).catch((error: unknown) => {
      replies.abandon(job)
      throw error
    })
    const reply = await waiter.reply
    if (reply === 'gone') {
      await this.cancel(job.runId, job.projectId)
      const reason: unknown = wait.signal?.reason
      throw reason instanceof HttpError ? reason : badRequest('The caller has gone')
    }
    if (reply instanceof StreamedAnswer) {
      cutOnAbort(reply, wait.signal)
      return reply
    }
    return reply === undefined ? undefined : withBody(redis, reply)
  }

  async #startAwaited(job: ExecuteJob, { waitMs, signal, mayBeLate }: Wait): Promise<Waiter> {
    const { replies, admission, bots, lines } = this.#parts
    const awaited = { reply: replies.channel, waitUntil: Date.now() + waitMs }
    const ready = await this.#storeInput({ ...job, ...awaited })
    const waiter = replies.wait(ready, waitMs, signal)
    const { lane, isSure, counted } = admission.admit('bots-sync', ready, mayBeLate === true)
    // A rejected run must not have run: a fast worker could finish it before it is removed.
    if (!isSure) await counted
    const adding = this.#joinLines('bots-sync', ready).then((wait) =>
      this.#add('bots-sync', ready, lane, wait),
    )
    const [admitted, added] = await Promise.allSettled([counted, adding])
    if (added.status === 'rejected') throw added.reason
    if (admitted.status === 'fulfilled') return waiter
    // A rejected run that a worker has already taken continues.
    if ((await bots['bots-sync'].remove(job.runId)) !== 1) return waiter
    // Removing a missing job succeeds: the run may have ended. Redis has then sent its reply before this answer.
    await yieldAfterPendingIo()
    const reply = await Promise.race([waiter.reply, undefined])
    if (typeof reply === 'object') return waiter
    await lines.leave(ready)
    throw admitted.reason
  }

  /** Stores a large input before the job: a worker may be faster than a second connection. */
  async #storeInput(job: ExecuteJob): Promise<ExecuteJob> {
    const { input, ...rest } = job
    if (input === undefined || Buffer.byteLength(input) <= INLINE_BYTES) return job
    const inputKey = keys.input(job.runId)
    const keepMs = job.deadline - Date.now() + SLACK_MS
    await this.#parts.redis.set(inputKey, input, 'PX', keepMs)
    return { ...rest, inputKey }
  }

  /** Errors: 429, after which the run is not in flight. */
  async #joinLines(name: BotQueue, job: ExecuteJob): Promise<LineWait> {
    try {
      return await this.#parts.lines.join(job)
    } catch (error) {
      if (error instanceof HttpError) await withdraw(this.#parts, name, job)
      throw error
    }
  }

  /** Adds a run after the admissions of the same turn of the event loop; the commands of a turn are sent together. */
  async #add(name: BotQueue, job: ExecuteJob, lane: number, { delayMs, waitsFor }: LineWait) {
    const { bots, lines } = this.#parts
    const priority = name === 'bots-async' && job.class !== 'event' ? lane + BATCH_LANE : lane
    await new Promise((resolve) => setImmediate(resolve))
    const options = { jobId: job.runId, priority, removeOnComplete: true, removeOnFail: true }
    if (delayMs === 0) await bots[name].add('execute', job, options)
    else await bots[name].add('execute', { ...job, waitsFor }, { ...options, delay: delayMs })
    if (waitsFor === 'key') await lines.recheck(job)
  }

  /** Returns the number of jobs by queue and state. */
  async depths(): Promise<Readonly<Record<string, Readonly<Record<string, number>>>>> {
    const counts = Object.values(this.#parts.bots).map(
      async (queue) => [queue.name, await queue.getJobCounts()] as const,
    )
    return Object.fromEntries(await Promise.all(counts))
  }

  /** Returns the enqueue time of the oldest waiting run among these, in epoch ms. */
  async oldestOf(name: BotQueue, runIds: readonly string[]): Promise<number | undefined> {
    const jobs = await Promise.all(runIds.map((runId) => this.#parts.bots[name].getJob(runId)))
    const waiting = jobs.flatMap((job) => (job && !job.processedOn ? [job.timestamp] : []))
    return waiting.length === 0 ? undefined : Math.min(...waiting)
  }

  /** Returns the enqueue time of the oldest waiting job by queue, in epoch ms. */
  async waitingSince(): Promise<Readonly<Record<string, number>>> {
    const oldest = Object.values(this.#parts.bots).map(async (queue) => {
      const states = (['waiting', 'prioritized'] as const).map((state) =>
        queue.getJobs([state], 0, OLDEST_OF - 1, true),
      )
      const found = await Promise.all(states)
      const times = found.flat().flatMap((job) => job?.timestamp ?? [])
      return times.length === 0 ? [] : [[queue.name, Math.min(...times)] as const]
    })
    return Object.fromEntries((await Promise.all(oldest)).flat())
  }

  /** Returns the round trip to Redis in ms. */
  async ping(): Promise<number> {
    const started = performance.now()
    await this.#parts.redis.ping()
    return performance.now() - started
  }
}

async function withdraw(
  { redis, bots, lines }: Pick<Parts, 'redis' | 'bots' | 'lines'>,
  name: BotQueue,
  job: ExecuteJob,
): Promise<void> {
  const { runId, projectId } = job
  const [removed] = await Promise.all([
    bots[name].remove(runId),
    redis.zrem(keys.flight(name, projectId), runId),
    redis.unlink(keys.input(runId)),
  ])
  // A run that a worker has taken keeps its turn.
  if (removed === 1) await lines.leave(job)
}

/** The worker then stops the run. */
function cutOnAbort(answer: StreamedAnswer, signal: AbortSignal | undefined): void {
  const cut = () => answer.cut('The caller has gone')
  if (signal?.aborted) cut()
  else signal?.addEventListener('abort', cut, { once: true })
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

/** Host, port and database number; never the password. With several Sentinels it is not a URL. */
function describeHome(redisUrl: string): string {
  const [, home = ''] = /^[^/]*\/\/(?:[^/]*@)?([^?#]*)/.exec(redisUrl) ?? []
  return hash('sha256', home).slice(0, 16)
}
