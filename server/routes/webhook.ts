/** `/webhook/{membership}`: runs a Bot for whoever knows the address. */

import { systemPrincipal } from '../../shared/access/principal.ts'
import { type FoundBot, requireCode, toActing, toFoundBot } from '../../shared/bots/bot.ts'
import { createJob, type RunCall, runBot } from '../../shared/bots/execute.ts'
import { forbidden, HttpError, notFound, tooManyRequests } from '../../shared/core/errors.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import { createLimiter, rateLimitItem, retryAfterSeconds } from '../../shared/redis/limiter.ts'
import { readQuery } from '../../shared/request/negotiate.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { readBody } from '../http/body.ts'
import type { Context, Web } from '../http/context.ts'
import { send } from '../http/send.ts'
import { disconnectSignal } from '../middleware/failures.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const RUNS_PER_MINUTE = 600

export function webhookRoutes({ services }: Web): RouteFamily {
  const { config, redis, log } = services
  const limiter = createLimiter('webhook', redis, log)
  const routes = createRoutes()

  const serve = async (ctx: Context, id: string) => {
    const spent = limiter.spend(id, 1, RUNS_PER_MINUTE)
    if (spent.remaining < 0) {
      throw tooManyRequests(
        retryAfterSeconds(spent.resetMs),
        undefined,
        rateLimitItem('webhook', spent),
      )
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
      signal: disconnectSignal(ctx),
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

/** Errors: 404, 403, and those of `$execute`. */
async function runWebhook(
  services: Services,
  membershipId: string,
  request: FhirRequest,
): Promise<FhirReply> {
  const session = await services.principals.forMembership(membershipId)
  if (session === undefined) throw notFound()
  const found = await readWebhookBot(services, session)
  await requireCode(services, found)
  const path = `Bot/${found.bot.id}/$execute`
  const call: RunCall = {
    services,
    principal: session.principal,
    request: { ...request, path },
    rest: '',
    isWebhook: true,
  }
  const hasRawBody = request.method !== 'GET' && (request.body?.length ?? 0) > 0
  // The sender has no profile.
  const job: ExecuteJob = {
    ...createJob(call, found, toActing(session.principal)),
    requester: undefined,
    hasRawBody,
  }
  return await runBot(call, job, found)
}

/** Read anew: a deploy is in use at once. Its member may do more than everybody if no policy says what. */
async function readWebhookBot(
  { repository }: Services,
  { principal, policies }: Session,
): Promise<FoundBot> {
  const profile = parseReference(principal.profile ?? '')
  if (profile?.type !== 'Bot' || policies.length === 0) throw forbidden('web hook')
  const system = systemPrincipal(principal.project)
  const found = toFoundBot(await repository.read(system, 'Bot', profile.id))
  if (found.bot.publicWebhook !== true) throw forbidden('web hook')
  return found
}
