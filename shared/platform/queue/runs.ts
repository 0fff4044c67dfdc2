/** The worker's end of the bot queues: inputs, replies, the journal of writes, cancels, heartbeat. */
import { randomUUID } from 'node:crypto'
import type { Config } from '../../config/config.ts'
import type { Logger } from '../../log.ts'
import type { Bus } from '../redis/bus.ts'
import { openRedis, type Redis, untilReady } from '../redis/redis.ts'
import {
  BOT_QUEUES,
  type BotQueue,
  CANCEL,
  type ExecuteJob,
  type ExecuteReply,
  INLINE_BYTES,
} from './jobs.ts'
import { HEARTBEAT, keys, MARK, PREFIX, REPLY, runScript } from './scripts.ts'

const HEARTBEAT_MS = 2000
/** Three missed heartbeats: the worker counts as gone. */
const WORKER_TTL_MS = 6500
/** Replies of longer runs are stored too: the channel may have broken meanwhile. */
const KEEP_AFTER_MS = 2000
const REPLY_TTL_MS = 60_000
const CANCEL_MEMORY_MS = 60_000
const CLOCK_OFF_MS = 2000

export interface Runs {
  readonly workerId: string
  /** Epoch ms by the clock of Redis, which all processes share, as of the last heartbeat. */
  now(): number
  /** Callers may count on this worker from now until `close`; `metrics` is asked at every heartbeat. */
  announce(served: readonly BotQueue[], metrics: () => Promise<string>): Promise<void>
  /** Workers of `bots-sync` that were alive at the last heartbeat, this one included. */
  readonly liveWorkers: number
  /** Errors: the key has expired. */
  input(job: ExecuteJob): Promise<string | undefined>
  /**
   * Notes that an attempt is about to write. False when another attempt of the run was first: this one must not.
   */
  markWrite(job: ExecuteJob, attempt: string): Promise<boolean>
  hasWritten(runId: string): Promise<boolean>
  /** True when the caller was sent away with a status URL. */
  isLate(runId: string): Promise<boolean>
  /** For BullMQ: what a run says here and what its job says leave together, in this order. */
  readonly connection: Redis
  /**
   * Sends the reply, which frees the run's place, ahead of all that `connection` is given from then on. `attempt`: no other
   * attempt of the run may write any more.
   */
  finish(job: ExecuteJob, reply: ExecuteReply, end: RunEnd): Promise<Finished>
  /** True when a cancel for the run came before it started here. */
  wasCancelled(runId: string): boolean
  onCancel(listener: (runId: string) => void): void
  close(): Promise<void>
}

export interface RunEnd {
  readonly ranMs: number
  readonly attempt?: string | undefined
}

export interface Finished {
  /** True when an AsyncJob takes the result. */
  readonly isLate: Promise<boolean>
  /** True when the caller may be sent away at any moment, if it was not already. */
  readonly isNearEnd: boolean
}

/** Waits up to 30 s for Redis. */
export async function openRuns(config: Config, bus: Bus, log: Logger): Promise<Runs> {
  const workerId = randomUUID()
  // Workers of the version before take one whose connection has no such name for lost.
  const redis = openRedis(config, 'worker', log, `${PREFIX}:worker:${workerId}`)
  await untilReady(redis, log)
  const runs = new WorkerRuns({ workerId, config, log, redis, bus })
  await runs.open()
  return runs
}

interface WorkerRunsOptions {
  readonly workerId: string
  readonly config: Config
  readonly log: Logger
  readonly redis: Redis
  readonly bus: Bus
}

class WorkerRuns implements Runs {
  readonly workerId: string
  readonly connection: Redis
  readonly #config: Config
  readonly #log: Logger
  readonly #bus: Bus
  readonly #cancelled = new Map<string, number>()
  readonly #listeners: ((runId: string) => void)[] = []
  #behindMs = 0
  #isOff = false
  #liveWorkers = 1
  #served: readonly BotQueue[] = []
  #timer: NodeJS.Timeout | undefined
  #tick: () => void = () => {}

  constructor({ workerId, config, log, redis, bus }: WorkerRunsOptions) {
    this.workerId = workerId
    this.#config = config
    this.#log = log
    this.connection = redis
    this.#bus = bus
  }

  now(): number {
    return Date.now() + this.#behindMs
  }

  async open(): Promise<void> {
    await this.#readClock()
    await this.#bus.listen(CANCEL, (runId) => this.#cancel(runId))
  }

  get liveWorkers(): number {
    return this.#liveWorkers
  }

