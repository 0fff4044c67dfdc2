/**
 * Serves a bot's calls: FHIR requests as its run-as identity, outbound fetches, tokens.
 * Calls are counted per run; the first one with a possible effect is journalled before it is made.
 */
import pLimit, { type LimitFunction } from 'p-limit'
import { handle, handleSigned } from '../../shared/api/handle.ts'
import { findRoute } from '../../shared/api/routes.ts'
import type { CallRecord, RecordedCalls } from '../../shared/bots/run-records.ts'
import { allOk, badStructure, HttpError, notFound } from '../../shared/core/errors.ts'
import { parseBody } from '../../shared/fhir/json.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import { actOnBehalfOf, ON_BEHALF_OF } from '../../shared/identity/on-behalf-of.ts'
import type { Session } from '../../shared/identity/principals.ts'
import { checkMail, sendEmail } from '../../shared/projects/email.ts'
import { inviteMember } from '../../shared/projects/enrol.ts'
import { sessionDetails } from '../../shared/projects/signed-in-user.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import { FHIR_JSON, versionHeaders, wholeBody } from '../../shared/request/reply.ts'
import { DEPTH_HEADER, type FhirReply, type FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { present } from '../../shared/store/rows/rows.ts'
import type { AnswerStream } from './answer-stream.ts'
import type { Host } from './executor-process.ts'
import { type FetchRecorder, withoutQuery } from './fetch-recording.ts'
import { ENDED, type FetchAnswer, Fetches } from './fetches.ts'
import {
  type Answered,
  type Asked,
  type AskedFetch,
  answerOutcome,
  readPayload,
  replyText,
} from './host-payloads.ts'
import type { RunMetrics } from './metrics.ts'
import type { HostCall } from './run-result.ts'

interface BridgeOptions {
  readonly services: Services
  readonly metrics: Pick<RunMetrics, 'hostCall'>
  readonly session: Session
  readonly job: ExecuteJob
  readonly signal: AbortSignal
  /** Resolves when the mark is durable, so that a crash of this process cannot hide the write. */
  markWrite(): Promise<void>
  mintToken(): Promise<string>
  readonly recorder?: FetchRecorder | undefined
  /** A dry run: calls with an effect outside of the Repository are not made, and noted. */
  readonly noteMuted?: ((call: string) => void) | undefined
  /** Opens the streamed answer of a run whose caller takes one. */
  openStream?(markWrite: () => Promise<void>): AnswerStream | undefined
}

export const MAX_CONCURRENT = 20
export const MAX_FHIR_CALLS = 1000
/** Limit on calls in the run record, and on versions written by one call. */
const MAX_NOTED = 100
const MAX_METHOD = 10
export const MAX_CONTENT_BYTES = 20 * 1024 * 1024
const ROOT = '/fhir/R4/'
const JSON_TYPE = 'application/json'
/** Location and version of an entry in the response to a Bundle. */
const ENTRY_LOCATION = /"location":"([^"]+)"(?:,"etag":"W\/\\"(\d+)\\"")?/g
/** POST forms of reads. */
const READING_POST = /(^|\/)(_search|\$validate|\$expand|\$lookup)$/
const AGENT_CALL = /\/Agent\/(?:[^/]+\/)?\$/

export class Bridge implements Host {
  readonly #options: BridgeOptions
  /** These and #over are created when they are needed: most runs make no call. */
  #requests: LimitFunction | undefined
  #fetches: Fetches | undefined
  #fhirLeft = MAX_FHIR_CALLS
  #marked: Promise<void> | undefined
  #isOver = false
  #wasRefused = false
  #callCount = 0
  readonly #calls: CallRecord[] = []
  readonly #stream: AnswerStream | undefined
  #over: AbortController | undefined

  constructor(options: BridgeOptions) {
    this.#options = options
    this.#stream = options.openStream?.(() => this.#write())
  }

  /** True once a call with a possible effect has begun. */
  get hasWritten(): boolean {
    return this.#marked !== undefined
  }

  /** True once a call was answered 503 because a required service was unavailable. */
  get wasRefused(): boolean {
    return this.#wasRefused
  }

