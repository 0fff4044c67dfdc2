/** `/email/v1/send`. */
import Router from '@koa/router'
import { sendEmail } from '../../shared/api/email.ts'
import { FHIR_JSON } from '../../shared/api/reply.ts'
import { allOk } from '../../shared/fhir/outcome.ts'
import { caller, type Middleware, type State, type Web } from '../context.ts'
import { readJsonObject } from '../middleware/body.ts'
import { once } from '../middleware/once.ts'

/** Fetching attachments may take so long in all. */
const PATIENCE_MS = 60_000

export function emailRoutes(web: Web, authenticate: Middleware): Router<State> {
  const { services } = web
  const router = new Router<State>()
  router.post('/email/v1/send', authenticate, once(web), async (ctx) => {
    const body = await readJsonObject(ctx, services.config.maxBodyBytes)
    await sendEmail(services, caller(ctx).principal, body, AbortSignal.timeout(PATIENCE_MS))
    ctx.set('Content-Type', FHIR_JSON)
    ctx.body = JSON.stringify(allOk)
  })
  return router
}
