/**
 * Answers FHIR requests. The web server, bundle entries and the client of a bot share this one router,
 * so that all three behave the same.
 */
import type { Principal } from '../access/principal.ts'
import { signAttachments } from '../binary/attachments.ts'
import { signedContent } from '../binary/read.ts'
import { HttpError } from '../errors.ts'
import { depthOf } from '../request/depth.ts'
import { wantsPretty } from '../request/negotiate.ts'
import { auditRefusal } from '../request/refusals.ts'
import { failureReply, indented, withTracing } from '../request/reply.ts'
import type { FhirReply, FhirRequest, Handle } from '../request/request.ts'
import { answerOnce, isIdempotent } from '../rest/idempotency.ts'
import type { Services } from '../services.ts'
import { operations } from './operations.ts'
import { respond } from './respond.ts'

/** Never throws for a caller's fault: failures are replies with an OperationOutcome. */
export const handle: Handle = (services, principal, request) =>
  answered(request, async () =>
    isIdempotent(request, principal)
      ? answerOnce(services, principal, request, () => answer(services, principal, request))
      : answer(services, principal, request),
  )

const answer: Handle = (services, principal, request) =>
  answered(request, async () => {
    const caller = withCause(principal, request)
    const reply = await respond(services, caller, request).catch((error: unknown) => {
      auditRefusal(services, principal, request, error)
      throw error
    })
    const signed = await withSigned(services, principal, request, reply)
    return isStored(request.path) ? signed : withTracing(signed, request)
  })

/** `storage/{id}/{vid}` with the signature in its query: needs no Principal. */
export function handleSigned(services: Services, request: FhirRequest): Promise<FhirReply> {
  return answered(request, () => signedContent(services, request))
}

async function answered(
  request: FhirRequest,
  answer: () => Promise<FhirReply>,
): Promise<FhirReply> {
  try {
    return await answer()
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    const reply = withTracing(failureReply(error), request)
    return wantsPretty(request) ? indented(reply) : reply
  }
}

/** Whoever changes something says by what: events of the change carry it on. */
function withCause(principal: Principal, request: FhirRequest): Principal {
  const { method, requestId, traceId } = request
  if (method === 'GET') return principal
  return { ...principal, cause: { depth: depthOf(request), traceId, requestId } }
}

/** Here and not in the parts, so that a page of resources or a bundle has all its Binaries read at once. */
async function withSigned(
  services: Services,
  principal: Principal,
  { path }: FhirRequest,
  reply: FhirReply,
): Promise<FhirReply> {
  // What a bot answers is its own.
  if (typeof reply.body !== 'string' || /\$execute|^job\//.test(path)) return reply
  const body = await signAttachments(services, principal, reply.body)
  return body === reply.body ? reply : { ...reply, body }
}

/** An outcome that is a resource, or that a bot has made, is given as it is. */
function isStored(path: string): boolean {
  const [, operation] = /\$([\w-]+)/.exec(path) ?? []
  if (operation === undefined) return path.startsWith('OperationOutcome')
  return operation === 'execute' || operations.every(({ name }) => name !== operation)
}
