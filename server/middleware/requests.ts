/** Request id, trace id, one log line and one count a request, and one spelling of its path. */
import { randomUUID } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import type { Principal } from '../../shared/access/principal.ts'
import { HttpError, issue, notFound, outcome } from '../../shared/core/errors.ts'
import { type Logger, unredactedLogger } from '../../shared/core/log.ts'
import { yieldTurn } from '../../shared/core/yielding.ts'
import { measureDatabaseTime } from '../../shared/postgres/statement.ts'
import { DEPTH_HEADER } from '../../shared/request/quota.ts'
import type { Context, Middleware } from '../http/context.ts'
import type { Metrics } from '../http/metrics.ts'

const SANE_ID = /^[A-Za-z0-9._-]{1,128}$/
/** W3C Trace Context: version, trace id, parent id, flags; an all-zero trace id is invalid. */
const TRACEPARENT = /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}/
const TRACE_ID = /^([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$/i
const RUN = /\/Bot\/([A-Za-z0-9.-]{1,64})\/\$execute$/
const BOT = /^Bot\/(.+)$/
const KNOWN_METHODS = new Set(['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'])

/** Outermost: everything below finds `requestId` and `traceId` in the state. */
export function requests(log: Logger, metrics: Metrics): Middleware {
  const lines = unredactedLogger(log)
  return (ctx, next) => {
    const startedAt = performance.now()
    const { headers } = ctx.req
    // How deep a chain of bots is, no caller from outside may say.
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

/** Repeated headers of these names are one text. */
function saneId(header: string | readonly string[] | undefined): string | undefined {
  return typeof header === 'string' && SANE_ID.test(header) ? header : undefined
}

function traceId({ traceparent, 'x-trace-id': given }: IncomingHttpHeaders): string {
  const parent = typeof traceparent === 'string' ? TRACEPARENT.exec(traceparent)?.[1] : undefined
  if (parent !== undefined) return parent
  return typeof given === 'string' && TRACE_ID.test(given) ? given.toLowerCase() : randomUUID()
}

/** The router leaves the matched pattern on the context; its types lack the field. */
function matchedRoute(ctx: Context): string {
  const { _matchedRoute: matched } = ctx as { _matchedRoute?: unknown }
  return ctx.state.route ?? (typeof matched === 'string' ? matched : 'unmatched')
}

/** Id of the Bot that is run, else of the one that asks; undefined where it is neither. */
function findBotId({ path, state }: Context): string | undefined {
  const { principal, route } = state
  if (route?.endsWith('/$execute')) return RUN.exec(path)?.[1]
  return BOT.exec(principal?.profile ?? '')?.[1]
}

/** A request that comes along with hundreds of others waits for its turn of the event loop. */
export const waitForTurn: Middleware = (_ctx, next) => {
  const turn = yieldTurn()
  return turn === undefined ? next() : turn.then(next)
}

/** `Server-Timing` for project admins who send `X-Debug-Timing: 1`. https://www.w3.org/TR/server-timing/ */
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
/** Most requests: segments of these characters, the first of them not `api`. */
const PLAIN = /^(?!\/api(?:\/|$))(?:\/[\w$-][\w$.~-]*)+$/
const AMBIGUOUS = /\\|\/\.\.?(?:\/|$)/

/**
 * One spelling a path, before anything looks at it: no `/api` prefix, no empty segments, no trailing slash, and nothing
 * %-encoded that need not be (RFC 3986 §6.2.2.2), nor `$`. Everything behind compares paths as they are, in one
 * case; what stands between two readings, a dot segment or a backslash, is found nowhere. Errors: 414, 404.
 */
export const normalizePath: Middleware = (ctx, next) => {
  if (ctx.url.length > LONGEST_URL) {
    throw new HttpError(414, outcome(undefined, issue('error', 'too-long', 'URI too long')))
  }
  if (!PLAIN.test(ctx.path)) ctx.path = oneSpelling(ctx.path)
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
  return `/${segments.join('/')}`
}
