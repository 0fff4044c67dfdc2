/** Rate limits per minute and address; a Project may set a lower one, or a higher one for callers with its token. */
import { isIPv6 } from 'node:net'
import type { ProjectContext } from '../../shared/access/principal.ts'
import { tooManyRequests } from '../../shared/core/errors.ts'
import { createLimiter, rateLimitItem, retryAfterSeconds } from '../../shared/redis/limiter.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context, Middleware } from '../http/context.ts'

/**
 * Middleware that resolves the Project, from a token, a client or the request, calls `ctx.state.limitTo` with its
 * limits. Errors: 429 with RateLimit and Retry-After. 0: unlimited.
 */
export function limits(services: Services): Middleware {
  const { config, redis, log } = services
  const limiters = {
    requests: createLimiter('requests', redis, log),
    auth: createLimiter('auth', redis, log),
  }
  const usual = { requests: config.rateLimitPerMinute, auth: config.authRateLimitPerMinute }
  return (ctx, next) => {
    const kind = isSensitive(ctx.path) ? 'auth' : 'requests'
    const refusalFor = (units: number, limit: number) => {
      const isNone = limit <= 0
      const most = isNone ? Number.MAX_SAFE_INTEGER : limit
      const spent = limiters[kind].spend(rateLimitAddress(ctx.ip), units, most)
      if (isNone) return undefined
      ctx.res.setHeader('RateLimit', rateLimitItem('requests', spent))
      if (spent.remaining >= 0) return undefined
      const diagnostics = JSON.stringify({ msBeforeNext: spent.resetMs, limit })
      return tooManyRequests(retryAfterSeconds(spent.resetMs), diagnostics)
    }
    const limitTo = (limit: number | undefined) => {
      const refusal = limit === undefined ? undefined : refusalFor(0, limit)
      if (refusal !== undefined) throw refusal
    }
    // Named first: V8 tenures a function written directly into a property, and the whole request with it.
    const limitToOwn: typeof ctx.state.limitTo = (own) => limitTo(own?.[kind])
    ctx.state.limitTo = limitToOwn
    const refusal = refusalFor(1, usual[kind])
    if (refusal === undefined) return next()
    return projectLimits(services, ctx).then((found) => {
      if (found?.[kind] === undefined) throw refusal
      limitTo(found[kind])
      return next()
    })
  }
}

/** Returns the limits of the token's Project; read only once the usual limit is used up. */
async function projectLimits(
  { tokens, principals }: Services,
  ctx: Context,
): Promise<ProjectContext['rateLimits']> {
  const [, token = ''] = /^bearer +([^ ]+) *$/i.exec(ctx.get('Authorization')) ?? []
  const claims = token === '' ? undefined : await tokens.verify(token)
  if (claims === undefined || claims === 'expired') return undefined
  return (await principals.forLogin(claims.loginId))?.principal.project.rateLimits
}

function isSensitive(path: string): boolean {
  return /^\/(auth|oauth2|webhook)\//.test(path) && path !== '/auth/me'
}

/** Returns the /64 of an IPv6 address, since one subscriber owns all of it. */
export function rateLimitAddress(ip: string): string {
  const plain = ip.replace(/^::ffff:(?=\d+\.)/i, '')
  if (!plain.includes(':') || !isIPv6(plain)) return plain
  const [head = '', tail] = plain.split('::')
  const before = head === '' ? [] : head.split(':')
  const after = tail === undefined || tail === '' ? [] : tail.split(':')
  const zeros = tail === undefined ? 0 : 8 - before.length - after.length
  const groups = [...before, ...Array<string>(zeros).fill('0'), ...after]
  return `${groups.slice(0, 4).join(':')}::/64`
}
