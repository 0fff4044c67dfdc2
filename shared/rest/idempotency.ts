/**
 * `Idempotency-Key`: repeats of a write get the first response for a day, except server errors and lost races, which
 * applied nothing. Writes and transactions commit with their response; other work that a crash interrupts is not
 * repeated. Responses may contain secrets, so they are sealed by the request and replayed under the same rights only.
 */
import { createHash, hash } from 'node:crypto'
import { seal, sealingKey, unseal } from '../access/credentials/sealing.ts'
import { rightsDigest } from '../access/policy.ts'
import { callerKey, type Principal } from '../access/principal.ts'
import {
  badRequest,
  businessRule,
  conflict,
  HttpError,
  isRaceLost,
  notSupported,
} from '../core/errors.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import {
  claimRequest,
  type Found,
  forgetRequest,
  holdRequest,
  type IdempotencyKey,
  keepReply,
  type StoredReply,
} from '../store/write/requests.ts'

const WRITES = new Set(['POST', 'PUT', 'PATCH', 'DELETE'])
const UPLOAD = 'Idempotency-Key does not apply to an upload: send the Binary in a transaction'
const KEY = /^[\x20-\x7e]{1,128}$/

/** True when a request has a key. Errors: 400 for a malformed key, and for one of an upload, whose body is streamed. */
export function isIdempotent(
  request: Pick<FhirRequest, 'method' | 'headers' | 'upload'>,
  principal: Principal,
): boolean {
  const { method, headers, upload } = request
  const key = headers['idempotency-key']
  if (key === undefined || !WRITES.has(method)) return false
  if (upload !== undefined) throw notSupported(UPLOAD)
  if (principal.membershipId === undefined) return false
  if (!KEY.test(key)) throw badRequest('Idempotency-Key must be 1 to 128 printable characters')
  return true
}

type KeyedRequest = Pick<
  FhirRequest,
  'method' | 'path' | 'query' | 'headers' | 'body' | 'requestId'
>

interface KeyedWork {
  /** Carries the request out, through the services it is given. Errors: HttpError. */
  readonly answer: (services: Services) => Promise<FhirReply>
  readonly failed: (error: HttpError) => FhirReply
  /** True when all writes go through the Repository in one transaction: the response is stored with them. */
  readonly isWhole: boolean
}

/**
 * Errors: 422 for another body or condition with the same key; 409 while the first request runs, or if it was
 * interrupted or rights changed.
 */
export async function answerOnce(
  services: Services,
  principal: Principal,
  request: KeyedRequest,
  work: KeyedWork,
): Promise<FhirReply> {
  const asked = requestIdentity(principal, request)
  const once = { id: digest(asked), body: contentDigest(request) }
  const { requestId } = request
  const keeping = { services, asked, once, rights: rightsDigest(principal), requestId }
  return work.isWhole ? await answerWhole(keeping, work) : await answerClaimed(keeping, work)
}

interface Keeping {
  readonly services: Services
  readonly asked: string
  readonly once: IdempotencyKey
  /** Digest of the caller's current read rights. */
  readonly rights: string
  readonly requestId: string
}

/** A crash leaves everything or nothing; a repeat detects which. */
async function answerWhole(keeping: Keeping, work: KeyedWork): Promise<FhirReply> {
  const { services, once } = keeping
  try {
    return await services.repository.transaction(async (repository) => {
      const found = await repository.withConnection((connection) => holdRequest(connection, once))
      const before = repeated(keeping, found)
      if (before !== undefined) return before
      const reply = await work.answer({ ...services, repository })
      const kept = sealed(keeping, reply)
      await repository.withConnection((connection) => keepReply(connection, once, kept))
      return reply
    })
  } catch (error) {
    // The rollback has released the key.
    if (!(error instanceof HttpError) || error instanceof Repeated || isRaceLost(error)) throw error
    return await keepUnlessOurs(keeping, work.failed(error))
  }
}

