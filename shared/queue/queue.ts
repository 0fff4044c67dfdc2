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
import { type ArrivalLines, type Lines, type Wait as LineWait, openLines } from './lines.ts'
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

interface Observation {
  /** Number of jobs by queue and state. */
  depths(): Promise<Readonly<Record<string, Readonly<Record<string, number>>>>>
  /** Enqueue time of the oldest waiting run among these, epoch ms. */
  oldestOf(queue: BotQueue, runIds: readonly string[]): Promise<number | undefined>
  /** Enqueue time of the oldest waiting job by queue, epoch ms. */
  waitingSince(): Promise<Readonly<Record<string, number>>>
  ping(): Promise<number>
}

interface Wait {
  readonly waitMs: number
  readonly signal?: AbortSignal | undefined
  /** True for a caller that accepts a status URL: its run may wait for a worker. */
  readonly mayBeLate?: boolean
}

export interface Queues extends Observation, LiveWorkers {
  readonly lines: Lines
  /** Identifies the Redis instance that knows the job. */
  readonly home: string
  /** Adds a run and waits for its reply; undefined after `waitMs`. Errors: 429 backlog, 503 no worker or no Redis. */
  execute(job: ExecuteJob, wait: Wait): Promise<ExecuteReply | undefined>
  /** Like `execute` for a caller that also takes a streamed answer. */
  executeStreaming(job: ExecuteJob, wait: Wait): Promise<ExecuteReply | StreamedAnswer | undefined>
  /** Admits a run, makes it durable with `store`, then adds it. Errors as `execute`. */
  enqueue(job: ExecuteJob, store: () => Promise<void>): Promise<void>
  sendAway(): void
  /** Marks a run as late; returns its reply if it has finished. */
  late(job: ExecuteJob): Promise<ExecuteReply | undefined>
  /** Adds a stored run again; harmless if it is queued. */
  restore(job: ExecuteJob): Promise<void>
  has(queue: BotQueue, runId: string): Promise<boolean>
  cancel(runId: string, projectId: string): Promise<void>
  close(): Promise<void>
}

/** Waiting jobs looked at for the oldest: priorities change the order of arrival. */
const OLDEST_OF = 100
const BATCH_LANE = 64

/** Waits up to 30 s for Redis. */
export async function openQueues(config: Config, bus: Bus, log: Logger): Promise<Queues> {
  const parts = await openParts(config, bus, log)
  const { redis, lines } = parts
  const jobs = botJobs(parts)
  const replies = await openReplies({
    redis,
    bus,
    log,
    has: (runId) => jobs.has('bots-sync', runId),
    withdraw: (job) => jobs.withdraw('bots-sync', job),
  })
  return {
    home: describeHome(config.redisUrl),
    lines,
    ...botRuns(parts, jobs, replies),
    has: jobs.has,
    ...observation(parts),
    ...liveWorkers(redis, BOT_QUEUES),
    async close() {
      replies.close()
      await Promise.allSettled(Object.values(parts.bots).map((queue) => queue.close()))
      redis.disconnect()
    },
  }
}

interface Parts {
  readonly config: Config
  readonly log: Logger
  readonly redis: Redis
  readonly bus: Bus
  readonly bots: Readonly<Record<BotQueue, Queue>>
  readonly lines: ArrivalLines
}

async function openParts(config: Config, bus: Bus, log: Logger): Promise<Parts> {
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
  return { config, log, redis, bus, bots, lines: openLines(redis, bots, log) }
}

type BotJobs = ReturnType<typeof botJobs>

