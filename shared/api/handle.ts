/**
 * FHIR requests as plain values. One router for the web server, for bundle entries and for a bot's
 * client, so that all three behave the same.
 */
import type { Readable } from 'node:stream'
import type { Principal } from '../access/principal.ts'
import { HttpError } from '../errors.ts'
import type { Services } from '../services.ts'
import { signAttachments } from './attachments.ts'
import { signedContent } from './binary-read.ts'
import { depthOf } from './depth.ts'
import { answerOnce, isIdempotent } from './idempotency.ts'
import { wantsPretty } from './negotiate.ts'
import { operations } from './operations/table.ts'
import { tellRefusal } from './refusals.ts'
import { failureReply, indented, withTracing } from './reply.ts'
import { respond } from './respond.ts'

export interface FhirRequest {
  readonly method: string
  /** The method is GET, and nobody reads the body. */
  readonly isHead?: boolean
  /** Path after `fhir/R4/`, without query, `%24` already `$`; no leading or trailing slash. */
  readonly path: string
  readonly query: URLSearchParams
  /** The same as it was written, where that is known; no question mark. */
  readonly queryText?: string | undefined
  /** Lower-case names. */
  readonly headers: Readonly<Record<string, string | undefined>>
  /** The raw body; undefined when there is none. */
  readonly body: Buffer | string | undefined
  /** Instead of `body`: the content of a Binary, as it arrives. */
  readonly upload?: Readable
  readonly requestId: string
  readonly traceId: string
  /** The caller can send an answer as it is made. */
  readonly takesPieces?: boolean
  /** Nobody waits for the answer: a quota is waited for until this is aborted, not answered with 429. */
  readonly mayWait?: AbortSignal
  /** Pre-commit bots were asked before, or one of them makes it. */
  readonly isPreCommitted?: boolean
  /** Aborts when the caller has gone. */
  readonly signal?: AbortSignal
}

export interface FhirReply {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** Ready to send; undefined is an empty body. */
  readonly body: string | Buffer | undefined
  /** Instead of `body`: a large page, to be read once; only for who takes pieces. */
  readonly pieces?: Iterable<string>
  /** Instead of `body`: content of a Binary. The caller reads the stream to its end or destroys it. */
  open?(): Promise<Readable>
  /** Of the version that is answered: its header has whole seconds only. */
  readonly lastUpdated?: Date
}

export type Handle = (
  services: Services,
  principal: Principal,
  request: FhirRequest,
) => Promise<FhirReply>

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
      tellRefusal(services, principal, request, error)
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
