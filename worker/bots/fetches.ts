/**
 * A bot's fetches. A body that arrives within BODY_WAIT_MS goes back with its head; of others the bot asks for the rest,
 * whole or part by part.
 */
import pLimit from 'p-limit'
import type { Outbound } from '../../shared/core/config/outbound.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import {
  type FetchedPieces,
  fetchPieces,
  type OutboundRequest,
} from '../../shared/outbound/fetch-outside.ts'
import type { FetchRecorder } from './fetch-recording.ts'

export const MAX_FETCHES = 50
/** Each may carry 10 MB, held more than once in transit. */
const FETCHES_AT_ONCE = 6
const BODY_WAIT_MS = 20
export const ENDED = new Error('The run has ended')
const CANCELLED = new Error('The request was cancelled')

export interface FetchAnswer extends Omit<FetchedPieces, 'body'> {
  /** Base64. */
  readonly body: string
  /** Names the rest of the body; absent when `body` is all of it. */
  readonly rest?: number
}

interface Part {
  readonly bytes: Buffer
  readonly isDone: boolean
}

export class Fetches {
  readonly #rules: Outbound
  readonly #signal: AbortSignal
  readonly #recorder: FetchRecorder | undefined
  readonly #places = pLimit(FETCHES_AT_ONCE)
  readonly #wholes = pLimit(FETCHES_AT_ONCE)
  readonly #bodies = new Map<number, PartialBody>()
  /** By the ids of the sandbox, which may be wrong; the last one counts. */
  readonly #stops = new Map<unknown, AbortController>()
  #left = MAX_FETCHES
  #lastBody = 0
  #isClosed = false

  constructor(rules: Outbound, signal: AbortSignal, recorder: FetchRecorder | undefined) {
    this.#rules = rules
    this.#signal = signal
    this.#recorder = recorder
  }

  /** Counts a fetch, and returns the means to cancel it. Errors: the run has made its last one. */
  admit(id: unknown): AbortController {
    if (this.#left-- <= 0) throw new Error(`A run may make ${MAX_FETCHES} fetches`)
    const stop = new AbortController()
    if (id !== undefined) this.#stops.set(id, stop)
    return stop
  }

  /** Errors: a message for the bot. */
  fetch(asked: OutboundRequest, stop: AbortController): Promise<FetchAnswer> {
    return this.#places(async () => {
      this.#signal.throwIfAborted()
      if (this.#isClosed) throw ENDED
      if (stop.signal.aborted) throw CANCELLED
      const signal = AbortSignal.any([this.#signal, stop.signal])
      const send = () => fetchPieces(asked, this.#rules, signal)
      const sent = this.#recorder === undefined ? send() : this.#recorder.record(asked, send)
      const { body: pieces, ...answered } = await sent
      const body = new PartialBody(pieces, stop)
      const { bytes, isDone } = await body.read(BODY_WAIT_MS)
      const begun = { ...answered, body: bytes.toString('base64') }
      if (isDone) return begun
      if (this.#isClosed) {
        body.cancel()
        throw ENDED
      }
      const rest = ++this.#lastBody
      this.#bodies.set(rest, body)
      return { ...begun, rest }
    })
  }

  /**
   * Carries out `{id}`, the next part, `{id, isWhole}`, `{id, isCancelled}`, or `{fetches, isCancelled}` of fetches
   * that wait, are under way or have a body. Errors: a message for the bot.
   */
  async readBody(payload: string): Promise<string> {
    const { id, fetches, isWhole, isCancelled } = readObject(payload)
    if (Array.isArray(fetches)) {
      for (const one of fetches) this.#stops.get(one)?.abort()
      return '{}'
    }
    const body = this.#bodies.get(Number(id))
    if (body === undefined) throw new Error('The body has ended')
    if (isCancelled === true) {
      this.#end(Number(id))
      return '{}'
    }
    const { bytes, isDone } = await (isWhole === true
      ? this.#wholes(() => body.readAll())
      : body.readNext())
    if (isDone) this.#end(Number(id))
    return JSON.stringify({ body: bytes.toString('base64'), isDone })
  }

  /** Ends all bodies; further fetches fail. */
  close(): void {
    this.#isClosed = true
    for (const id of this.#bodies.keys()) this.#end(id)
  }

  #end(id: number): void {
    this.#bodies.get(id)?.cancel()
    this.#bodies.delete(id)
  }
}

class PartialBody {
  readonly #pieces: AsyncGenerator<Buffer>
  readonly #stop: AbortController
  readonly #inTurn = pLimit(1)
  /** Asked for and not yet returned. */
  #next: Promise<IteratorResult<Buffer>> | undefined

  constructor(pieces: AsyncGenerator<Buffer>, stop: AbortController) {
    this.#pieces = pieces
    this.#stop = stop
  }

  /** Returns the bytes that arrive within this time. */
  read(ms: number): Promise<Part> {
    return this.#inTurn(async () => {
      const late = Promise.withResolvers<undefined>()
      const timer = setTimeout(late.resolve, ms, undefined)
      try {
        return await this.#collect((next) => Promise.race([next, late.promise]))
      } finally {
        clearTimeout(timer)
      }
    })
  }

  readAll(): Promise<Part> {
    return this.#inTurn(() => this.#collect((next) => next))
  }

  readNext(): Promise<Part> {
    return this.#inTurn(async () => {
      const { done, value } = await this.#ask()
      this.#next = undefined
      return done === true
        ? { bytes: Buffer.alloc(0), isDone: true }
        : { bytes: value, isDone: false }
    })
  }

  cancel(): void {
    this.#stop.abort()
    void this.#pieces.return(undefined).catch(() => undefined)
  }

  async #collect(
    wait: (next: Promise<IteratorResult<Buffer>>) => Promise<IteratorResult<Buffer> | undefined>,
  ): Promise<Part> {
    const chunks: Buffer[] = []
    for (;;) {
      const got = await wait(this.#ask())
      if (got === undefined) return { bytes: Buffer.concat(chunks), isDone: false }
      this.#next = undefined
      if (got.done === true) return { bytes: Buffer.concat(chunks), isDone: true }
      chunks.push(got.value)
    }
  }

  #ask(): Promise<IteratorResult<Buffer>> {
    if (this.#next === undefined) {
      this.#next = this.#pieces.next()
      // Read later, or never.
      this.#next.catch(() => undefined)
    }
    return this.#next
  }
}

function readObject(text: string): Readonly<Record<string, unknown>> {
  const value: unknown = JSON.parse(text)
  if (!isObject(value)) throw new Error('The call is not an object')
  return value
}