function botJobs({ redis, bots, lines }: Parts) {
  const remove = (name: BotQueue, runId: string) => bots[name].remove(runId)
  return {
    has: async (name: BotQueue, runId: string) =>
      (await bots[name].getJobState(runId)) !== 'unknown',
    async add(name: BotQueue, job: ExecuteJob, lane: number, wait: LineWait) {
      const priority = name === 'bots-async' && job.class !== 'event' ? lane + BATCH_LANE : lane
      await addAfterAdmissions(bots[name], job, priority, wait)
      if (wait.waitsFor === 'key') await lines.recheck(job)
    },
    remove,
    async withdraw(name: BotQueue, job: ExecuteJob) {
      const { runId, projectId } = job
      const [removed] = await Promise.all([
        remove(name, runId),
        redis.zrem(keys.flight(name, projectId), runId),
        redis.unlink(keys.input(runId)),
      ])
      // A run that a worker has taken keeps its turn.
      if (removed === 1) await lines.leave(job)
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

/** Adds a run behind the admissions of the same turn of the event loop; the commands of a turn are sent together. */
async function addAfterAdmissions(
  queue: Queue,
  job: ExecuteJob,
  priority: number,
  { delayMs, waitsFor }: LineWait,
): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve))
  const opts = { jobId: job.runId, priority, removeOnComplete: true, removeOnFail: true }
  if (delayMs === 0) await queue.add('execute', job, opts)
  else await queue.add('execute', { ...job, waitsFor }, { ...opts, delay: delayMs })
}

type BotRuns = Pick<
  Queues,
  'execute' | 'executeStreaming' | 'enqueue' | 'sendAway' | 'late' | 'restore' | 'cancel'
>

function botRuns(parts: Parts, jobs: BotJobs, replies: Replies): BotRuns {
  const { config, log, redis } = parts
  const admission = createAdmission(redis, config.queueBacklogMax)
  const awaiting = { parts, jobs, replies, admission }
  return {
    execute: (job, wait) => failAs503(() => whole(runAwaited(awaiting, job, wait))),
    executeStreaming: (job, wait) =>
      failAs503(() => runAwaited(awaiting, { ...job, stream: replies.address }, wait)),
    async enqueue(job, store) {
      const queued: ExecuteJob = { ...job, asynchronous: true }
      const { lane, counted } = admission.admit('bots-async', queued, true)
      await failAs503(() => counted)
      const wait = await failAs503(() => joinLines(parts, jobs, 'bots-async', queued))
      await store().catch(async (error: unknown) => {
        await jobs.withdraw('bots-async', queued).catch(() => undefined)
        throw error
      })
      try {
        await jobs.add('bots-async', await jobs.checkIn(queued), lane, wait)
      } catch (error) {
        // The stored run is added by a worker's upkeep once Redis is back.
        log.warn({ runId: job.runId, cause: error }, 'An asynchronous run waits for Redis')
      }
    },
    sendAway: () => replies.sendAway(),
    late: (job) => failAs503(() => lateReply(parts, job)),
    async restore(job) {
      const queued: ExecuteJob = { ...job, asynchronous: true }
      const wait = await parts.lines.join(queued, true)
      await jobs.add('bots-async', await jobs.checkIn(queued), 0, wait)
    },
    cancel: (runId, projectId) => failAs503(() => cancelRun(parts, jobs, runId, projectId)),
  }
}

/** Errors: 429, after which the run is not in flight. */
async function joinLines(
  { lines }: Parts,
  jobs: BotJobs,
  name: BotQueue,
  job: ExecuteJob,
): Promise<LineWait> {
  try {
    return await lines.join(job)
  } catch (error) {
    if (error instanceof HttpError) await jobs.withdraw(name, job)
    throw error
  }
}

interface Awaiting {
  readonly parts: Parts
  readonly jobs: BotJobs
  readonly replies: Replies
  readonly admission: Admission
}

