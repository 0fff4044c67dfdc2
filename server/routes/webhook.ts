/** `/webhook/{membership}`: runs a Bot for whoever knows the address. */
import { runWebhook } from '../../shared/bots/webhook.ts'
import { HttpError, tooManyRequests } from '../../shared/errors.ts'
import { createLimiter, rateLimitItem, secondsOf } from '../../shared/platform/redis/limiter.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import type { Context, Web } from '../context.ts'
import { readBody } from '../middleware/body.ts'
import { goneSignal } from '../middleware/failures.ts'
import { send } from '../send.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const RUNS_PER_MINUTE = 600

export function webhookRoutes({ services }: Web): RouteFamily {
  const { config, redis, log } = services
  const limiter = createLimiter('webhook', redis, log)
  const routes = createRoutes()

  const serve = async (ctx: Context, id: string) => {
    const spent = limiter.spend(id, 1, RUNS_PER_MINUTE)
    if (spent.left < 0) {
      throw tooManyRequests(secondsOf(spent.resetMs), undefined, rateLimitItem('webhook', spent))
    }
    const { requestId, traceId } = ctx.state
    const request = {
      method: ctx.method === 'POST' ? 'POST' : 'GET',
      path: ctx.path.slice(1),
      query: readQuery(ctx.querystring),
      // Node joins repeated headers into one text; only set-cookie is a list, and nobody sends it.
      headers: ctx.req.headers as Record<string, string | undefined>,
      body: await readBody(ctx, config.maxBodyBytes),
      requestId,
      traceId,
      signal: goneSignal(ctx),
    }
    await send(ctx, await runWebhook(services, id, request))
  }

  routes.on(['GET', 'POST'], '/webhook/:id', 'address', async (ctx) => {
    try {
      await serve(ctx, ctx.params.id ?? '')
    } catch (error) {
      if (!(error instanceof HttpError) || error.status !== 403) throw error
      // Senders of web hooks read no outcomes.
      ctx.status = 403
      ctx.body = 'Forbidden'
    }
  })
  return routes
}
