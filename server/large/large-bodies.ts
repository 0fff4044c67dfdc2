/**
 * Requests with large bodies go to a thread. To parse, validate, index and write such a body takes up to seconds
 * of synchronous work; in the thread it delays nobody but other large bodies. The thread (`large-thread.ts`) is the
 * same web app on the same stores, as another process would be; it starts with the first large body. It
 * listens on the loopback interface and serves only who knows a secret of this process; the event loop copies
 * bytes from one socket to the other. When the thread dies, its callers get 503 and the next one starts another.
 * So does a small request that changes a large resource: web finds that out before it begins.
 */

import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { Agent, type IncomingMessage, request, type ServerResponse } from 'node:http'
import { Worker } from 'node:worker_threads'
import type { Config } from '../../shared/core/config/config.ts'
import { unavailable } from '../../shared/core/errors.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { discardBody } from '../http/body.ts'
import type { LargeWork } from '../http/context.ts'
import type { Metrics } from '../http/metrics.ts'

interface LargeBodies extends LargeWork {
  /** True: the thread answers this request. */
  take(req: IncomingMessage, res: ServerResponse): boolean
  /** Callers of bots that still run get the address of the result. */
  sendAway(): void
  close(): Promise<void>
}

const CLOSE_MS = 10_000
/** As the Procfile gives web: a semi space of 32 MB, three of which are the young generation. */
const YOUNG_MB = 96

interface Thread {
  readonly worker: Worker
  readonly port: Promise<number>
  readonly agent: Agent
  readonly secret: string
}

export function openLargeBodies(
  { config, log }: Services,
  metrics: Pick<Metrics, 'request'>,
): LargeBodies {
  let running: Thread | undefined

  const start = (): Thread => {
    const secret = randomBytes(32).toString('base64url')
    const workerData: ThreadData = { config, secret }
    const worker = new Worker(new URL('../large-thread.ts', import.meta.url), {
      workerData,
      resourceLimits: { maxYoungGenerationSizeMb: YOUNG_MB },
    })
    const port = new Promise<number>((resolve, reject) => {
      worker.on('message', (message: FromThread) => {
        if (message.kind === 'request') metrics.request(...message.request)
        else resolve(message.port)
      })
      worker.once('error', (error) => {
        log.error({ err: error }, 'The thread for large bodies failed')
      })
      worker.once('exit', () => {
        if (running === thread) running = undefined
        reject(unavailable('The thread for large bodies'))
      })
    })
    // Each request waits for it; none may have come when it ends.
    port.catch(() => undefined)
    const thread = { worker, port, agent: new Agent({ keepAlive: true }), secret }
    return thread
  }

  return {
    take(req, res) {
      if (!isLarge(req, config.largeBodyBytes)) return false
      running ??= start()
      void pass(running, req, res)
      return true
    },
    async handleRequest(req, request) {
      running ??= start()
      return await askThread(running, req, request)
    },
    sendAway() {
      running?.worker.postMessage('send away' satisfies ToThread)
    },
    async close() {
      const { worker, agent } = running ?? {}
      if (worker === undefined) return
      const ended = new Promise((resolve) => worker.once('exit', resolve))
      worker.postMessage('stop' satisfies ToThread)
      const timer = setTimeout(() => void worker.terminate(), CLOSE_MS)
      await ended
      clearTimeout(timer)
      agent?.destroy()
    },
  }
}

/** A body of unknown size counts as large, be it chunked or compressed; uploads are streams anyway. */
function isLarge(req: IncomingMessage, maxBytes: number): boolean {
  const { headers } = req
  const length = Number(headers['content-length'] ?? 0)
  const isUnknown =
    headers['transfer-encoding'] !== undefined ||
    (length > 0 && (headers['content-encoding'] ?? 'identity') !== 'identity')
  return (isUnknown || length > maxBytes) && !isUpload(req)
}

/** The content of a Binary, stored as it arrives; a resource in JSON is none. */
function isUpload({ method, url = '', headers }: IncomingMessage): boolean {
  const isBinary = /^\/(?:api\/)?fhir\/R4\/Binary(?:\/[^/?]+)?(?:$|\?)/i.test(url)
  return isBinary && method !== 'PATCH' && !/[/+]json\b/i.test(headers['content-type'] ?? '')
}