async function startAwaited(
  { parts, jobs, replies, admission }: Awaiting,
  job: ExecuteJob,
  { waitMs, signal, mayBeLate }: Wait,
): Promise<Waiter> {
  const awaited = { reply: replies.channel, waitUntil: Date.now() + waitMs }
  const ready = await jobs.checkIn({ ...job, ...awaited })
  const waiter = replies.wait(ready, waitMs, signal)
  const { lane, isSure, counted } = admission.admit('bots-sync', ready, mayBeLate === true)
  // A rejected run must not have run: a fast worker could finish it before it is removed.
  if (!isSure) await counted
  const adding = joinLines(parts, jobs, 'bots-sync', ready).then((wait) =>
    jobs.add('bots-sync', ready, lane, wait),
  )
  const [admitted, added] = await Promise.allSettled([counted, adding])
  if (added.status === 'rejected') throw added.reason
  if (admitted.status === 'fulfilled') return waiter
  // A rejected run that a worker has already taken continues.
  if ((await jobs.remove('bots-sync', job.runId)) !== 1) return waiter
  // Removing a missing job succeeds: the run may have ended. Redis has then sent its reply before this answer.
  await yieldAfterPendingIo()
  const reply = await Promise.race([waiter.reply, undefined])
  if (typeof reply === 'object') return waiter
  await parts.lines.leave(ready)
  throw admitted.reason
}

async function runAwaited(
  awaiting: Awaiting,
  job: ExecuteJob,
  wait: Wait,
): Promise<ExecuteReply | StreamedAnswer | undefined> {
  const { parts, jobs, replies } = awaiting
  const waiter = await startAwaited(awaiting, job, wait).catch((error: unknown) => {
    replies.abandon(job)
    throw error
  })
  const reply = await waiter.reply
  if (reply === 'gone') {
    await cancelRun(parts, jobs, job.runId, job.projectId)
    const reason: unknown = wait.signal?.reason
    throw reason instanceof HttpError ? reason : badRequest('The caller has gone')
  }
  if (reply instanceof StreamedAnswer) {
    cutOnAbort(reply, wait.signal)
    return reply
  }
  return reply === undefined ? undefined : withBody(parts.redis, reply)
}

async function whole<Reply>(answer: Promise<Reply | StreamedAnswer>): Promise<Reply> {
  const reply = await answer
  if (reply instanceof StreamedAnswer) throw new Error('A run streams its answer unasked')
  return reply
}

/** The worker then stops the run. */
function cutOnAbort(answer: StreamedAnswer, signal: AbortSignal | undefined): void {
  const cut = () => answer.cut('The caller has gone')
  if (signal?.aborted) cut()
  else signal?.addEventListener('abort', cut, { once: true })
}

async function cancelRun(
  { redis, bus, bots, lines }: Parts,
  jobs: BotJobs,
  runId: string,
  projectId: string,
): Promise<void> {
  for (const name of BOT_QUEUES) {
    const job = await bots[name].getJob(runId)
    if ((await jobs.remove(name, runId)) === 1) {
      await redis.zrem(keys.flight(name, projectId), runId)
      if (job !== undefined) await lines.leave(job.data)
    }
  }
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

function observation({ redis, bots }: Parts): Observation {
  const all = Object.values(bots)
  return {
    async depths() {
      const counts = await Promise.all(
        all.map(async (queue) => [queue.name, await queue.getJobCounts()] as const),
      )
      return Object.fromEntries(counts)
    },
    async oldestOf(name, runIds) {
      const jobs = await Promise.all(runIds.map((runId) => bots[name].getJob(runId)))
      const waiting = jobs.flatMap((job) => (job && !job.processedOn ? [job.timestamp] : []))
      return waiting.length === 0 ? undefined : Math.min(...waiting)
    },
    async waitingSince() {
      const oldest = await Promise.all(
        all.map(async (queue) => {
          const found = await Promise.all(
            (['waiting', 'prioritized'] as const).map((state) =>
              queue.getJobs([state], 0, OLDEST_OF - 1, true),
            ),
          )
          const times = found.flat().flatMap((job) => job?.timestamp ?? [])
          return times.length === 0 ? [] : [[queue.name, Math.min(...times)] as const]
        }),
      )
      return Object.fromEntries(oldest.flat())
    },
    async ping() {
      const started = performance.now()
      await redis.ping()
      return performance.now() - started
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

/** Host, port and database number; never the password. With several Sentinels it is not a URL. */
function describeHome(redisUrl: string): string {
  const [, home = ''] = /^[^/]*\/\/(?:[^/]*@)?([^?#]*)/.exec(redisUrl) ?? []
  return hash('sha256', home).slice(0, 16)
}
