/**
 * The worker's end of streamed answers (`shared/queue/streams.ts`): `event.responseStream` of a bot. A write waits while
 * the caller's socket is WINDOW_BYTES behind, so that a slow reader slows the bot down.
 */
import { randomUUID } from 'node:crypto'
import pLimit from 'p-limit'
import type { StreamRecord } from '../../shared/bots/run-records.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import {
  ALIVE_MS,
  PROGRESS,
  STREAM,
  type StreamHead,
  type StreamMessage,
  WINDOW_BYTES,
} from '../../shared/queue/streams.ts'
import type { Bus } from '../../shared/redis/bus.ts'
import { safeContentType } from '../../shared/request/binary/content.ts'
import { EVENT_STREAM } from '../../shared/request/reply.ts'

const CHUNK_BYTES = WINDOW_BYTES / 4
/** A web process silent for this long has ended. */
const SILENCE_MS = 3 * ALIVE_MS
const GONE = new Error('The caller has gone')

export interface AnswerStreams {
  /** Undefined unless the caller takes a stream. */
  open(run: StreamedRun): AnswerStream | undefined
  close(): void
}

interface StreamedRun {
  readonly job: ExecuteJob
  readonly maxBytes: number
  /** Resolves when the run counts as one with effects. */
  markWrite(): Promise<void>
  stop(reason: Error): void
}

export interface AnswerStream {
  /** Carries out `{start}`, `{parts}` or `{end}` of the bot. Errors: a message for the bot. */
  answer(payload: string): Promise<string>
  /** Undefined until the bot has started the answer. */
  readonly made: StreamRecord | undefined
  close(): void
}

/** Errors: those of Redis. */
export async function openAnswerStreams(bus: Bus): Promise<AnswerStreams> {
  const worker = randomUUID()
  const open = new Map<string, BotAnswer>()
  const onTaken = ({ runId, taken, isGone }: { runId: string; taken: number; isGone?: true }) => {
    const answer = open.get(runId)
    if (isGone) answer?.leave()
    else answer?.progress(taken)
  }
  const listening = await bus.listen(PROGRESS, onTaken, worker)
  const watching = setInterval(() => {
    for (const answer of open.values()) answer.check()
  }, ALIVE_MS)
  return {
    open(run) {
      const { stream, runId } = run.job
      if (stream === undefined) return undefined
      const send = (message: StreamMessage) => bus.publish(STREAM, message, stream)
      const answer = new BotAnswer(run, worker, send, () => open.delete(runId))
      open.set(runId, answer)
      return answer
    },
    close() {
      clearInterval(watching)
      listening.close().catch(() => undefined)
    },
  }
}

class BotAnswer implements AnswerStream {
  readonly #run: StreamedRun
  readonly #worker: string
  readonly #send: (message: StreamMessage) => Promise<unknown>
  readonly #onClose: () => void
  readonly #accepted = Promise.withResolvers<void>()
  #head: StreamHead | undefined
  #sent = 0
  #number = 0
  #taken = 0
  #heardAt: number | undefined
  #isAccepted = false
  #isEnded = false
  #isGone = false
  /** Carries out one call after the other. */
  readonly #inTurn = pLimit(1)
  #wake = () => {}

  constructor(
    run: StreamedRun,
    worker: string,
    send: (message: StreamMessage) => Promise<unknown>,
    onClose: () => void,
  ) {
    this.#run = run
    this.#worker = worker
    this.#send = send
    this.#onClose = onClose
    this.#accepted.promise.catch(() => {})
  }

