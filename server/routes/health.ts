/** Whether this process, and what it stands on, is well. */

import { timingSafeEqual } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { unauthorized } from '../../shared/errors.ts'
import type { Context, Middleware, Web } from '../context.ts'
import { type Checks, openParts, PARTS } from '../parts.ts'
import { hasConsole } from './console.ts'
import { createRoutes, type RouteFamily } from './table.ts'

export function healthRoutes({ services, metrics }: Web, authenticate: Middleware): RouteFamily {
  const routes = createRoutes()
  const parts = openParts(services)
  metrics.watchParts(async () => mapParts(await parts.check(), (part) => Number(part.ok)))
  const versions = {
    version: productVersion(),
    platform: process.platform,
    runtime: process.version,
  }

  /** Versions name the weaknesses of a service, so nobody learns them without a token. Errors: 401 for a bad one. */
  const versionsFor = async (ctx: Context): Promise<Partial<typeof versions>> => {
    if (ctx.get('Authorization') === '') return {}
    await authenticate(ctx, async () => undefined)
    return versions
  }

  routes.get('/', 'public', (ctx) => {
    ctx.vary('Accept')
    // A program that takes anything is answered as before.
    if (hasConsole(services.config) && ctx.accepts('json', 'html') === 'html') {
      ctx.redirect('/console')
      return
    }
    ctx.body = { name: 'botica', fhir: `${services.config.baseUrl}fhir/R4` }
  })
  routes.get('/robots.txt', 'public', (ctx) => {
    ctx.type = 'text/plain'
    ctx.body = 'User-agent: *\nDisallow: /\n'
  })
  routes.get('/livez', 'public', (ctx) => {
    ctx.body = { ok: true }
  })
  routes.get('/healthcheck', 'public', async (ctx) => {
    if (ctx.query.live !== undefined) {
      ctx.body = { ok: true }
      return
    }
    const checks = await parts.check()
    const { reason } = checks
    ctx.status = reason === undefined ? 200 : 503
    if (reason !== undefined) ctx.set('Retry-After', '2')
    ctx.body = {
      ok: reason === undefined,
      ...(reason === undefined ? await versionsFor(ctx) : { reason }),
      ...mapParts(checks, (part) => part.ok),
      latencyMs: mapParts(checks, (part) => part.ms),
    }
  })
  routes.get('/metrics', 'secret', async (ctx) => {
    if (!mayScrape(ctx, services.config.metricsToken)) {
      throw unauthorized(services.config.baseUrl, ctx.get('Authorization') !== '')
    }
    ctx.set('Content-Type', metrics.contentType)
    ctx.body = await metrics.text()
  })
  return routes
}

/** Without a token for scrapers only this machine may ask; behind a proxy everybody looks like that. */
function mayScrape(ctx: Context, token: string | undefined): boolean {
  if (token !== undefined) {
    const given = /^Bearer (.+)$/.exec(ctx.get('Authorization'))?.[1] ?? ''
    const [a, b] = [Buffer.from(given), Buffer.from(token)]
    return a.length === b.length && timingSafeEqual(a, b)
  }
  const isLoopback = /^(::ffff:)?127\.|^::1$/.test(ctx.req.socket.remoteAddress ?? '')
  return isLoopback && ctx.get('X-Forwarded-For') === '' && ctx.get('Forwarded') === ''
}

function productVersion(): string {
  const file = new URL('../../package.json', import.meta.url)
  const parsed: unknown = JSON.parse(readFileSync(file, 'utf8'))
  return String((parsed as { version?: unknown }).version)
}

function mapParts<T>(checks: Checks, read: (part: Checks['postgres']) => T): Record<string, T> {
  return Object.fromEntries(PARTS.map((name) => [name, read(checks[name])]))
}
