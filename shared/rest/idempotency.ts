/**
 * `Idempotency-Key`: a repeat of a write from the same member, with the same method and URL, is given
 * the answer of the first for a day. What failed on our side, or was to be repeated later, is not kept.
 * An answer may hold what is shown once (the secret of a new client), so it is kept sealed by the request.
 */
import { createHash } from 'node:crypto'
import { seal, sealingKey, unseal } from '../access/credentials/sealing.ts'
import { askerKey, type Principal } from '../access/principal.ts'
import { badRequest, businessRule, conflict, HttpError } from '../errors.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'
import type { Services } from '../services.ts'
import { claimRequest, forgetRequest, keepReply } from '../store/write/idempotent-requests.ts'

const WRITES = new Set(['POST', 'PUT', 'PATCH', 'DELETE'])
const KEY = /^[\x20-\x7e]{1,128}$/

/**
 * Whether a request asks to be answered once; an upload is not, since it goes on as it arrives.
 * Errors: 400 for a key of another form.
 */
export function isIdempotent(
  request: Pick<FhirRequest, 'method' | 'headers' | 'upload'>,
  principal: Principal,
): boolean {
  const { method, headers, upload } = request
  const key = headers['idempotency-key']
  if (key === undefined || !WRITES.has(method) || upload !== undefined) return false
  if (principal.membershipId === undefined) return false
  if (!KEY.test(key)) throw badRequest('Idempotency-Key must be 1 to 128 printable characters')
  return true
}

/** The parts of a request that identify a repeat. */
type Asked = Pick<FhirRequest, 'method' | 'path' | 'query' | 'headers' | 'body' | 'requestId'>

/** Errors: 422 for another body under the same key, 409 while the first still runs. */
export async function answerOnce(
  services: Services,
  principal: Principal,
  request: Asked,
  answer: () => Promise<FhirReply>,
): Promise<FhirReply> {
  const asked = identityOf(principal, request)
  const id = digest(asked)
  const found = await claimRequest(services.database, id, digest(request.body ?? ''))
  switch (found.kind) {
    case 'answered':
      return { ...found.reply, body: found.reply.body && unseal(found.reply.body, sealOf(asked)) }
    case 'other-body':
      throw businessRule('This Idempotency-Key was used with another body')
    case 'running': {
      const { status, outcome } = conflict('The request with this Idempotency-Key still runs')
      throw new HttpError(status, outcome, { headers: { 'Retry-After': '1' } })
    }
    case 'first':
      break
    default:
      return found satisfies never
  }
  const reply = await answer().catch(async (error: unknown) => {
    await giveUp(services, id)
    throw error
  })
  if (reply.status >= 500 || reply.status === 429) {
    await giveUp(services, id)
    return reply
  }
  const body = reply.body === undefined ? undefined : seal(reply.body, sealOf(asked))
  const { RateLimit: _, ...headers } = reply.headers
  // The write is done: its answer goes out even if it cannot be stored.
  await keepReply(services.database, id, { ...reply, headers, body }).catch((cause: unknown) => {
    services.log.warn({ cause, requestId: request.requestId }, 'An answer could not be kept')
  })
  return reply
}

/** A claim that cannot be given up ends by itself after some minutes. */
async function giveUp({ database, log }: Services, id: Buffer): Promise<void> {
  await forgetRequest(database, id).catch((cause: unknown) => {
    log.warn({ cause }, 'An Idempotency-Key stays claimed')
  })
}

function identityOf(principal: Principal, { method, path, query, headers }: Asked): string {
  const key = headers['idempotency-key']
  // An answer goes to who has asked, acting for whom it acted for, within the same scope.
  const who = [askerKey(principal), principal.profile]
  return JSON.stringify([...who, method, path, query.toString(), key])
}

/** Whoever repeats the request knows it; the table alone, with digests of it, does not open its answer. */
function sealOf(asked: string): Buffer {
  return sealingKey(asked, 'idempotent-reply')
}

function digest(content: Buffer | string): Buffer {
  return createHash('sha256').update(content).digest()
}
