/**
 * FHIR requests as plain values. One router for the web server, for bundle entries and for a bot's
 * client, so that all three behave the same.
 */
import type { Principal } from '../access/principal.ts'
import { HttpError } from '../errors.ts'
import type { Services } from '../services.ts'
import { answerOnce, isIdempotent } from './idempotency.ts'
import { failureReply, withTracing } from './reply.ts'
import { respond } from './respond.ts'

export interface FhirRequest {
  readonly method: string
  /** Path after `fhir/R4/`, without query, `%24` already `$`; no leading or trailing slash. */
  readonly path: string
  readonly query: URLSearchParams
  /** Lower-case names. */
  readonly headers: Readonly<Record<string, string | undefined>>
  /** The raw body; undefined when there is none. */
  readonly body: Buffer | string | undefined
  readonly requestId: string
  readonly traceId: string
  /** Aborts when the caller has gone. */
  readonly signal?: AbortSignal
}

export interface FhirReply {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  /** Ready to send; undefined is an empty body. */
  readonly body: string | Buffer | undefined
}

export type Handle = (
  services: Services,
  principal: Principal,
  request: FhirRequest,
) => Promise<FhirReply>

/** Never throws for a caller's fault: failures are replies with an OperationOutcome. */
export const handle: Handle = async (services, principal, request) => {
  try {
    return isIdempotent(request, principal)
      ? await answerOnce(services, principal, request, answer)
      : await answer(services, principal, request)
  } catch (error) {
    if (error instanceof HttpError) return withTracing(failureReply(error), request)
    throw error
  }
}

const answer: Handle = async (services, principal, request) => {
  try {
    const reply = await respond(services, principal, request)
    return isStored(request.path) ? reply : withTracing(reply, request)
  } catch (error) {
    if (error instanceof HttpError) return withTracing(failureReply(error), request)
    throw error
  }
}

/** An outcome that is a resource, or that an operation (a bot, say) has made, is given as it is. */
function isStored(path: string): boolean {
  return path.startsWith('OperationOutcome') || path.includes('$')
}
