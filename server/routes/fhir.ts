/** `/fhir/R4/**`: ctx → FhirRequest → shared/api → ctx. */
import type { Readable } from 'node:stream'
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { handle, handleSigned } from '../../shared/api/handle.ts'
import { operations } from '../../shared/api/operations.ts'
import type { Config } from '../../shared/core/config/config.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import type { FhirRequest } from '../../shared/request/request.ts'
import { hasBody, openBody, readBody } from '../http/body.ts'
import { type Context, caller, type Middleware, type Web } from '../http/context.ts'
import { send, sendUnobserved } from '../http/send.ts'
import type { Access } from '../middleware/access.ts'
import { disconnectSignal } from '../middleware/failures.ts'
import { withTiming } from '../middleware/requests.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const ROOT = '/fhir/R4'
const DISCOVERY = `${ROOT}/.well-known/`
/** Answered without a token. */
const PUBLIC: ReadonlySet<string> = new Set(['metadata', '$versions'])
const NOBODY: Principal = {
  ...systemPrincipal(SYSTEM_PROJECT),
  isSuperAdmin: false,
  isProjectAdmin: false,
  rules: { grants: [] },
}

/** Not a Router: to be asked behind others takes a twentieth of what a read costs web. */
export function fhir({ services, large }: Web, authenticate: Middleware): Middleware {
  const serve = async (ctx: Context, principal: Principal) => {
    const { config } = services
    const upload = isUpload(ctx) ? openBody(ctx, config.maxUploadBytes) : undefined
    const isRead = upload === undefined && hasBody(ctx)
    const body = isRead ? await readBody(ctx, bodyLimit(ctx, config)) : undefined
    const request = toFhirRequest(ctx, large, body, upload)
    const reply = await withTiming(ctx, principal, () => handle(services, principal, request))
    await sendUnobserved(ctx, reply)
  }
  return (ctx, next) => {
    if (!isServed(ctx.path)) return next()
    const path = fhirPath(ctx)
    ctx.state.route = routePattern(path)
    // A caller with a token sees what their Project defines for itself.
    const isPersonal = path === 'metadata' && ctx.get('authorization') !== ''
    if (fhirAccess(path) === 'public' && !isPersonal) return serve(ctx, NOBODY)
    return authenticate(ctx, () => serve(ctx, caller(ctx).principal))
  }
}

/** A path after `/fhir/R4/` wants a caller unless it is listed as public. */
export function fhirAccess(path: string): Access {
  return PUBLIC.has(path) ? 'public' : 'signed-in'
}

/** Discovery documents have routes of their own. */
function isServed(path: string): boolean {
  if (!path.startsWith(ROOT) || path.startsWith(DISCOVERY)) return false
  return path.length === ROOT.length || path[ROOT.length] === '/'
}

function toFhirRequest(
  ctx: Context,
  large: Web['large'],
  body: Buffer | undefined,
  upload?: Readable,
): FhirRequest {
  const { requestId, traceId } = ctx.state
  const { headers, method = 'GET' } = ctx.req
  const queryText = ctx.querystring
  const isHead = method === 'HEAD'
  let signal: AbortSignal | undefined
  return {
    // Koa leaves the body of a HEAD answer out, all else is as for GET.
    method: isHead ? 'GET' : method,
    isHead,
    path: fhirPath(ctx),
    query: readQuery(queryText),
    queryText,
    // Node joins repeated headers into one text; only set-cookie is a list, and nobody sends it.
    headers: headers as Record<string, string | undefined>,
    body,
    ...(upload && { upload }),
    requestId,
    traceId,
    // A reply that is stored for a repeated request is stored as a whole.
    takesPieces: headers['idempotency-key'] === undefined,
    get signal() {
      signal ??= disconnectSignal(ctx)
      return signal
    },
    offload: large && ((request) => large.handleRequest(ctx.req, request)),
  }
}

function bodyLimit(ctx: Context, config: Config): number {
  const isBundle = ctx.method === 'POST' && fhirPath(ctx) === ''
  return isBundle ? config.maxBundleBytes : config.maxBodyBytes
}

/** The content of a Binary goes on as it arrives. */
function isUpload(ctx: Context): boolean {
  const path = fhirPath(ctx)
  if (ctx.method === 'POST') return path === 'Binary'
  return ctx.method === 'PUT' && /^Binary\/[^/]+$/.test(path)
}

function fhirPath(ctx: Context): string {
  return ctx.path.slice(ROOT.length + 1)
}

/** The shape of a path: few enough shapes to count by. */
function routePattern(path: string): string {
  const shapes = path.split('/').slice(0, 4).map(segmentPattern)
  return ['', 'fhir', 'R4', ...shapes.filter((shape) => shape !== '')].join('/')
}

function segmentPattern(segment: string): string {
  if (segment.startsWith('$')) {
    return operations.some(({ name }) => `$${name}` === segment) ? segment : '$operation'
  }
  if (['', 'metadata', '_history', '_search'].includes(segment)) return segment
  return /^[A-Z]/.test(segment) ? ':type' : ':id'
}

export function storageRoutes({ services }: Web): RouteFamily {
  const routes = createRoutes()
  routes.get('/storage/:id/:vid', 'address', async (ctx) => {
    const { requestId, traceId } = ctx.state
    const reply = await handleSigned(services, {
      method: 'GET',
      path: ctx.path.slice(1),
      query: new URLSearchParams(ctx.querystring),
      // Node joins repeated headers into one text; only set-cookie is a list, and nobody sends it.
      headers: ctx.req.headers as Record<string, string | undefined>,
      body: undefined,
      requestId,
      traceId,
    })
    await send(ctx, reply)
  })
  return routes
}
