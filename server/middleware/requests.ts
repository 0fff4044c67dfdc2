/** Request id, trace id, log line, metrics and normalized path of each request. */
import { randomUUID } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import type { Principal } from '../../shared/access/principal.ts'
import { HttpError, issue, notFound, outcome } from '../../shared/core/errors.ts'
import { type Logger, unredactedLogger } from '../../shared/core/log.ts'
import { yieldTurn } from '../../shared/core/yielding.ts'
import { measureDatabaseTime } from '../../shared/postgres/database.ts'
import { DEPTH_HEADER } from '../../shared/request/request.ts'
import type { Context, Middleware } from '../http/context.ts'
import type { Metrics } from '../http/metrics.ts'

const SANE_ID = /^[A-Za-z0-9._-]{1,128}$/
/** W3C Trace Context: version, trace id, parent id, flags; an all-zero trace id is invalid. */
const TRACEPARENT = /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/
const TRACE_ID = /^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/i
const BOT = /^Bot\/(.+)$/
const KNOWN_METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])

/** Outermost: sets `requestId` and `traceId` for all other middleware. */
export function requests(log: Logger, metrics: Metrics): Middleware {
  const lines = unredactedLogger(log)
  return (ctx, next) => {
    const startedAt = performance.now()
    const { headers } = ctx.req
    // Callers must not set the depth of a chain of bots.
    if (DEPTH_HEADER in headers) delete headers[DEPTH_HEADER]
    ctx.state.requestId = saneId(headers['x-request-id']) ?? randomUUID()
    ctx.state.traceId = traceId(headers)
    ctx.res.setHeader('X-Request-Id', ctx.state.requestId)
    const correlation = saneId(headers['x-correlation-id'])
    if (correlation !== undefined) ctx.res.setHeader('X-Correlation-Id', correlation)

    ctx.res.once('close', () => {
      const { requestId, traceId, principal } = ctx.state
      const route = matchedRoute(ctx)
      const { method, res } = ctx
      const ms = performance.now() - startedAt
      const known = KNOWN_METHODS.has(method) ? method : 'other'
      metrics.request(known, route, res.statusCode, ms / 1000)
      lines.info(
        {
          method: known,
          route,
          status: res.statusCode,
          ms: Math.round(ms * 10) / 10,
          requestId,
          traceId,
          project: principal?.project.id,
          client: principal?.clientId,
          bot: findBotId(ctx),
          run: res.getHeader('X-Bot-Run-Id'),
          ...(res.writableFinished ? {} : { aborted: true }),
        },
        'request',
      )
    })
    return next()
  }
}

/** Repeated headers with these names arrive as one text. */
function saneId(header: string | readonly string[] | undefined): string | undefined {
  return typeof header === 'string' && SANE_ID.test(header) ? header : undefined
}

function traceId({ traceparent, 'x-trace-id': given }: IncomingHttpHeaders): string {
  const parent = typeof traceparent === 'string' ? TRACEPARENT.exec(traceparent)?.[1] : undefined
  if (parent !== undefined) return parent
  return typeof given === 'string' && TRACE_ID.test(given) ? given.toLowerCase() : randomUUID()
}

/** The router stores the matched pattern on the context; its types lack the field. */
function matchedRoute(ctx: Context): string {
  const { _matchedRoute: matched } = ctx as { _matchedRoute?: unknown }
  return ctx.state.route ?? (typeof matched === 'string' ? matched : 'unmatched')
}

/** Returns the id of the Bot that is run, otherwise of the calling Bot, if any. */
function findBotId({ state: { principal, bot } }: Context): string | undefined {
  if (bot !== undefined) return bot
  return BOT.exec(principal?.profile ?? '')?.[1]
}

/** Spreads bursts of hundreds of requests over turns of the event loop. */
export const waitForTurn: Middleware = (_ctx, next) => {
  const turn = yieldTurn()
  return turn === undefined ? next() : turn.then(next)
}

/** Adds `Server-Timing` for project admins that send `X-Debug-Timing: 1`. https://www.w3.org/TR/server-timing/ */
export function withTiming<T>(
  ctx: Context,
  principal: Principal,
  work: () => Promise<T>,
): Promise<T> {
  const isAsked = ctx.req.headers['x-debug-timing'] === '1' && principal.isProjectAdmin
  return isAsked ? timed(ctx, work) : work()
}

async function timed<T>(ctx: Context, work: () => Promise<T>): Promise<T> {
  const startedAt = performance.now()
  const { result, ms } = await measureDatabaseTime(work)
  const total = performance.now() - startedAt
  ctx.set('Server-Timing', `db;dur=${ms.toFixed(1)}, total;dur=${total.toFixed(1)}`)
  return result
}

const LONGEST_URL = 32_768
/** Matches most requests: segments of these characters, the first of them not `api`. */
const NORMAL_PATH = /^(?!\/api(?:\/|$))(?:\/[\w$-][\w$.~-]*)+$/
const PROJECT = /^\/projects\/([\da-f-]{36})(\/.*)$/
/** Paths below the address of a Project, which clients use as their base. */
export const PROJECT_SCOPED =
  /^\/(?:fhir\/R4|oauth2|\.well-known|mcp|cds-services)(?:\/|$)|^\/auth\/me$/
/** Metadata of an issuer or a resource with a path: the path follows the name. RFC 8414 §3.1, RFC 9728 §3.1. */
const METADATA_OF_PATH =
  /^(\/\.well-known\/(?:oauth-authorization-server|openid-configuration|oauth-protected-resource))(\/projects\/[\da-f-]{36})(\/.+)?$/
const AMBIGUOUS = /\\|\/\.\.?(?:\/|$)/

/**
 * Normalizes the path before all other middleware: no `/api` prefix, empty segments or trailing slash, and no
 * needless %-encoding (RFC 3986 §6.2.2.2), nor of `$`. Later code compares paths as they are, with case. Ambiguous
 * paths, with a dot segment or a backslash, get 404. `/projects/{id}/fhir/R4` becomes `/fhir/R4` of that Project, and
 * its OAuth, discovery, tools and CDS services likewise. Errors: 414, 404.
 */
export const normalizePath: Middleware = (ctx, next) => {
  if (ctx.url.length > LONGEST_URL) {
    throw new HttpError(414, outcome(undefined, issue('error', 'too-long', 'URI too long')))
  }
  if (!NORMAL_PATH.test(ctx.path)) ctx.path = oneSpelling(ctx.path)
  const [, id, path = ''] = PROJECT.exec(ctx.path) ?? []
  if (id !== undefined && PROJECT_SCOPED.test(path)) {
    ctx.state.projectScope = id
    ctx.path = path
  }
  return next()
}

/** Errors: 404. */
function oneSpelling(path: string): string {
  const decoded = path.replace(/%[0-9a-f]{2}/gi, (code) => {
    const character = String.fromCharCode(Number.parseInt(code.slice(1), 16))
    return /[\w.~$-]/.test(character) ? character : code.toUpperCase()
  })
  if (AMBIGUOUS.test(decoded)) throw notFound()
  const segments = decoded.split('/').filter((segment) => segment !== '')
  if (segments[0] === 'api') segments.shift()
  return `/${segments.join('/')}`.replace(METADATA_OF_PATH, '$2$1$3')
}
