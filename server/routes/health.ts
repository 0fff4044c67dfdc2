/** Whether this process, and what it stands on, is well. */

import { timingSafeEqual } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { unauthorized } from '../../shared/errors.ts'
import type { Services } from '../../shared/services.ts'
import type { Context, Middleware, Web } from '../context.ts'
import { hasConsole } from './console.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const CHECK_MS = 2000

export function healthRoutes({ services, metrics }: Web, authenticate: Middleware): RouteFamily {
  const routes = createRoutes()
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
    const parts = await checkParts(services)
    const ok = parts.postgres.ok && parts.redis.ok
    ctx.status = ok ? 200 : 503
    if (!ok) ctx.set('Retry-After', '2')
    ctx.body = {
      ok,
      // Without these two no token can be looked up.
      ...(ok ? await versionsFor(ctx) : {}),
      ...mapParts(parts, (part) => part.ok),
      latencyMs: mapParts(parts, (part) => part.ms),
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

interface Check {
  readonly ok: boolean
  readonly ms: number
}

type Checks = Readonly<Record<'postgres' | 'redis' | 'storage' | 'workers' | 'clocks', Check>>

async function checkParts(services: Services): Promise<Checks> {
  const { database, queues, storage: files } = services
  const [postgres, redis, storage, workers, clocks] = await Promise.all([
    check(async () => (await database.ping()) >= 0 && database.hasRoom),
    check(async () => (await queues.ping()) >= 0),
    check(async () => {
      await files.check()
      return true
    }),
    check(async () => (await queues.workers()).length > 0),
    check(async () => (await queues.workersOffTime()).length === 0),
  ])
  return { postgres, redis, storage, workers, clocks }
}

/** A check that hangs is a failed one. */
async function check(ask: () => Promise<boolean>): Promise<Check> {
  const startedAt = performance.now()
  const timer = Promise.withResolvers<boolean>()
  const timeout = setTimeout(timer.resolve, CHECK_MS, false)
  const asked = ask().catch(() => false)
  const ok = await Promise.race([asked, timer.promise])
  clearTimeout(timeout)
  return { ok, ms: Math.round((performance.now() - startedAt) * 10) / 10 }
}

function mapParts<T>(parts: Checks, read: (part: Check) => T): Record<string, T> {
  return Object.fromEntries(Object.entries(parts).map(([name, part]) => [name, read(part)]))
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
