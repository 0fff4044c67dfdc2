/** Entry of the thread for requests with large bodies. See `large-bodies.ts`. */
import { parentPort, workerData } from 'node:worker_threads'
import pLimit from 'p-limit'
import { handle } from '../shared/api/handle.ts'
import { openServices } from '../shared/api/open-services.ts'
import type { Config } from '../shared/core/config/config.ts'
import { unauthorized } from '../shared/core/errors.ts'
import { createLogger } from '../shared/core/log.ts'
import { measureDatabaseTime } from '../shared/postgres/database.ts'
import { readQuery } from '../shared/request/negotiate.ts'
import { wholeBody } from '../shared/request/reply.ts'
import type { FhirReply, FhirRequest } from '../shared/request/request.ts'
import { asClient } from './cds/ehr-tokens.ts'
import { answerCds } from './cds/services.ts'
import type { ThreadCaller } from './http/context.ts'
import {
  type Answer,
  type PlainFailure,
  type PlainReply,
  type PlainRequest,
  type ToThread,
  transferable,
  view,
} from './large/large-bodies.ts'
import { sessionFor } from './middleware/authenticate.ts'
import { ClientDisconnected, toHttpError } from './middleware/failures.ts'
import { mail } from './routes/key-value.ts'
import { runWebhook } from './routes/webhook.ts'

// Only web starts this thread.
const config = workerData as Config
const services = await openServices(config, createLogger(config.logLevel, 'web'))
const running = new Map<number, AbortController>()
/** A bundle takes up to thirty times its size while it is processed. */
const BUNDLE_MB = 256
const bundles = pLimit(Math.max(1, Math.floor(config.webMemoryMb / BUNDLE_MB)))

parentPort?.on('message', (message: ToThread) => {
  if (message.kind === 'call') void run(message.id, message.caller, message.request)
  else if (message.kind === 'abort') running.get(message.id)?.abort(new ClientDisconnected())
  else if (message.kind === 'detach') services.queues.detachWaitingCallers()
  else void stop()
})

async function run(id: number, caller: ThreadCaller, sent: PlainRequest): Promise<void> {
  const gone = new AbortController()
  running.set(id, gone)
  const { result, ms: databaseMs } = await measureDatabaseTime(async () => {
    try {
      return { reply: await plainReply(await respond(caller, received(sent, gone.signal))) }
    } catch (error) {
      return { failure: plainFailure(error) }
    }
  })
  running.delete(id)
  const moved = transferable(result.reply?.body)
  parentPort?.postMessage({ id, databaseMs, ...result } satisfies Answer, moved)
}

/** Errors: 401, 403 if the caller's rights have changed meanwhile, and those of web hooks. */
async function respond(caller: ThreadCaller, request: FhirRequest): Promise<FhirReply> {
  if ('webhook' in caller) return await runWebhook(services, caller.webhook, request)
  if ('ehr' in caller) {
    const session = await services.principals.forMembership(caller.ehr)
    if (session === undefined) throw unauthorized(config.baseUrl, true)
    return await answerCds(services, asClient(session).principal, request)
  }
  const { principal } = await sessionFor(services, caller)
  const answer = { fhir: handle, mail, hook: answerCds }[caller.sends ?? 'fhir']
  const process = () => {
    // The caller may have left while the bundle waited.
    request.signal?.throwIfAborted()
    return answer(services, principal, request)
  }
  return await (request.path === '' ? bundles(process) : process())
}

function received(sent: PlainRequest, signal: AbortSignal): FhirRequest {
  const { body, isUpload, queryText, ...rest } = sent
  const content = typeof body === 'object' ? view(body) : body
  return {
    ...rest,
    query: readQuery(queryText),
    queryText,
    body: isUpload ? undefined : content,
    ...(isUpload && Buffer.isBuffer(content) ? { upload: content } : {}),
    signal,
  }
}

async function plainReply(reply: FhirReply): Promise<PlainReply> {
  const { open: _, pieces: __, ...rest } = reply
  const body = await wholeBody(reply)
  return { ...rest, body: body === undefined ? undefined : Buffer.from(body) }
}

/** Includes the stack instead of the cause, which cannot be cloned. */
function plainFailure(error: unknown): PlainFailure {
  const { status, outcome, headers, cause } = toHttpError(error)
  const text = cause instanceof Error ? cause.stack : cause
  return {
    status,
    outcome,
    headers: { ...headers },
    cause: typeof text === 'string' ? text : undefined,
  }
}

/** Called after all requests have been answered. */
async function stop(): Promise<void> {
  await services.close()
  parentPort?.close()
}