  /** Calls so far; paths may contain secrets. */
  get made(): RecordedCalls {
    const stream = this.#stream?.made
    const streamed = stream === undefined ? {} : { stream }
    if (this.#callCount === 0) return streamed
    return { calls: this.#calls, callCount: this.#callCount, ...streamed }
  }

  async answer({ kind, payload }: HostCall): Promise<string> {
    this.#options.metrics.hostCall(kind)
    try {
      if (kind === 'stream') return await this.#streamed(payload)
      if (kind === 'body') return await this.#openFetches().readBody(payload)
      const asked = readPayload(payload)
      switch (kind) {
        case 'fhir':
          return replyText(
            await this.#noted(asked.method, fhirPath(asked.path), this.#onBehalf(asked)),
          )
        case 'fetch': {
          const place = withoutQuery(asked.url)
          return JSON.stringify(await this.#noted(asked.method, place, this.#fetch(asked)))
        }
        case 'token':
          this.#requireRunning()
          return JSON.stringify({ accessToken: await this.#options.mintToken() })
        default:
          return kind satisfies never
      }
    } catch (error) {
      return JSON.stringify({ error: error instanceof Error ? error.message : 'The call failed' })
    }
  }

  end(): void {
    this.#isOver = true
    this.#stream?.close()
    this.#fetches?.close()
    this.#over?.abort(ENDED)
  }

  #requireRunning(): void {
    if (this.#isOver) throw ENDED
    this.#options.signal.throwIfAborted()
  }

  async #streamed(payload: string): Promise<string> {
    this.#requireRunning()
    if (this.#stream === undefined) throw new Error('The caller takes no stream')
    await this.#write()
    return await this.#stream.answer(payload)
  }

  #openFetches(): Fetches {
    const { services, session, signal, recorder } = this.#options
    const named = session.principal.declared?.hosts?.rules
    this.#fetches ??= new Fetches({ ...services.config.botFetch, named }, signal, recorder)
    return this.#fetches
  }

  #write(): Promise<void> {
    this.#marked ??= this.#options.markWrite()
    return this.#marked
  }

  async #noted<A extends Answered>(method: string, path: string, answer: Promise<A>): Promise<A> {
    const place = this.#callCount++
    if (place >= MAX_NOTED) return await answer
    const began = performance.now()
    const call = { method: method.slice(0, MAX_METHOD), path }
    this.#calls[place] = call
    const answered = await answer
    const { status } = answered
    const ms = Math.round((performance.now() - began) * 10) / 10
    const wrote = writtenBy(method, path, answered)
    this.#calls[place] = { ...call, status, ms, ...(wrote.length > 0 ? { wrote } : {}) }
    return answered
  }

  /** Makes the call with the rights of the member that it names, if any. */
  async #onBehalf(asked: Asked): Promise<Answered> {
    if (this.#fhirLeft-- <= 0) throw new Error(`A run may make ${MAX_FHIR_CALLS} requests`)
    const { services, session } = this.#options
    const target = asked.headers[ON_BEHALF_OF] ?? ''
    if (target === '') return await this.#fhir(asked, session)
    try {
      return await this.#fhir(asked, await actOnBehalfOf(services.principals, session, target))
    } catch (error) {
      if (error instanceof HttpError) return answerOutcome(error.status, error.outcome)
      throw error
    }
  }

  async #fhir(asked: Asked, session: Session): Promise<Answered> {
    const url = new URL(asked.path, `http://localhost${ROOT}`)
    const path = url.pathname.replaceAll('%24', '$')
    const isSigned = path.startsWith('/storage/')
    const isFhir = path.startsWith(ROOT) || `${path}/` === ROOT
    if (asked.method === 'POST' && AGENT_CALL.test(path) && this.#isMuted(path)) {
      return answerOutcome(200, allOk)
    }
    if (!isFhir && !isSigned) return await this.#platform(asked, path, session)
    const below = path.slice(isSigned ? 1 : ROOT.length)
    if (!isRead(asked.method, below)) await this.#write()
    this.#requests ??= pLimit(MAX_CONCURRENT)
    return this.#requests(async () => {
      this.#requireRunning()
      const { services } = this.#options
      const request = this.#requestOf(asked, url, below)
      const reply = isSigned
        ? await handleSigned(services, request)
        : await handle(services, session.principal, request)
      if (reply.status === 503) this.#wasRefused = true
      return { status: reply.status, headers: reply.headers, body: await limitedBody(reply) }
    })
  }

  /** True in a dry run, whose mails and calls of agents are answered as if they were made. */
  #isMuted(path: string): boolean {
    const { noteMuted } = this.#options
    noteMuted?.(`POST ${path.replace(ROOT, '')}: not made, and answered as if it were`)
    return noteMuted !== undefined
  }

  #requestOf({ method, headers, body }: Asked, { searchParams }: URL, path: string): FhirRequest {
    const { job, signal, noteMuted } = this.#options
    this.#over ??= new AbortController()
    // The answer of the past run is stored under its key.
    const { 'idempotency-key': key, ...unkeyed } = headers
    const sent = noteMuted === undefined || key === undefined ? headers : unkeyed
    return {
      method,
      // The look behind keeps a long run of slashes from being read once for each of them.
      path: path.replace(/(?<!\/)\/+$/, ''),
      query: searchParams,
      headers: { ...sent, [DEPTH_HEADER]: String(job.depth + 1) },
      body,
      requestId: job.requestId,
      traceId: job.traceId,
      mayWait: this.#over.signal,
      isPreCommitted: job.isPreCommit === true,
      isRolledBack: noteMuted !== undefined,
      signal,
    }
  }

  async #platform(asked: Asked, path: string, session: Session): Promise<Answered> {
    const { method } = asked
    if (method === 'POST' && path === '/email/v1/send') {
      return await this.#beside(() => this.#email(asked, session))
    }
    const [, invited] = /^\/admin\/projects\/([^/]+)\/invite$/.exec(path) ?? []
    if (method === 'POST' && invited !== undefined) {
      return await this.#beside(() => this.#invite(decodeURIComponent(invited), asked, session))
    }
    if (method === 'GET' && path === '/auth/me') {
      const body = JSON.stringify(await sessionDetails(this.#options.services, session))
      return { status: 200, headers: { 'Content-Type': JSON_TYPE }, body }
    }
    return answerOutcome(404, notFound().outcome)
  }

  async #email({ body }: Asked, session: Session): Promise<Answered> {
    const { services, signal } = this.#options
    const mail = parseBody(body ?? '')
    if (this.#isMuted('/email/v1/send')) checkMail(services, session.principal, mail)
    else await sendEmail(services, session.principal, mail, signal)
    return answerOutcome(200, allOk)
  }

  async #invite(projectId: string, { body }: Asked, session: Session): Promise<Answered> {
    const { services, job } = this.#options
    const { principal } = session
    const invitation = parseBody(body ?? '')
    if (!isObject(invitation)) throw badStructure('Content must be a JSON object')
    const { requestId, traceId } = job
    const caller = { ...principal, cause: { depth: job.depth + 1, traceId, requestId } }
    const { membership } = await inviteMember(services, caller, {
      user: undefined,
      projectId,
      body: invitation,
    })
    const headers = { 'Content-Type': FHIR_JSON, ...versionHeaders(membership) }
    return { status: 200, headers, body: present(membership, principal, true) }
  }

  /** Makes a call outside FHIR, which always counts as an effect. */
  async #beside(call: () => Promise<Answered>): Promise<Answered> {
    await this.#write()
    try {
      return await call()
    } catch (error) {
      if (error instanceof HttpError) return answerOutcome(error.status, error.outcome)
      throw error
    }
  }

  async #fetch(asked: AskedFetch): Promise<FetchAnswer> {
    const fetches = this.#openFetches()
    const stop = fetches.admit(asked.id)
    if (asked.method !== 'GET' && asked.method !== 'HEAD') await this.#write()
    this.#requireRunning()
    return await fetches.fetch(asked, stop)
  }
}

