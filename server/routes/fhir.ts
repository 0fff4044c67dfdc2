/** `/fhir/R4/**`: converts requests to FhirRequests for shared/api. */
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { handle, handleSigned, handleSignedUpload } from '../../shared/api/handle.ts'
import { pathShape, splitPath } from '../../shared/api/routes.ts'
import type { Config } from '../../shared/core/config/config.ts'
import type { FhirRequest } from '../../shared/request/request.ts'
import { isLegalId } from '../../shared/store/rows/context.ts'
import { hasBody, openBody, readBody } from '../http/body.ts'
import { type Context, caller, type Middleware, requestIn, type Web } from '../http/context.ts'
import { send, sendUnobserved } from '../http/send.ts'
import type { Access } from '../middleware/access.ts'
import { credentialsIn } from '../middleware/authenticate.ts'
import { disconnectSignal } from '../middleware/failures.ts'
import { withTiming } from '../middleware/requests.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'GET /storage/:id/:vid': {
    summary: 'Read content by a signed address',
    description: 'The addresses are in attachments and photos; they are good for an hour.',
    query: { Expires: 'text!: Of the address', Signature: 'text!: Of the address' },
    answer: '*/*',
  },
  'PUT /storage/:id/:vid': {
    summary: 'Store content by a signed address',
    description: 'The addresses come from `Binary/[id]/$presigned-url`; each works once.',
    body: '*/*',
    query: { Expires: 'text!: Of the address', Signature: 'text!: Of the address' },
    answer: 'Binary',
  },
}

const ROOT = '/fhir/R4'
const DISCOVERY = `${ROOT}/.well-known/`
/** Paths without a token. */
const PUBLIC: ReadonlySet<string> = new Set(['metadata', '$versions'])
const NOBODY: Principal = {
  ...systemPrincipal(SYSTEM_PROJECT, 'project'),
  isProjectAdmin: false,
  rules: { grants: [] },
}

/** A function instead of a Router, whose matching costs noticeable time per read. */
export function fhir({ services, large }: Web, authenticate: Middleware): Middleware {
  const { config } = services
  const serve = async (ctx: Context, segments: readonly string[], principal: Principal) => {
    const content = hasBody(ctx) ? await readContent(ctx, segments, config) : NO_CONTENT
    const request = toFhirRequest(ctx, { services, large }, content)
    const isLarge = (content.body?.length ?? 0) > mainThreadLimit(ctx, config)
    const work =
      isLarge && large !== undefined && principal !== NOBODY
        ? () => large.handleRequest(credentialsIn(services, ctx), request)
        : () => handle(services, principal, request)
    await sendUnobserved(ctx, await withTiming(ctx, principal, work))
  }
  return (ctx, next) => {
    if (!isServed(ctx.path)) return next()
    const path = fhirPath(ctx)
    const segments = splitPath(path)
    const shape = pathShape(segments)
    ctx.state.route = shape === '' ? ROOT : `${ROOT}/${shape}`
    const [type, id = ''] = segments
    if (shape === ':type/:id/$execute' && type === 'Bot' && isLegalId(id)) ctx.state.bot = id
    // A caller with a token also sees the definitions of their Project.
    const isPersonal = path === 'metadata' && ctx.get('authorization') !== ''
    if (fhirAccess(path) === 'public' && !isPersonal) return serve(ctx, segments, NOBODY)
    return authenticate(ctx, () => serve(ctx, segments, caller(ctx).principal))
  }
}

/** The thread for large bodies returns whole answers, so the input of a streamed one is read here. */
const MOST_STREAMED = 1_048_576

function mainThreadLimit({ req, path }: Context, { largeBodyBytes }: Config): number {
  const isStreamed = req.headers.accept?.includes('text/event-stream') && /\$execute$/.test(path)
  return isStreamed ? Math.max(largeBodyBytes, MOST_STREAMED) : largeBodyBytes
}

type Content = Pick<FhirRequest, 'body' | 'upload'>

const NO_CONTENT: Content = { body: undefined }

/** Returns the content of a Binary as a stream. Errors: 400, 413. */
async function readContent(
  ctx: Context,
  segments: readonly string[],
  config: Config,
): Promise<Content> {
  const writes = { POST: 1, PUT: 2 }[ctx.method]
  if (segments[0] === 'Binary' && segments.length === writes) {
    return { body: undefined, upload: openBody(ctx, config.maxUploadBytes) }
  }
  const isBundle = ctx.method === 'POST' && segments.length === 0
  return { body: await readBody(ctx, isBundle ? config.maxBundleBytes : config.maxBodyBytes) }
}

/** Requires a caller for paths after `/fhir/R4/`, except public ones. */
export function fhirAccess(path: string): Access {
  return PUBLIC.has(path) ? 'public' : 'signed-in'
}

/** False for discovery documents, which have separate routes. */
function isServed(path: string): boolean {
  if (!path.startsWith(ROOT) || path.startsWith(DISCOVERY)) return false
  return path.length === ROOT.length || path[ROOT.length] === '/'
}

function toFhirRequest(
  ctx: Context,
  { services, large }: Pick<Web, 'services' | 'large'>,
  { body, upload }: Content,
): FhirRequest {
  const request = requestIn(ctx, fhirPath(ctx), body)
  return {
    ...request,
    ...(upload && { upload }),
    // A reply stored for a repeated request is stored as a whole.
    takesPieces: request.headers['idempotency-key'] === undefined,
    signal: disconnectSignal(ctx),
    offload: large && ((inner) => large.handleRequest(credentialsIn(services, ctx), inner)),
  }
}

function fhirPath(ctx: Context): string {
  return ctx.path.slice(ROOT.length + 1)
}

export function storageRoutes({ services }: Web): RouteFamily {
  const routes = createRoutes({ texts: TEXTS })
  routes.get('/storage/:id/:vid', 'address', async (ctx) => {
    const reply = await handleSigned(services, requestIn(ctx, ctx.path.slice(1), undefined))
    await send(ctx, reply)
  })
  routes.put('/storage/:id/:vid', 'address', async (ctx) => {
    const request = requestIn(ctx, ctx.path.slice(1), undefined)
    const upload = openBody(ctx, services.config.maxUploadBytes)
    await send(ctx, await handleSignedUpload(services, { ...request, upload }, ctx.ip))
  })
  return routes
}
