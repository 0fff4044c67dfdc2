/** Security and CORS headers of all responses. Headers of every request bypass Koa, which checks each again. */
import cors from '@koa/cors'
import type { Config } from '../../shared/core/config/config.ts'
import type { Context, Middleware } from '../http/context.ts'

const SECURITY = {
  'Cache-Control': 'no-store, no-cache, must-revalidate',
  Pragma: 'no-cache',
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
  'Referrer-Policy': 'no-referrer',
  'Content-Security-Policy':
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  Vary: 'Origin, Accept-Encoding',
}
const EXPOSED = [
  'Accept-Ranges',
  'Content-Disposition',
  'Content-Location',
  'Content-Range',
  'ETag',
  'Last-Modified',
  'Location',
  'RateLimit',
  'Retry-After',
  'Preference-Applied',
  'X-Request-Id',
  'X-Bot-Run-Id',
]

export function securityHeaders(config: Config): Middleware {
  const isHttps = config.baseUrl.startsWith('https:')
  const hsts = { 'Strict-Transport-Security': 'max-age=31536000; includeSubDomains' }
  const headers = Object.entries({ ...SECURITY, ...(isHttps ? hsts : {}) })
  return (ctx, next) => {
    for (const [name, value] of headers) ctx.res.setHeader(name, value)
    return next()
  }
}

export function isAllowedOrigin({ appUrl, corsOrigins }: Config, origin: string): boolean {
  const isListed = corsOrigins.includes('*') || corsOrigins.includes(origin)
  return isListed || origin === new URL(appUrl).origin
}

/**
 * Paths for browser navigation, without CORS: the authorization endpoint (RFC 9700 §2.6), the redirect targets of
 * providers, the pages and their assets.
 */
const NAVIGATED =
  /^\/(?:oauth2\/authorize|auth\/external|oauth|signin|resetpassword|(?:setpassword|verifyemail|pages|console|graphiql|docs)(?:\/.*)?)$/i

/** Echoes the origin, never `*`: the SDK sends credentials. Runs after `normalizePath`. */
export function corsHeaders(config: Config): Middleware {
  const answer = cors({
    origin: (ctx: Context) => {
      const origin = ctx.get('Origin')
      return isAllowedOrigin(config, origin) ? origin : ''
    },
    credentials: true,
    exposeHeaders: EXPOSED,
    allowMethods: 'GET,HEAD,POST,PUT,PATCH,DELETE',
    maxAge: 86_400,
  })
  return (ctx, next) => {
    const isPlain = ctx.req.headers.origin === undefined || NAVIGATED.test(ctx.path)
    return isPlain ? next() : answer(ctx, next)
  }
}
