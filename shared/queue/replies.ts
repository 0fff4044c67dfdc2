/**
 * The reply channel of one process and its waiting callers. A message can be missed while Redis is away; after a
 * reconnect every waiter looks for its stored reply. A run without a reply whose job Redis has lost may have begun, so
 * its caller gets `interrupted`.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import type { Logger } from '../core/log.ts'
import { yieldAfterPendingIo, yieldTurn } from '../core/yielding.ts'
import type { Bus } from '../redis/bus.ts'
import type { Redis } from '../redis/redis.ts'
import { type ExecuteJob, type ExecuteReply, keys, REPLY } from './jobs.ts'

export interface Waiter {
  /** Undefined when the time is over, `gone` when the caller is. */
  readonly reply: Promise<ExecuteReply | 'gone' | undefined>
}

export interface Replies {
  /** Where workers publish the replies for this process. */
  readonly channel: string
  wait(job: ExecuteJob, waitMs: number, signal: AbortSignal | undefined): Waiter
  /** The job may or may not have reached Redis; it is withdrawn, at the latest when Redis is back. */
  abandon(job: ExecuteJob): void
  /** Ends the wait of every caller, as if its time were over. */
  sendAway(): void
  close(): void
}

interface RepliesOptions {
  readonly redis: Redis
  readonly bus: Bus
  readonly log: Logger
  has(runId: string): Promise<boolean>
  withdraw(job: ExecuteJob): Promise<unknown>
}

/** A worker whose Redis has forgotten its scripts may give back a job before it has said how the run ended. */
const GONE_MS = 500

interface Waiting {
  readonly job: ExecuteJob
  readonly settle: (reply: ExecuteReply | 'gone' | undefined) => void
}

/** Subscribes to the channel; `close` lets every waiter end without a reply. */
export async function openReplies(options: RepliesOptions): Promise<Replies> {
  const replies = new ReplyChannel(options)
  await replies.open()
  return replies
}

class ReplyChannel implements Replies {
  readonly channel: string
  readonly #address = randomUUID()
  readonly #options: RepliesOptions
  readonly #waiting = new Map<string, Waiting>()
  readonly #abandoned = new Map<string, ExecuteJob>()
  #listening: Awaited<ReturnType<Bus['listen']>> | undefined
  #gaps: ReturnType<Bus['onGap']> | undefined
  readonly #onReady = () => {
    const { log } = this.#options
    this.#recover().catch((error: unknown) => log.warn({ cause: error }, 'Replies may be missing'))
  }

  constructor(options: RepliesOptions) {
    this.#options = options
    this.channel = options.bus.channel(REPLY, this.#address)
  }

  async open(): Promise<void> {
    const { redis, bus } = this.#options
    const hear = async (reply: ExecuteReply) => {
      await yieldTurn()
      this.#waiting.get(reply.runId)?.settle(reply)
    }
    this.#listening = await bus.listen(REPLY, hear, this.#address)
    redis.on('ready', this.#onReady)
    this.#gaps = bus.onGap(this.#onReady)
  }

  wait(job: ExecuteJob, waitMs: number, signal: AbortSignal | undefined): Waiter {
    const { promise, resolve } = Promise.withResolvers<ExecuteReply | 'gone' | undefined>()
    const settle = (reply: ExecuteReply | 'gone' | undefined) => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', onAbort)
      this.#waiting.delete(job.runId)
      resolve(reply)
    }
    const onAbort = () => settle('gone')
    // The time may be over before a busy process has read a reply that came in time.
    const timer = setTimeout(() => void yieldAfterPendingIo().then(() => settle(undefined)), waitMs)
    signal?.addEventListener('abort', onAbort, { once: true })
    this.#waiting.set(job.runId, { job, settle })
    if (signal?.aborted) onAbort()
    return { reply: promise }
  }

  abandon(job: ExecuteJob): void {
    this.#abandoned.set(job.runId, job)
    this.#waiting.get(job.runId)?.settle(undefined)
    // Redis runs commands in order, so this one comes last even where Redis was merely silent.
    this.#withdraw(job).catch(() => undefined)
  }

  sendAway(): void {
    for (const { settle } of [...this.#waiting.values()]) settle(undefined)
  }

  close(): void {
    this.#options.redis.off('ready', this.#onReady)
    this.#gaps?.close()
    this.#listening?.close().catch(() => undefined)
    this.sendAway()
  }

  async #recover(): Promise<void> {
    const { redis, bus } = this.#options
    // First hear, then look: a reply between the two is seen by one of them.
    if (redis.status !== 'ready' || !bus.isReady) return
    await Promise.all([...this.#abandoned.values()].map((job) => this.#withdraw(job)))
    await Promise.all([...this.#waiting.values()].map((entry) => this.#look(entry)))
  }

  async #look(entry: Waiting): Promise<void> {
    const { redis, has } = this.#options
    const { runId } = entry.job
    const isKnown = await has(runId)
    // A job that has ended just now has its reply on the way.
    if (!isKnown) await delay(GONE_MS).then(yieldAfterPendingIo)
    const stored = await redis.get(keys.reply(runId))
    if (stored !== null) entry.settle(JSON.parse(stored))
    else if (!isKnown) entry.settle(interrupted(runId))
  }

  async #withdraw(job: ExecuteJob): Promise<void> {
    await this.#options.withdraw(job)
    this.#abandoned.delete(job.runId)
  }
}

export const INTERRUPTED =
  'Bot run interrupted: its process ended. It may have had effects; it can be retried if they may happen twice'

/** The reply of a run that stopped midway and cannot be repeated. */
export function interrupted(runId: string): ExecuteReply {
  const outcome = {
    resourceType: 'OperationOutcome',
    issue: [
      {
        severity: 'error',
        code: 'transient',
        details: { text: INTERRUPTED },
        diagnostics: runId,
      },
    ],
  }
  return { runId, status: 'interrupted', kind: 'outcome', body: JSON.stringify(outcome) }
}
