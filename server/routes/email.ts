/** `/email/v1/send`. */
import { allOk } from '../../shared/errors.ts'
import { sendEmail } from '../../shared/projects/email.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import { caller, type Web } from '../context.ts'
import { readJsonObject } from '../middleware/body.ts'
import { once } from '../middleware/once.ts'
import { createRoutes, type RouteFamily } from './table.ts'

/** Fetching attachments may take so long in all. */
const PATIENCE_MS = 60_000

export function emailRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ inside: [once(web)] })
  routes.post('/email/v1/send', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, services.config.maxBodyBytes)
    await sendEmail(services, caller(ctx).principal, body, AbortSignal.timeout(PATIENCE_MS))
    ctx.set('Content-Type', FHIR_JSON)
    ctx.body = JSON.stringify(allOk)
  })
  return routes
}
