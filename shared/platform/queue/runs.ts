/** The worker's end of the bot queues: inputs, replies, the journal of writes, cancels, heartbeat. */
import { randomUUID } from 'node:crypto'
import type { Config } from '../../config/config.ts'
import type { Logger } from '../../log.ts'
import { openRedis, type Redis, untilReady } from '../redis/redis.ts'
import {
  BOT_QUEUES,
  type BotQueue,
  type ExecuteJob,
  type ExecuteReply,
  INLINE_BYTES,
} from './jobs.ts'
import { CANCEL_CHANNEL, FINISH, HEARTBEAT, keys, runScript } from './scripts.ts'

const HEARTBEAT_MS = 2000
/** Three missed heartbeats: the worker counts as gone. */
const WORKER_TTL_MS = 6500
/** Replies of longer runs are stored too: the channel may have broken meanwhile. */
const KEEP_AFTER_MS = 2000
const REPLY_TTL_MS = 60_000
const CANCEL_MEMORY_MS = 60_000

export interface Runs {
  readonly workerId: string
  /** Callers may count on this worker from now until `close`; `metrics` is asked at every heartbeat. */
  announce(served: readonly BotQueue[], metrics: () => Promise<string>): Promise<void>
  /** Workers of `bots-sync` that were alive at the last heartbeat, this one included. */
  readonly liveWorkers: number
  /** Errors: the key has expired. */
  input(job: ExecuteJob): Promise<string | undefined>
  /** Resolves when Redis knows that the run is about to write. */
  markWrite(job: ExecuteJob): Promise<void>
  hasWritten(runId: string): Promise<boolean>
  /** For a run whose author wants it repeated all the same. */
  forgetWrites(runId: string): Promise<void>
  /** True when the caller was sent away with a status URL. */
  isLate(runId: string): Promise<boolean>
  /** For BullMQ: what a run says here and what its job says leave together, in this order. */
  readonly connection: Redis
  /** Sends the reply, which frees the run's place, ahead of all that `connection` is given from then on. */
  finish(job: ExecuteJob, reply: ExecuteReply, ranMs: number): Promise<Finished>
  /** True when a cancel for the run came before it started here. */
  wasCancelled(runId: string): boolean
  onCancel(listener: (runId: string) => void): void
  close(): Promise<void>
}

export interface Finished {
  /** True when an AsyncJob takes the result. */
  readonly isLate: Promise<boolean>
  /** True when the caller may be sent away at any moment, if it was not already. */
  readonly isNearEnd: boolean
}

/** Waits up to 30 s for Redis. */
export async function openRuns(config: Config, log: Logger): Promise<Runs> {
  const redis = openRedis(config, 'worker', log)
  const subscriber = openRedis(config, 'subscribe', log)
  await Promise.all([untilReady(redis, log), untilReady(subscriber, log)])
  const workerId = randomUUID()
  const cancelled = new Map<string, number>()
  const listeners: ((runId: string) => void)[] = []
  let liveWorkers = 1

  subscriber.on('message', (_channel: string, runId: string) => {
    const now = Date.now()
    for (const [id, at] of cancelled) {
      if (now - at < CANCEL_MEMORY_MS) break
      cancelled.delete(id)
    }
    cancelled.set(runId, now)
    for (const listener of listeners) listener(runId)
  })
  await subscriber.subscribe(CANCEL_CHANNEL)

  let served: readonly BotQueue[] = []
  let timer: NodeJS.Timeout | undefined
  let tick: () => void = () => {}

  async function beat(metrics: () => Promise<string>): Promise<void> {
    if (redis.status !== 'ready') return
    for (const name of served) {
      const count = await runScript(
        redis,
        HEARTBEAT,
        [keys.workers(name), keys.seen(name)],
        [workerId, WORKER_TTL_MS],
      )
      if (name === 'bots-sync') liveWorkers = Math.max(1, Number(count))
    }
    await redis.set(keys.metrics(workerId), await metrics(), 'PX', WORKER_TTL_MS)
  }
  async function checkOut(reply: ExecuteReply): Promise<ExecuteReply> {
    const { body, ...rest } = reply
    if (body === undefined || Buffer.byteLength(body) <= INLINE_BYTES) return reply
    const bodyKey = keys.body(reply.runId)
    await redis.set(bodyKey, body, 'PX', REPLY_TTL_MS)
    return { ...rest, bodyKey }
  }

  return {
    workerId,
    connection: redis,
    async announce(queues, metrics) {
      served = queues
      tick = () => {
        beat(metrics).catch((error: unknown) => log.warn({ cause: error }, 'Heartbeat failed'))
      }
      await beat(metrics)
      timer = setInterval(tick, HEARTBEAT_MS)
      // After an outage callers are refused until they hear of a worker again.
      redis.on('ready', tick)
    },
    get liveWorkers() {
      return liveWorkers
    },
    async input(job) {
      if (job.inputKey === undefined) return job.input
      const text = await redis.get(job.inputKey)
      if (text === null) throw new Error(`The input of run ${job.runId} has expired`)
      return text
    },
    async markWrite(job) {
      const ttl = Math.max(job.deadline - Date.now(), 0) + config.botTimeoutMaxMs + REPLY_TTL_MS
      await redis.set(keys.journal(job.runId), workerId, 'PX', ttl)
    },
    hasWritten: async (runId) => (await redis.exists(keys.journal(runId))) === 1,
    forgetWrites: async (runId) => void (await redis.unlink(keys.journal(runId))),
    isLate: async (runId) => (await redis.exists(keys.late(runId))) === 1,
    async finish(job, reply, ranMs) {
      const queue = job.asynchronous ? 'bots-async' : 'bots-sync'
      const { runId } = job
      const names = [
        keys.flight(queue, job.projectId),
        keys.reply(runId),
        keys.late(runId),
        keys.input(runId),
      ]
      const awaited = job.reply !== undefined
      const isNearEnd = Date.now() > (job.waitUntil ?? 0) - KEEP_AFTER_MS
      const keep = awaited && (ranMs > KEEP_AFTER_MS || isNearEnd)
      const message = awaited ? JSON.stringify(await checkOut(reply)) : ''
      const values = [runId, job.reply ?? '', message, keep ? 1 : 0]
      const sent = runScript(redis, FINISH, names, values)
      return { isLate: sent.then((late) => job.asynchronous === true || late !== null), isNearEnd }
    },
    wasCancelled: (runId) => cancelled.has(runId),
    onCancel: (listener) => void listeners.push(listener),
    async close() {
      clearInterval(timer)
      redis.off('ready', tick)
      await leave(redis, served, workerId)
      redis.disconnect()
      subscriber.disconnect()
    },
  }
}

/** A worker that stops is no reason to accept work: it leaves at once. */
async function leave(redis: Redis, served: readonly BotQueue[], workerId: string): Promise<void> {
  if (redis.status !== 'ready') return
  await Promise.all(served.map((name) => redis.zrem(keys.workers(name), workerId)))
  await redis.unlink(keys.metrics(workerId))
}

/** The bot queues among the names of WORKER_QUEUES. */
export function botQueues(names: readonly string[]): readonly BotQueue[] {
  return BOT_QUEUES.filter((name) => names.includes(name))
}
