/**
 * Streamed answers: a worker sends the chunks of a run to the web process of the waiting caller, which reports how
 * much the socket has taken. Redis pub/sub may lose messages, so chunks are numbered and a gap cuts the answer.
 */
import type { Logger } from '../core/log.ts'
import { type Bus, messageKind } from '../redis/bus.ts'
import type { ExecuteReply } from './jobs.ts'

/** Status and headers, fixed before the first chunk. */
export interface StreamHead {
  readonly status: number
  /** Lower-case names. */
  readonly headers: Readonly<Record<string, string>>
}

export type StreamMessage = { readonly runId: string } & (
  | { readonly kind: 'start'; readonly worker: string; readonly head: StreamHead }
  /** `number` counts from 1; `data` is base64. */
  | { readonly kind: 'chunk'; readonly number: number; readonly data: string }
  /** The answer is complete after chunk `number`; the run may go on. */
  | { readonly kind: 'end'; readonly number: number }
)

/** To a web process. */
export const STREAM = messageKind<StreamMessage>('stream')

interface StreamProgress {
  readonly runId: string
  /** Bytes that the socket has taken so far. */
  readonly taken: number
  /** The caller has gone, or has got another answer. */
  readonly isGone?: true
}

/** To the worker of the run, also without progress, as a sign of life. */
export const PROGRESS = messageKind<StreamProgress>('stream-progress')

/** A worker sends this much ahead of the socket. */
export const WINDOW_BYTES = 256 * 1024
const REPORT_BYTES = WINDOW_BYTES / 4
export const ALIVE_MS = 5000

/** The answer cannot be completed. */
class StreamCut extends Error {}

interface AnswerOptions {
  readonly runId: string
  readonly worker: string
  readonly head: StreamHead
  readonly bus: Bus
  readonly log: Logger
  /** Called once, when no more messages are expected. */
  onOver(): void
}

/** The web's end of a streamed answer. Holds at most WINDOW_BYTES. */
export class StreamedAnswer {
  readonly head: StreamHead
  readonly #options: AnswerOptions
  readonly #arrived: Buffer[] = []
  readonly #alive: NodeJS.Timeout
  #number = 0
  #taken = 0
  #reported = 0
  #isComplete = false
  #cut: StreamCut | undefined
  #wake = () => {}

  constructor(options: AnswerOptions) {
    this.#options = options
    this.head = options.head
    this.#alive = setInterval(() => this.#report(), ALIVE_MS)
    // Notifies the worker that the caller takes the answer.
    this.#report()
  }

  receive(message: StreamMessage): void {
    if (this.#isComplete || message.kind === 'start') return
    if (message.kind === 'end') this.#complete(message.number)
    else if (message.number !== this.#number + 1) this.cut('Part of the answer was lost')
    else {
      this.#number++
      this.#arrived.push(Buffer.from(message.data, 'base64'))
      this.#wake()
    }
  }

  /** The run has ended: its answer is complete if it succeeded. */
  settle({ status, streamed = 0 }: ExecuteReply): void {
    if (this.#isComplete) return
    if (status === 'ok') this.#complete(streamed)
    else this.cut('The run failed')
  }

  /** Ends the answer as incomplete and notifies the worker. */
  cut(reason: string): void {
    if (this.#isComplete || this.#cut !== undefined) return
    this.#cut = new StreamCut(reason)
    this.#publish({ isGone: true })
    this.#end()
  }

  /** Yields chunks as the reader asks for them. Errors: the answer is incomplete. */
  async *chunks(): AsyncGenerator<Buffer> {
    try {
      for (;;) {
        const chunk = this.#arrived.shift()
        if (chunk !== undefined) {
          const { length } = chunk
          yield chunk
          this.#taken += length
          if (this.#taken - this.#reported >= REPORT_BYTES) this.#report()
        } else if (this.#cut !== undefined) throw this.#cut
        else if (this.#isComplete) return
        else await new Promise<void>((resolve) => (this.#wake = resolve))
      }
    } finally {
      // Without effect after the last chunk.
      this.cut('The caller has gone')
    }
  }

  #complete(number: number): void {
    if (number !== this.#number) {
      this.cut('Part of the answer was lost')
      return
    }
    this.#isComplete = true
    this.#end()
  }

  #end(): void {
    clearInterval(this.#alive)
    this.#options.onOver()
    this.#wake()
  }

  #report(): void {
    this.#reported = this.#taken
    this.#publish({})
  }

  #publish(more: Pick<StreamProgress, 'isGone'>): void {
    const { bus, runId, worker, log } = this.#options
    bus
      .publish(PROGRESS, { runId, taken: this.#taken, ...more }, worker)
      .catch((cause: unknown) => {
        log.debug({ runId, cause }, 'The progress of a streamed answer could not be sent')
      })
  }
}