function fhirPath(path: string): string {
  return path.replace(/^\/?(fhir\/R4\/?)?/, '')
}

/** Returns nothing for other services, whose paths begin with a scheme. */
function writtenBy(method: string, path: string, { status, headers, body }: Answered): string[] {
  if (status >= 300 || isRead(method, path) || /^https?:/.test(path)) return []
  const isInstance = /^\w+\/[\w.-]+$/.test(path)
  if (method === 'DELETE') return isInstance ? [path] : []
  // Only the entry responses of a Bundle have this name with a string value.
  if (path === '' && typeof body === 'string') {
    const found = [...body.matchAll(ENTRY_LOCATION)].slice(0, MAX_NOTED)
    return found.map(([, location = '', version]) =>
      version === undefined ? relative(location) : `${relative(location)}/_history/${version}`,
    )
  }
  if (headers.Location !== undefined) return [relative(headers.Location)]
  const [, version] = /^W\/"(.*)"$/.exec(headers.ETag ?? '') ?? []
  return version !== undefined && isInstance ? [`${path}/_history/${version}`] : []
}

function relative(location: string): string {
  return location.replace(/^.*\/fhir\/R4\//, '')
}

function isRead(method: string, path: string): boolean {
  const isAsked = method === 'GET' || method === 'HEAD'
  if (!isAsked && !(method === 'POST' && READING_POST.test(path))) return false
  return !path.includes('$') || !mayAct(method, path)
}

/** True for an operation that may have effects by any method, such as the call of a bot. */
function mayAct(method: string, path: string): boolean {
  try {
    const route = findRoute(method, path)
    return route.kind === 'operation' && route.operation.acts === true
  } catch {
    // It will be refused.
    return false
  }
}

/** Buffers the content, which the bot will hold in memory anyway. Errors: content above the size limit of a run. */
async function limitedBody(reply: FhirReply): Promise<FhirReply['body']> {
  requireSmallBody(Number(reply.headers['Content-Length']))
  const body = await wholeBody(reply)
  requireSmallBody(Buffer.byteLength(body ?? ''))
  return body
}

function requireSmallBody(bytes: number): void {
  if (bytes > MAX_CONTENT_BYTES) {
    throw new Error(`The content is larger than ${MAX_CONTENT_BYTES / 1024 / 1024} MB`)
  }
}
