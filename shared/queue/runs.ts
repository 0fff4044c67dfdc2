/** The worker's end of the bot queues: inputs, replies, the write journal, cancellation. */
import type { Config } from '../core/config/config.ts'
import type { Logger } from '../core/log.ts'
import type { Bus } from '../redis/bus.ts'
import { openPresence, type Presence } from '../redis/presence.ts'
import { openRedis, type Redis, untilReady } from '../redis/redis.ts'
import { runScript, script } from '../redis/script.ts'
import { CANCEL, type ExecuteJob, type ExecuteReply, INLINE_BYTES, keys } from './jobs.ts'

/** Replies of longer runs are also stored, in case the channel broke. */
const KEEP_AFTER_MS = 2000
const REPLY_TTL_MS = 60_000
const CANCEL_MEMORY_MS = 60_000

/** KEYS journal; ARGV attempt, ms to keep the mark. Returns the attempt that may write: the first to ask. */
const MARK = script(`
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
return redis.call('GET', KEYS[1])`)

/**
 * KEYS flight, reply, late, input, journal; ARGV runId, channel ('': no waiting caller), message, keep (1: stores the
 * reply even if it was received), attempt ('': no other attempt can be running), ms to keep its mark. Releases the
 * run's slot and publishes its reply. Returns the late mark.
 */
const REPLY = script(`
redis.call('ZREM', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then
  local heard = redis.call('PUBLISH', ARGV[2], ARGV[3])
  if heard == 0 or ARGV[4] == '1' then redis.call('SET', KEYS[2], ARGV[3], 'PX', 60000) end
end
redis.call('UNLINK', KEYS[4])
if ARGV[5] ~= '' then redis.call('SET', KEYS[5], ARGV[5], 'PX', ARGV[6], 'NX') end
return redis.call('GET', KEYS[3])`)

export interface RunEnd {
  readonly ranMs: number
  readonly attempt?: string | undefined
}

interface Finished {
  /** True when the result goes to an AsyncJob. */
  readonly isLate: Promise<boolean>
  /** True when the caller has got, or may soon get, a status URL. */
  readonly isNearEnd: boolean
}

/** Waits up to 30 s for Redis. */
export async function openRuns(config: Config, bus: Bus, log: Logger): Promise<Runs> {
  const connection = openRedis(config, 'worker', log)
  await untilReady(connection, log)
  const runs = new Runs(config, connection, await openPresence(connection, log))
  await runs.open(bus)
  return runs
}

export class Runs {
  /** For BullMQ: keeps the order of run and job commands, and sends them together. */
  readonly connection: Redis
  readonly presence: Presence
  readonly #config: Config
  readonly #cancelled = new Map<string, number>()
  readonly #listeners: ((runId: string) => void)[] = []

  constructor(config: Config, connection: Redis, presence: Presence) {
    this.#config = config
    this.connection = connection
    this.presence = presence
  }

  async open(bus: Bus): Promise<void> {
    await bus.listen(CANCEL, (runId) => this.#cancel(runId))
  }

  /** Errors: the key has expired. */
  async input(job: ExecuteJob): Promise<string | undefined> {
    if (job.inputKey === undefined) return job.input
    const text = await this.connection.get(job.inputKey)
    if (text === null) throw new Error(`The input of run ${job.runId} has expired`)
    return text
  }

  /** Records that an attempt is about to write. False when another attempt recorded first: this one must not write. */
  async markWrite({ runId, deadline }: ExecuteJob, attempt: string): Promise<boolean> {
    const names = [keys.journal(runId)]
    const writer = await runScript(this.connection, MARK, names, [attempt, this.#keepMs(deadline)])
    return writer === attempt
  }

  async hasWritten(runId: string): Promise<boolean> {
    return (await this.connection.exists(keys.journal(runId))) === 1
  }

  /** Covers the time in which another attempt may start. */
  #keepMs(deadline: number): number {
    return Math.max(deadline - this.presence.now(), 0) + this.#config.botTimeoutMaxMs + REPLY_TTL_MS
  }

  /** True when the caller got a status URL. */
  async isLate(runId: string): Promise<boolean> {
    return (await this.connection.exists(keys.late(runId))) === 1
  }

  /** Sends the reply before later commands on `connection`. `attempt` bars all other attempts from writing. */
  async finish(
    job: ExecuteJob,
    reply: ExecuteReply,
    { ranMs, attempt = '' }: RunEnd,
  ): Promise<Finished> {
    const queue = job.asynchronous ? 'bots-async' : 'bots-sync'
    const { runId } = job
    const awaited = job.reply !== undefined
    const isNearEnd = this.presence.now() > (job.waitUntil ?? 0) - KEEP_AFTER_MS
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
    // A caller past its wait time got a status URL, even if Redis has lost the mark.
    const isOver = this.presence.now() > (job.waitUntil ?? Number.POSITIVE_INFINITY)
    const isDetached = job.asynchronous === true || (isOver && reply.streamed === undefined)
    return { isLate: sent.then((late) => isDetached || late !== null), isNearEnd }
  }

  wasCancelled(runId: string): boolean {
    return this.#cancelled.has(runId)
  }

  onCancel(listener: (runId: string) => void): void {
    this.#listeners.push(listener)
  }

  async close(): Promise<void> {
    await this.presence.close()
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

  async #checkOut(reply: ExecuteReply): Promise<ExecuteReply> {
    const { body, ...rest } = reply
    if (body === undefined || Buffer.byteLength(body) <= INLINE_BYTES) return reply
    const bodyKey = keys.body(reply.runId)
    await this.connection.set(bodyKey, body, 'PX', REPLY_TTL_MS)
    return { ...rest, bodyKey }
  }
}