/** Parts commit separately, so after a crash the outcome is unknown. */
async function answerClaimed(keeping: Keeping, work: KeyedWork): Promise<FhirReply> {
  const { services, once } = keeping
  const before = repeated(keeping, await claimRequest(services.database, once))
  if (before !== undefined) return before
  try {
    return await keepUnlessOurs(keeping, await work.answer(services))
  } catch (error) {
    if (error instanceof HttpError && !isRaceLost(error)) {
      return await keepUnlessOurs(keeping, work.failed(error))
    }
    await giveUp(services, once)
    throw error
  }
}

/** Rejects a repeat because of the state of the first request; not a stored response. */
class Repeated extends HttpError {}

function repeated(keeping: Keeping, found: Found): FhirReply | undefined {
  switch (found.kind) {
    case 'answered':
      return replayed(keeping, found.reply)
    case 'other-body': {
      const { status, outcome } = businessRule(
        'This Idempotency-Key was used with another body or condition',
      )
      throw new Repeated(status, outcome)
    }
    case 'running': {
      const { status, outcome } = conflict('The request with this Idempotency-Key still runs')
      throw new Repeated(status, outcome, { headers: { 'Retry-After': '1' } })
    }
    case 'interrupted': {
      const { status, outcome } = conflict(
        'The request with this Idempotency-Key was interrupted: check its effects, then use another key',
      )
      throw new Repeated(status, outcome)
    }
    case 'first':
      return undefined
    default:
      return found satisfies never
  }
}

/** Errors: Repeated (409) if the response was made under other rights. */
function replayed(keeping: Keeping, { status, headers, body, rights }: StoredReply): FhirReply {
  if (body === undefined) return { status, headers, body }
  if (rights !== null && rights !== keeping.rights) {
    const { status, outcome } = conflict(
      'The request with this Idempotency-Key was answered, but the access of its caller has changed since: read its results',
    )
    throw new Repeated(status, outcome)
  }
  return { status, headers, body: unseal(body, replySealingKey(keeping)) }
}

/** The work is done: the response is sent even if it cannot be stored. */
async function keepUnlessOurs(keeping: Keeping, reply: FhirReply): Promise<FhirReply> {
  const { services, once, requestId } = keeping
  if ((reply.status >= 500 && !reply.isFinal) || reply.status === 429) {
    await giveUp(services, once)
    return reply
  }
  await keepReply(services.database, once, sealed(keeping, reply)).catch((cause: unknown) => {
    services.log.warn({ cause, requestId }, 'An answer could not be kept')
  })
  return reply
}

/** A claim that cannot be released expires after some minutes. */
async function giveUp({ database, log }: Services, once: IdempotencyKey): Promise<void> {
  await forgetRequest(database, once).catch((cause: unknown) => {
    log.warn({ cause }, 'An Idempotency-Key stays claimed')
  })
}

function requestIdentity(
  principal: Principal,
  { method, path, query, headers }: KeyedRequest,
): string {
  const key = headers['idempotency-key']
  // The response is bound to the caller, the profile it acted for, and its scope.
  const who = [callerKey(principal), principal.profile]
  return JSON.stringify([...who, method, path, query.toString(), key])
}

const CONDITIONS = ['if-match', 'if-none-match', 'if-none-exist']

/** Without conditions this is the digest of the body, as earlier releases have stored it. */
function contentDigest({ headers, body = '' }: KeyedRequest): Buffer {
  const conditions = CONDITIONS.flatMap((name) =>
    headers[name] === undefined ? [] : [[name, headers[name]]],
  )
  const content = createHash('sha256')
  if (conditions.length > 0) content.update(JSON.stringify(conditions))
  return content.update(body).digest()
}

function sealed(keeping: Keeping, { status, headers, body }: FhirReply): StoredReply {
  const { RateLimit: _, ...kept } = headers
  return {
    status,
    headers: kept,
    body: body === undefined ? undefined : seal(body, replySealingKey(keeping)),
    rights: keeping.rights,
  }
}

/** The request itself is part of the key: the table, which has only digests, cannot decrypt responses. */
function replySealingKey({ asked }: Keeping): Buffer {
  return sealingKey(asked, 'idempotent-reply')
}

function digest(content: Buffer | string): Buffer {
  return hash('sha256', content, 'buffer')
}
