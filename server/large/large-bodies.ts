/**
 * Runs requests with large bodies in a thread, where seconds of synchronous work delay only other large bodies. The
 * thread (`large-thread.ts`) has its own services and starts with the first large body. Requests and replies cross as
 * plain values, and bodies without a copy. When the thread ends, its callers get 503. Small requests that change a
 * large resource run there, too (`OffloadRequired`).
 */
import { Worker } from 'node:worker_threads'
import type { Config } from '../../shared/core/config/config.ts'
import { HttpError, unavailable } from '../../shared/core/errors.ts'
import { countDatabaseTime } from '../../shared/postgres/database.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import type { LargeWork, ThreadCaller } from '../http/context.ts'

interface LargeBodies extends LargeWork {
  /** Sends callers of running bots the address of the result. */
  detachWaitingCallers(): void
  close(): Promise<void>
}

const CLOSE_MS = 10_000
/** The size set for web in the Procfile: semi-spaces of 32 MB, three of which make up the young generation. */
const MOST_YOUNG_MB = 96
const YOUNG_SHARE = 1 / 16

interface Thread {
  readonly worker: Worker
  readonly calls: Map<number, PromiseWithResolvers<Answer>>
}

export function openLargeBodies({ config, log }: Services): LargeBodies {
  let running: Thread | undefined
  let lastCall = 0
  const young = Math.min(MOST_YOUNG_MB, Math.ceil(config.webMemoryMb * YOUNG_SHARE))

  const start = (): Thread => {
    const worker = new Worker(new URL('../large-thread.ts', import.meta.url), {
      workerData: config satisfies Config,
      resourceLimits: { maxYoungGenerationSizeMb: young },
    })
    const thread: Thread = { worker, calls: new Map() }
    worker.on('message', (answer: Answer) => thread.calls.get(answer.id)?.resolve(answer))
    worker.once('error', (error) => {
      log.error({ err: error }, 'The thread for large bodies failed')
    })
    worker.once('exit', () => {
      if (running === thread) running = undefined
      for (const { reject } of thread.calls.values()) {
        reject(unavailable('The thread for large bodies'))
      }
    })
    return thread
  }

  return {
    async handleRequest(caller, request) {
      request.signal?.throwIfAborted()
      running ??= start()
      return await ask(running, ++lastCall, caller, request)
    },
    detachWaitingCallers() {
      running?.worker.postMessage({ kind: 'detach' } satisfies ToThread)
    },
    async close() {
      const { worker } = running ?? {}
      if (worker === undefined) return
      const ended = new Promise((resolve) => worker.once('exit', resolve))
      worker.postMessage({ kind: 'stop' } satisfies ToThread)
      const timer = setTimeout(() => void worker.terminate(), CLOSE_MS)
      await ended
      clearTimeout(timer)
    },
  }
}

async function ask(
  { worker, calls }: Thread,
  id: number,
  caller: ThreadCaller,
  request: FhirRequest,
): Promise<FhirReply> {
  const call = Promise.withResolvers<Answer>()
  calls.set(id, call)
  const sent = plain(request)
  worker.postMessage(
    { kind: 'call', id, caller, request: sent } satisfies ToThread,
    transferable(sent.body),
  )
  const { signal } = request
  const abort = () => {
    worker.postMessage({ kind: 'abort', id } satisfies ToThread)
    call.reject(signal?.reason)
  }
  signal?.addEventListener('abort', abort)
  try {
    return replyIn(await call.promise)
  } finally {
    signal?.removeEventListener('abort', abort)
    calls.delete(id)
  }
}

/** Errors: the request's error in the thread. */
function replyIn({ reply, failure, databaseMs }: Answer): FhirReply {
  countDatabaseTime(performance.now() - databaseMs)
  if (reply !== undefined) return { ...reply, body: reply.body && view(reply.body) }
  const { status, outcome, headers, cause } = failure
  throw new HttpError(status, outcome, { headers, cause })
}

function plain(request: FhirRequest): PlainRequest {
  const { method, readsOnly = false, isPreCommitted = false } = request
  const { path, projectScope, query, headers, body, requestId, traceId } = request
  const queryText = request.queryText ?? query.toString()
  const isUpload = request.upload !== undefined
  const content = Buffer.isBuffer(request.upload) ? request.upload : body
  return {
    method,
    readsOnly,
    path,
    queryText,
    headers,
    requestId,
    traceId,
    isPreCommitted,
    body: content,
    isUpload,
    ...(projectScope === undefined ? {} : { projectScope }),
  }
}

/** Restores a Buffer, which crosses as a Uint8Array. */
export function view({ buffer, byteOffset, byteLength }: Uint8Array): Buffer {
  return Buffer.from(buffer, byteOffset, byteLength)
}

/** Copies small Buffers, whose memory is shared. */
export function transferable(body: PlainRequest['body']): ArrayBuffer[] {
  if (body === undefined || typeof body === 'string') return []
  const { buffer, byteLength } = body
  return buffer instanceof ArrayBuffer && buffer.byteLength === byteLength ? [buffer] : []
}

export interface PlainRequest
  extends Pick<
    FhirRequest,
    'method' | 'path' | 'projectScope' | 'headers' | 'requestId' | 'traceId'
  > {
  readonly readsOnly: boolean
  readonly isPreCommitted: boolean
  readonly queryText: string
  readonly body: Uint8Array | string | undefined
  /** The body is the content of a Binary. */
  readonly isUpload: boolean
}

export type ToThread =
  | {
      readonly kind: 'call'
      readonly id: number
      readonly caller: ThreadCaller
      readonly request: PlainRequest
    }
  | { readonly kind: 'abort'; readonly id: number }
  | { readonly kind: 'detach' | 'stop' }

export type Answer = { readonly id: number; readonly databaseMs: number } & (
  | { readonly reply: PlainReply; readonly failure?: undefined }
  | { readonly reply?: undefined; readonly failure: PlainFailure }
)

export interface PlainReply extends Omit<FhirReply, 'body' | 'pieces' | 'open'> {
  readonly body: Uint8Array | undefined
}

export interface PlainFailure extends Pick<HttpError, 'status' | 'outcome'> {
  readonly headers: Record<string, string>
  readonly cause: string | undefined
}
