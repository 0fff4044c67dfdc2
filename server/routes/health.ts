/** Health of this process and its dependencies, checked on request. */
import { isSameSecret } from '../../shared/access/credentials/clients.ts'
import { timings } from '../../shared/core/config/waits.ts'
import { unauthorized } from '../../shared/core/errors.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Context, Middleware, Web } from '../http/context.ts'
import { productVersion } from '../http/version.ts'
import { hasConsole } from './console.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'GET /': { summary: 'Address of the FHIR API', answer: 'object' },
  'GET /healthcheck': {
    summary: 'Health of the service',
    description: 'Returns 503 while PostgreSQL or Redis is unavailable. Versions require a token.',
    query: { live: 'text: Only whether the process answers' },
    answer: {
      ok: 'flag!: All required parts are available',
      postgres: 'flag: The database answers',
      redis: 'flag: Redis answers',
      storage: 'flag: Files can be written',
      workers: 'flag: A worker is alive',
      clocks: 'flag: The clocks of the workers agree',
    },
  },
  'GET /livez': { summary: 'Whether the process answers', answer: { ok: 'flag!: True' } },
  'GET /metrics': {
    summary: 'Metrics for Prometheus',
    description: 'Requires METRICS_TOKEN or a request from this machine.',
    answer: 'text/plain',
  },
  'GET /robots.txt': { summary: 'Nothing for search engines', answer: 'text/plain' },
}

export function healthRoutes({ services, metrics }: Web, authenticate: Middleware): RouteFamily {
  const routes = createRoutes({ texts: TEXTS })
  const checkAll = createCheck(services)
  metrics.watchParts(async () => mapParts(await checkAll(), (part) => Number(part.ok)))
  const versions = {
    version: productVersion(),
    platform: process.platform,
    runtime: process.version,
  }

  /** Versions reveal known vulnerabilities, so they require a token. Errors: 401 for an invalid one. */
  const versionsFor = async (ctx: Context): Promise<Partial<typeof versions>> => {
    if (ctx.get('Authorization') === '') return {}
    await authenticate(ctx, async () => undefined)
    return versions
  }

  routes.get('/', 'public', (ctx) => {
    ctx.vary('Accept')
    // Clients that accept any type get JSON.
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
    const checks = await checkAll()
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

/** Without METRICS_TOKEN only this machine may scrape; behind a proxy every address looks local. */
function mayScrape(ctx: Context, token: string | undefined): boolean {
  if (token !== undefined) {
    const given = /^Bearer (.+)$/.exec(ctx.get('Authorization'))?.[1] ?? ''
    return isSameSecret(given, token)
  }
  const isLoopback = /^(::ffff:)?127\.|^::1$/.test(ctx.req.socket.remoteAddress ?? '')
  return isLoopback && ctx.get('X-Forwarded-For') === '' && ctx.get('Forwarded') === ''
}

function mapParts<T>(checks: Checks, read: (part: Checks['postgres']) => T): Record<string, T> {
  return Object.fromEntries(PARTS.map((name) => [name, read(checks[name])]))
}

const PARTS = ['postgres', 'redis', 'storage', 'workers', 'clocks'] as const
type Part = (typeof PARTS)[number]

interface Check {
  readonly ok: boolean
  readonly ms: number
}

interface Checks extends Readonly<Record<Part, Check>> {
  /** The reason why this process is unhealthy; undefined when healthy. */
  readonly reason: string | undefined
}

const CHECK_MS = 2000

/** Requests work without these two, so only long outages count. */
const LASTING = {
  storage: 'The storage rejects writes',
  workers: 'No worker is alive',
} as const

/** Returns a function that checks the dependencies, and counts from when each is missing. */
function createCheck(services: Services): () => Promise<Checks> {
  const missingSince = new Map<Part, number>()
  return async () => {
    const checks = await checkParts(services)
    for (const part of PARTS) {
      if (checks[part].ok) missingSince.delete(part)
      else if (!missingSince.has(part)) missingSince.set(part, performance.now())
    }
    return { ...checks, reason: unhealthyReason(checks, services, missingSince) }
  }
}

function unhealthyReason(
  { postgres, redis }: Readonly<Record<Part, Check>>,
  { database }: Services,
  missingSince: ReadonlyMap<Part, number>,
): string | undefined {
  if (!database.hasDiskSpace) return 'PostgreSQL has no room left'
  if (!postgres.ok) return 'PostgreSQL is away'
  if (!redis.ok) return 'Redis is away'
  for (const part of ['storage', 'workers'] as const) {
    const ms = performance.now() - (missingSince.get(part) ?? Number.POSITIVE_INFINITY)
    if (ms > timings.outageMs) return `${LASTING[part]}, since ${Math.round(ms / 1000)} s`
  }
  return undefined
}

async function checkParts(services: Services): Promise<Readonly<Record<Part, Check>>> {
  const { database, queues, storage: files } = services
  const [postgres, redis, storage, workers, clocks] = await Promise.all([
    check(async () => (await database.ping()) >= 0 && database.hasDiskSpace),
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

/** A check that hangs fails. */
async function check(ask: () => Promise<boolean>): Promise<Check> {
  const startedAt = performance.now()
  const timer = Promise.withResolvers<boolean>()
  const timeout = setTimeout(timer.resolve, CHECK_MS, false)
  const asked = ask().catch(() => false)
  const ok = await Promise.race([asked, timer.promise])
  clearTimeout(timeout)
  return { ok, ms: Math.round((performance.now() - startedAt) * 10) / 10 }
}
