/**
 * Reply channel of a process. After a reconnect waiters check for stored replies; if Redis lost the job of a run
 * without a reply, it may have begun, and its caller gets `interrupted`.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import type { Logger } from '../core/log.ts'
import { yieldAfterPendingIo, yieldTurn } from '../core/yielding.ts'
import type { Bus } from '../redis/bus.ts'
import type { Redis } from '../redis/redis.ts'
import { type ExecuteJob, type ExecuteReply, keys, REPLY } from './jobs.ts'
import { PROGRESS, STREAM, StreamedAnswer, type StreamMessage } from './streams.ts'

/** Undefined after the wait time, `gone` when the caller disconnected. */
type Answered = ExecuteReply | StreamedAnswer | 'gone' | undefined

export interface Waiter {
  readonly reply: Promise<Answered>
}

interface RepliesOptions {
  readonly redis: Redis
  readonly bus: Bus
  readonly log: Logger
  has(runId: string): Promise<boolean>
  withdraw(job: ExecuteJob): Promise<unknown>
}

/** A worker whose Redis lost its scripts may release a job before it reports the end of the run. */
const GONE_MS = 500

interface Waiting {
  readonly job: ExecuteJob
  readonly settle: (reply: Answered) => void
}

/** Subscribes to the channel; `close` ends all waits without a reply. */
export async function openReplies(options: RepliesOptions): Promise<Replies> {
  const replies = new Replies(options)
  await replies.open()
  return replies
}

export class Replies {
  readonly channel: string
  /** Address of this process for streamed answers. */
  readonly address = randomUUID()
  readonly #options: RepliesOptions
  readonly #waiting = new Map<string, Waiting>()
  readonly #streams = new Map<string, StreamedAnswer>()
  readonly #abandoned = new Map<string, ExecuteJob>()
  readonly #listening: Awaited<ReturnType<Bus['listen']>>[] = []
  #gaps: ReturnType<Bus['onGap']> | undefined
  readonly #onReady = () => {
    const { log } = this.#options
    this.#recover().catch((error: unknown) => log.warn({ cause: error }, 'Replies may be missing'))
  }

  constructor(options: RepliesOptions) {
    this.#options = options
    this.channel = options.bus.channel(REPLY, this.address)
  }

  async open(): Promise<void> {
    const { redis, bus } = this.#options
    const onReply = async (reply: ExecuteReply) => {
      await yieldTurn()
      this.#waiting.get(reply.runId)?.settle(reply)
      this.#streams.get(reply.runId)?.settle(reply)
    }
    this.#listening.push(
      await bus.listen(REPLY, onReply, this.address),
      await bus.listen(STREAM, (message) => this.#receiveStream(message), this.address),
    )
    redis.on('ready', this.#onReady)
    this.#gaps = bus.onGap(() => {
      // A lost end would leave its caller waiting.
      for (const stream of this.#streams.values()) stream.cut('The connection to Redis was lost')
      this.#onReady()
    })
  }

  wait(job: ExecuteJob, waitMs: number, signal: AbortSignal | undefined): Waiter {
    const { promise, resolve } = Promise.withResolvers<Answered>()
    const settle = (reply: Answered) => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', onAbort)
      this.#waiting.delete(job.runId)
      resolve(reply)
    }
    const onAbort = () => settle('gone')
    // A busy process may have received a reply in time without reading it yet.
    const timer = setTimeout(() => void yieldAfterPendingIo().then(() => settle(undefined)), waitMs)
    signal?.addEventListener('abort', onAbort, { once: true })
    this.#waiting.set(job.runId, { job, settle })
    if (signal?.aborted) onAbort()
    return { reply: promise }
  }

  /** Withdraws a job that may or may not have reached Redis, at the latest once Redis is back. */
  abandon(job: ExecuteJob): void {
    this.#abandoned.set(job.runId, job)
    this.#waiting.get(job.runId)?.settle(undefined)
    // Redis runs commands in order, so this one comes last even if Redis was only slow.
    this.#withdraw(job).catch(() => undefined)
  }

  /** Ends all waits; the callers get the address of the result. */
  detachWaitingCallers(): void {
    for (const { settle } of [...this.#waiting.values()]) settle(undefined)
  }

  close(): void {
    this.#options.redis.off('ready', this.#onReady)
    this.#gaps?.close()
    for (const listening of this.#listening) listening.close().catch(() => undefined)
    for (const stream of this.#streams.values()) stream.cut('The process ends')
    this.detachWaitingCallers()
  }

  /** The first message of a stream is the answer of its waiter; without one the run learns that its caller has gone. */
  #receiveStream(message: StreamMessage): void {
    const { runId } = message
    const known = this.#streams.get(runId)
    if (known !== undefined || message.kind !== 'start') {
      known?.receive(message)
      return
    }
    const { bus, log } = this.#options
    const { worker, head } = message
    const waiting = this.#waiting.get(runId)
    if (waiting === undefined) {
      const gone = bus.publish(PROGRESS, { runId, taken: 0, isGone: true }, worker)
      gone.catch((cause: unknown) => log.debug({ runId, cause }, 'A streamed answer has no caller'))
      return
    }
    const onOver = () => void this.#streams.delete(runId)
    const stream = new StreamedAnswer({ runId, worker, head, bus, log, onOver })
    this.#streams.set(runId, stream)
    waiting.settle(stream)
  }

  async #recover(): Promise<void> {
    const { redis, bus } = this.#options
    // Subscribe before reading the stored replies, so that none is missed between the two.
    if (redis.status !== 'ready' || !bus.isReady) return
    await Promise.all([...this.#abandoned.values()].map((job) => this.#withdraw(job)))
    await Promise.all([...this.#waiting.values()].map((entry) => this.#look(entry)))
  }

  async #look(entry: Waiting): Promise<void> {
    const { redis, has } = this.#options
    const { runId } = entry.job
    const isKnown = await has(runId)
    // The reply of a job that has just ended may be in flight.
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