  async announce(served: readonly BotQueue[], metrics: () => Promise<string>): Promise<void> {
    this.#served = served
    this.#tick = () => {
      this.#beat(metrics).catch((error: unknown) =>
        this.#log.warn({ cause: error }, 'Heartbeat failed'),
      )
    }
    await this.#beat(metrics)
    this.#timer = setInterval(this.#tick, HEARTBEAT_MS)
    // After an outage callers are refused until they hear of a worker again.
    this.connection.on('ready', this.#tick)
  }

  async input(job: ExecuteJob): Promise<string | undefined> {
    if (job.inputKey === undefined) return job.input
    const text = await this.connection.get(job.inputKey)
    if (text === null) throw new Error(`The input of run ${job.runId} has expired`)
    return text
  }

  async markWrite({ runId, deadline }: ExecuteJob, attempt: string): Promise<boolean> {
    const names = [keys.journal(runId)]
    const writer = await runScript(this.connection, MARK, names, [attempt, this.#keepMs(deadline)])
    return writer === attempt
  }

  async hasWritten(runId: string): Promise<boolean> {
    return (await this.connection.exists(keys.journal(runId))) === 1
  }

  /** As long as another attempt of a run may begin. */
  #keepMs(deadline: number): number {
    return Math.max(deadline - this.now(), 0) + this.#config.botTimeoutMaxMs + REPLY_TTL_MS
  }

  /** A clock that is off is logged when it is found out, and again when it is right. */
  async #readClock(): Promise<void> {
    const asked = Date.now()
    const [seconds, micros] = (await this.connection.time()).map(Number)
    const behindMs = (seconds ?? 0) * 1000 + (micros ?? 0) / 1000 - (asked + Date.now()) / 2
    this.#behindMs = Math.round(behindMs)
    const isOff = Math.abs(behindMs) > CLOCK_OFF_MS
    if (isOff && !this.#isOff) {
      this.#log.error({ behindMs: this.#behindMs }, 'The clock of this worker is off')
    }
    if (!isOff && this.#isOff) this.#log.info('The clock of this worker is right again')
    this.#isOff = isOff
  }

  async isLate(runId: string): Promise<boolean> {
    return (await this.connection.exists(keys.late(runId))) === 1
  }

  async finish(
    job: ExecuteJob,
    reply: ExecuteReply,
    { ranMs, attempt = '' }: RunEnd,
  ): Promise<Finished> {
    const queue = job.asynchronous ? 'bots-async' : 'bots-sync'
    const { runId } = job
    const awaited = job.reply !== undefined
    const isNearEnd = this.now() > (job.waitUntil ?? 0) - KEEP_AFTER_MS
    const keep = awaited && (ranMs > KEEP_AFTER_MS || isNearEnd)
    const message = awaited ? JSON.stringify(await this.#checkOut(reply)) : ''
    const names = [
      keys.flight(queue, job.projectId),
      keys.reply(runId),
      keys.late(runId),
      job.inputKey ?? keys.input(runId),
      keys.journal(runId),
    ]
    const keepMs = this.#keepMs(job.deadline)
    const values = [runId, job.reply ?? '', message, keep ? 1 : 0, attempt, keepMs]
    const sent = runScript(this.connection, REPLY, names, values)
    // A caller whose time is over was sent away, even if Redis has forgotten it.
    const isOver = this.now() > (job.waitUntil ?? Number.POSITIVE_INFINITY)
    const isSentAway = job.asynchronous === true || isOver
    return { isLate: sent.then((late) => isSentAway || late !== null), isNearEnd }
  }

  wasCancelled(runId: string): boolean {
    return this.#cancelled.has(runId)
  }

  onCancel(listener: (runId: string) => void): void {
    this.#listeners.push(listener)
  }

  async close(): Promise<void> {
    clearInterval(this.#timer)
    this.connection.off('ready', this.#tick)
    await this.#leave()
    this.connection.disconnect()
  }

  #cancel(runId: string): void {
    const now = Date.now()
    for (const [id, at] of this.#cancelled) {
      if (now - at < CANCEL_MEMORY_MS) break
      this.#cancelled.delete(id)
    }
    this.#cancelled.set(runId, now)
    for (const listener of this.#listeners) listener(runId)
  }

  async #beat(metrics: () => Promise<string>): Promise<void> {
    const redis = this.connection
    if (redis.status !== 'ready') return
    await this.#readClock()
    if (this.#isOff) {
      await redis.set(keys.clock(this.workerId), this.#behindMs, 'PX', WORKER_TTL_MS)
    }
    for (const name of this.#served) {
      const values = [this.workerId, WORKER_TTL_MS]
      const names = [keys.workers(name), keys.seen(name)]
      const count = await runScript(redis, HEARTBEAT, names, values)
      if (name === 'bots-sync') this.#liveWorkers = Math.max(1, Number(count))
    }
    await redis.set(keys.metrics(this.workerId), await metrics(), 'PX', WORKER_TTL_MS)
  }

  async #checkOut(reply: ExecuteReply): Promise<ExecuteReply> {
    const { body, ...rest } = reply
    if (body === undefined || Buffer.byteLength(body) <= INLINE_BYTES) return reply
    const bodyKey = keys.body(reply.runId)
    await this.connection.set(bodyKey, body, 'PX', REPLY_TTL_MS)
    return { ...rest, bodyKey }
  }

  /** A worker that stops takes no more work: it leaves at once. */
  async #leave(): Promise<void> {
    const redis = this.connection
    if (redis.status !== 'ready') return
    await Promise.all(this.#served.map((name) => redis.zrem(keys.workers(name), this.workerId)))
    await redis.unlink(keys.metrics(this.workerId))
  }
}

/** The bot queues among the names of WORKER_QUEUES. */
export function botQueues(names: readonly string[]): readonly BotQueue[] {
  return BOT_QUEUES.filter((name) => names.includes(name))
}
