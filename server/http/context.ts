/** The content of `ctx.state`, and short names of Koa's types that carry it. */
import type { IncomingMessage } from 'node:http'
import type { Middleware as KoaMiddleware, ParameterizedContext } from 'koa'
import type { TokenClaims } from '../../shared/access/credentials/tokens.ts'
import type { Principal, ProjectContext } from '../../shared/access/principal.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Metrics } from './metrics.ts'

/** A type and not an interface: Koa wants it assignable to a record. */
export type State = {
  requestId: string
  traceId: string
  /** Shape of a FHIR path, for log and metrics: it holds no ids. Other routes are known by pattern. */
  route?: string
  /** Set by `limits`: applies what a Project allows instead. Errors: 429. */
  limitTo?: (own: ProjectContext['rateLimits']) => void
  /** Set by `authenticate`. */
  principal?: Principal
  session?: Session
  claims?: TokenClaims
  /** Read already, by `once`. */
  body?: Buffer
}

export type Context = ParameterizedContext<State>
export type Middleware = KoaMiddleware<State>

/** A place for requests that would hold the event loop for too long. */
export interface LargeWork {
  /** The answer to a request that came with `req`, or is an entry of it. Errors: 503. */
  handleRequest(req: IncomingMessage, request: FhirRequest): Promise<FhirReply>
}

/** Everything that a route needs. */
export interface Web {
  readonly services: Services
  readonly metrics: Metrics
  /** Undefined where there is no other place for what takes the event loop too long. */
  readonly large?: LargeWork | undefined
}

/** The caller; only behind `authenticate`. */
export function caller(ctx: Context): { readonly principal: Principal; readonly session: Session } {
  const { principal, session } = ctx.state
  if (principal === undefined || session === undefined) {
    throw new Error(`${ctx.path} reads the caller without authenticate`)
  }
  return { principal, session }
}

/** As `caller`, where it changes something: events of the change name the request. */
export function writer(ctx: Context): ReturnType<typeof caller> {
  const { principal, session } = caller(ctx)
  const { requestId, traceId } = ctx.state
  return { principal: { ...principal, cause: { depth: 0, traceId, requestId } }, session }
}
