/** Types of `ctx.state` and of Koa contexts that carry it. */
import type { Middleware as KoaMiddleware, ParameterizedContext } from 'koa'
import type { TokenClaims } from '../../shared/access/credentials/tokens.ts'
import type { Principal, ProjectContext } from '../../shared/access/principal.ts'
import type { Session } from '../../shared/identity/principals.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Metrics } from './metrics.ts'

/** A type, since Koa requires assignability to a record. */
export type State = {
  requestId: string
  traceId: string
  /** Pattern of a FHIR path without ids, for log and metrics; other routes have their own pattern. */
  route?: string
  bot?: string | undefined
  /** Id of the Project in the address; `authenticate` requires it to be the caller's. */
  projectScope?: string
  /** Set by `limits`: applies the Project's own limits. Errors: 429. */
  limitTo?: (own: ProjectContext['rateLimits']) => void
  /** The caller, proven by credentials of this route alone; `authenticate` takes it in place of a token. */
  proven?: Session
  /** Set by `authenticate`. */
  principal?: Principal
  session?: Session
  claims?: TokenClaims
  /** Set by `once`, which has read it already. */
  body?: Buffer
}

export type Context = ParameterizedContext<State>
export type Middleware = KoaMiddleware<State>

export interface Credentials {
  readonly authorization: string | undefined
  /** `X-Medplum-On-Behalf-Of`: a `Type/id`, or empty. */
  readonly onBehalfOf: string
  readonly ip: string
  /** Header with the client certificate, as the proxy sent it. */
  readonly certificate: string | undefined
  /** Id of the Project in the address. */
  readonly projectScope?: string | undefined
}

/** A member with credentials (FHIR, mail or CDS Hooks), one proven before, or an anonymous caller of a web hook. */
export type ThreadCaller =
  | (Credentials & { readonly sends?: 'mail' | 'hook' })
  | { readonly ehr: string }
  | { readonly webhook: string }

/** The thread for requests that would block the event loop for too long. */
export interface LargeWork {
  /** Errors: those of the request; 503 when the thread ends; the abort reason. */
  handleRequest(caller: ThreadCaller, request: FhirRequest): Promise<FhirReply>
}

export interface Web {
  readonly services: Services
  readonly metrics: Metrics
  /** Undefined inside the thread itself. */
  readonly large?: LargeWork | undefined
}

/** Returns the caller; only after `authenticate`. */
export function caller(ctx: Context): { readonly principal: Principal; readonly session: Session } {
  const { principal, session } = ctx.state
  if (principal === undefined || session === undefined) {
    throw new Error(`${ctx.path} reads the caller without authenticate`)
  }
  return { principal, session }
}

/** Returns the caller of a write, whose events name the request. */
export function writer(ctx: Context): ReturnType<typeof caller> {
  const { principal, session } = caller(ctx)
  const { requestId, traceId } = ctx.state
  return { principal: { ...principal, cause: { depth: 0, traceId, requestId } }, session }
}

/** Returns the request as plain values. Errors: 400 for an invalid query. */
export function requestIn(ctx: Context, path: string, body: FhirRequest['body']): FhirRequest {
  const { projectScope, requestId, traceId } = ctx.state
  const { headers, method = 'GET' } = ctx.req
  const queryText = ctx.querystring
  const isHead = method === 'HEAD'
  return {
    // Koa omits the body of a HEAD reply; the rest equals GET.
    method: isHead ? 'GET' : method,
    readsOnly: isHead,
    path,
    ...(projectScope === undefined ? {} : { projectScope }),
    query: readQuery(queryText),
    queryText,
    // Node joins repeated headers into one text; only set-cookie is a list, and requests never have it.
    headers: headers as Record<string, string | undefined>,
    body,
    requestId,
    traceId,
  }
}