async function pass(thread: Thread, req: IncomingMessage, res: ServerResponse): Promise<void> {
  const fail = () => {
    if (res.headersSent) res.destroy()
    else refuse(res)
  }
  const port = await thread.port.catch(() => undefined)
  if (port === undefined) {
    discardBody({ req })
    return fail()
  }
  if (req.destroyed) return
  const { method = 'GET', url = '/', socket } = req
  const headers = [
    ...endToEnd(req.rawHeaders),
    ...[SECRET_HEADER, thread.secret],
    ...[REMOTE_ADDRESS_HEADER, socket.remoteAddress ?? ''],
  ]
  const onward = request({
    port,
    host: '127.0.0.1',
    method,
    path: url,
    headers,
    agent: thread.agent,
  })
  onward.once('response', (answer) => {
    res.writeHead(answer.statusCode ?? 500, endToEnd(answer.rawHeaders))
    answer.once('error', () => res.destroy())
    // The rest of a refused body is read off here: after its answer Node's client waits in vain for room.
    answer.once('end', () => {
      if (req.complete) return
      req.unpipe(onward)
      onward.destroy()
    })
    answer.pipe(res)
  })
  onward.on('error', () => {
    if (!res.writableEnded) fail()
  })
  // The thread may answer, or end, before the caller has sent all.
  onward.once('close', () => discardBody({ req }))
  res.once('close', () => {
    if (!res.writableFinished) onward.destroy()
  })
  req.once('error', () => onward.destroy())
  req.pipe(onward)
}

/** Says who calls, and is not a part of an entry. */
const OF_CALLER = ['authorization', 'user-agent', 'x-forwarded-for', 'x-medplum-on-behalf-of']
/** The connection's own, and what web has dealt with. */
const DEALT_WITH: ReadonlySet<string> = new Set([
  ...['accept-encoding', 'content-encoding', 'content-length', 'host', 'idempotency-key', 'origin'],
  'transfer-encoding',
])
const KEPT = [
  ...['Content-Type', 'Content-Location', 'ETag', 'Last-Modified', 'Location'],
  'Preference-Applied',
] as const

async function askThread(
  { port, agent, secret }: Thread,
  { headers, socket }: IncomingMessage,
  asked: FhirRequest,
): Promise<FhirReply> {
  const own = OF_CALLER.map((name) => [name, headers[name]] as const)
  const given = [...own, ...Object.entries(asked.headers)].filter(
    ([name, value]) => value !== undefined && !DEALT_WITH.has(name) && !HOP_BY_HOP.has(name),
  )
  const query = asked.queryText ?? asked.query.toString()
  const onward = request({
    port: await port,
    host: '127.0.0.1',
    method: asked.method,
    path: `/fhir/R4/${asked.path}${query === '' ? '' : `?${query}`}`,
    headers: {
      ...Object.fromEntries(given),
      'x-request-id': asked.requestId,
      [SECRET_HEADER]: secret,
      [REMOTE_ADDRESS_HEADER]: socket.remoteAddress ?? '',
    },
    agent,
    ...(asked.signal === undefined ? {} : { signal: asked.signal }),
  })
  const answered = once(onward, 'response')
  onward.end(asked.body)
  try {
    const [answer] = (await answered) as [IncomingMessage]
    const body = Buffer.concat(await answer.toArray())
    const kept = KEPT.flatMap((name) => {
      const value = answer.headers[name.toLowerCase()]
      return typeof value === 'string' ? [[name, value] as const] : []
    })
    const status = answer.statusCode ?? 500
    return { status, headers: Object.fromEntries(kept), body: body.length === 0 ? undefined : body }
  } catch (error) {
    asked.signal?.throwIfAborted()
    throw unavailable('The thread for large bodies', error)
  }
}

export const SECRET_HEADER = 'x-botica-thread'
/** The address of the caller's connection. */
export const REMOTE_ADDRESS_HEADER = 'x-botica-peer'

const HOP_BY_HOP: ReadonlySet<string> = new Set([
  ...['connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'upgrade', 'expect'],
  ...[SECRET_HEADER, REMOTE_ADDRESS_HEADER],
])

/** Names and values in turn, without those that concern one connection (RFC 9110 §7.6.1). */
function endToEnd(raw: readonly string[]): string[] {
  return raw.filter((_, i) => !HOP_BY_HOP.has((raw[i - (i % 2)] ?? '').toLowerCase()))
}

function refuse(res: ServerResponse): void {
  const { status, outcome, headers } = unavailable('The service')
  res.writeHead(status, { ...headers, 'Content-Type': FHIR_JSON })
  res.end(JSON.stringify(outcome))
}

export interface ThreadData {
  readonly config: Config
  /** Each request shows it. */
  readonly secret: string
}

export type ToThread = 'send away' | 'stop'

export type FromThread =
  | { readonly kind: 'ready'; readonly port: number }
  | { readonly kind: 'request'; readonly request: Parameters<Metrics['request']> }