  get made(): StreamRecord | undefined {
    if (this.#head === undefined) return undefined
    return { status: this.#head.status, bytes: this.#sent, chunks: this.#number }
  }

  async answer(payload: string): Promise<string> {
    await this.#inTurn(() => this.#carryOut(JSON.parse(payload)))
    return '{}'
  }

  progress(taken: number): void {
    this.#heardAt = Date.now()
    this.#taken = Math.max(this.#taken, taken)
    this.#isAccepted = true
    this.#accepted.resolve()
    this.#wake()
  }

  /** The caller has disconnected, which stops the run, or got a status URL before the answer began. */
  leave(): void {
    this.#lose(this.#isAccepted)
  }

  check(): void {
    const silenceMs = this.#heardAt === undefined ? 0 : Date.now() - this.#heardAt
    if (silenceMs > SILENCE_MS) this.#lose(true)
  }

  close(): void {
    this.#isEnded = true
    this.#wake()
    this.#onClose()
  }

  #lose(isStopped: boolean): void {
    if (this.#isEnded || this.#isGone) return
    this.#isGone = true
    this.#accepted.reject(GONE)
    this.#wake()
    if (isStopped) this.#run.stop(GONE)
  }

  async #carryOut(asked: unknown): Promise<void> {
    if (!isObject(asked)) throw new Error('The call is not an object')
    if (this.#isEnded) throw new Error('The answer has ended')
    if (isObject(asked.start)) await this.#start(readHead(asked.start))
    if (Array.isArray(asked.parts)) await this.#write(Buffer.concat(asked.parts.map(toBytes)))
    if (asked.end === true) await this.#end()
  }

  async #start(head: StreamHead): Promise<void> {
    if (this.#head !== undefined) throw new Error('The answer has started')
    await this.#run.markWrite()
    const { runId } = this.#run.job
    this.#heardAt = Date.now()
    await this.#send({ runId, kind: 'start', worker: this.#worker, head })
    await this.#accepted.promise
    this.#head = head
  }

  async #write(bytes: Buffer): Promise<void> {
    if (this.#head === undefined) throw new Error('Call startStreaming before write')
    const { maxBytes, job } = this.#run
    if (this.#sent + bytes.length > maxBytes) {
      throw new Error(`A run may stream ${Math.round(maxBytes / 1024 / 10.24) / 100} MB`)
    }
    for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
      const chunk = bytes.subarray(at, at + CHUNK_BYTES)
      await this.#room(chunk.length)
      this.#sent += chunk.length
      const data = chunk.toString('base64')
      await this.#send({ runId: job.runId, kind: 'chunk', number: ++this.#number, data })
    }
  }

  async #end(): Promise<void> {
    if (this.#head === undefined) throw new Error('Call startStreaming before end')
    await this.#send({ runId: this.#run.job.runId, kind: 'end', number: this.#number })
    this.close()
  }

  async #room(length: number): Promise<void> {
    while (this.#sent + length - this.#taken > WINDOW_BYTES) {
      if (this.#isGone || this.#isEnded) break
      await new Promise<void>((resolve) => {
        this.#wake = resolve
      })
    }
    if (this.#isGone) throw GONE
    if (this.#isEnded) throw new Error('The run has ended')
  }
}

/** A bot's headers that cannot affect other pages of this origin or the connection. */
const ALLOWED = new Set(['cache-control', 'content-language', 'content-type'])
/** Common in the code of event streams; the server sets them itself. */
const OWN = new Set(['connection', 'keep-alive', 'transfer-encoding', 'x-accel-buffering'])
/** These have no body. */
const EMPTY = new Set([204, 205, 304])
const VALUE = /^[\x20-\x7e]{0,1000}$/

/** Errors: a message for the bot. */
function readHead({ status, headers }: Readonly<Record<string, unknown>>): StreamHead {
  const code = Number(status)
  if (!Number.isInteger(code) || code < 200 || code > 599 || EMPTY.has(code)) {
    throw new Error(`An answer cannot be streamed with status ${String(status).slice(0, 20)}`)
  }
  const given = Object.entries(isObject(headers) ? headers : {})
    .map(([name, value]) => [name.toLowerCase(), String(value)] as const)
    .filter(([name]) => !OWN.has(name))
  for (const [name, value] of given) {
    const shown = name.slice(0, 50)
    if (!ALLOWED.has(name)) throw new Error(`A bot may not set the header ${shown}`)
    if (!VALUE.test(value)) throw new Error(`The header ${shown} has an invalid value`)
  }
  const { 'content-type': type = EVENT_STREAM, ...rest } = Object.fromEntries(given)
  return { status: code, headers: { ...rest, 'content-type': safeContentType(type) } }
}

function toBytes(part: unknown): Buffer {
  if (typeof part === 'string') return Buffer.from(part)
  const { bytes } = isObject(part) ? part : {}
  return Buffer.from(typeof bytes === 'string' ? bytes : '', 'base64')
}
