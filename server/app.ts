/** The Koa app: middleware in request order, then the routes. */

import { constants } from 'node:zlib'
import Koa from 'koa'
import compress from 'koa-compress'
import { methodNotAllowed, notFound } from '../shared/core/errors.ts'
import type { Services } from '../shared/request/services.ts'
import type { Middleware, State, Web } from './http/context.ts'
import type { Metrics } from './http/metrics.ts'
import { authenticate } from './middleware/authenticate.ts'
import { errorHandler } from './middleware/failures.ts'
import { corsHeaders, securityHeaders } from './middleware/headers.ts'
import { limits } from './middleware/limits.ts'
import { normalizePath, requests, waitForTurn } from './middleware/requests.ts'
import { openapiRoutes, pageRoutes } from './pages/pages.ts'
import { accountRoutes } from './routes/account.ts'
import { adminRoutes } from './routes/admin.ts'
import { authRoutes } from './routes/auth.ts'
import { cdsRoutes } from './routes/cds-hooks.ts'
import { consoleRoutes } from './routes/console.ts'
import { discoveryRoutes } from './routes/discovery.ts'
import { docsRoutes } from './routes/docs.ts'
import { fhir, storageRoutes } from './routes/fhir.ts'
import { healthRoutes } from './routes/health.ts'
import { emailRoutes, keyValueRoutes } from './routes/key-value.ts'
import { mcpRoutes } from './routes/mcp.ts'
import { oauthRoutes } from './routes/oauth.ts'
import { scimRoutes } from './routes/scim.ts'
import { superRoutes } from './routes/super.ts'
import { buildRouter, type Route } from './routes/table.ts'
import { webhookRoutes } from './routes/webhook.ts'

const COMPRESS_FROM_BYTES = 1024

/** Creates the app; opens no connections or ports. */
export function createApp(services: Services, metrics: Metrics, large: Web['large']): Koa<State> {
  const { config, log } = services
  const web: Web = { services, metrics, large }
  const authenticated = authenticate(web)
  const app = new Koa<State>({ proxy: config.trustProxy })
  // A proxy appends the client's address; earlier entries are unverified.
  app.maxIpsCount = 1
  app.on('error', (error: Error) => log.warn({ reason: error.message }, 'An answer was cut off'))

  app.use(requests(log, metrics))
  app.use(waitForTurn)
  app.use(securityHeaders(config))
  app.use(compression())
  app.use(errorHandler(log))
  app.use(normalizePath)
  app.use(corsHeaders(config))
  app.use(limits(services))
  app.use(fhir(web, authenticated))
  app.use(buildRouter(nonFhirRoutes(web, authenticated), authenticated).routes())
  app.use(unmatched)
  return app
}

/** Returns all routes except those below `/fhir/R4`. */
export function nonFhirRoutes(web: Web, authenticated: Middleware): readonly Route[] {
  const routes = [
    healthRoutes(web, authenticated),
    discoveryRoutes(web),
    storageRoutes(web),
    oauthRoutes(web, authenticated),
    authRoutes(web),
    accountRoutes(web),
    pageRoutes(web),
    consoleRoutes(web),
    docsRoutes(),
    adminRoutes(web),
    superRoutes(web),
    keyValueRoutes(web),
    scimRoutes(web),
    emailRoutes(web),
    webhookRoutes(web),
    mcpRoutes(web),
    cdsRoutes(web),
  ].flatMap((family) => family.routes)
  return [...routes, ...openapiRoutes(web.services.config.baseUrl, routes).routes]
}

function compression(): Middleware {
  const compressed = compress({
    threshold: COMPRESS_FROM_BYTES,
    br: { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } },
    gzip: { level: 4 },
    deflate: false,
  })
  return (ctx, next) =>
    ctx.req.headers['accept-encoding'] === undefined ? next() : compressed(ctx, next)
}

/** Answers 405 for a path that exists only with other methods. */
const unmatched: Middleware = async (ctx) => {
  // The router stores layers with a matching path in `matched`; its types lack the field.
  const { matched = [] } = ctx as { matched?: readonly { readonly methods: readonly string[] }[] }
  const allowed = [...new Set(matched.flatMap((layer) => layer.methods))]
  if (allowed.length > 0) throw methodNotAllowed(allowed.join(', '))
  throw notFound()
}
