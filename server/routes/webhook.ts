/** `/webhook/{membership}`: runs a Bot without authentication; the address is the secret. */

import { systemPrincipal } from '../../shared/access/principal.ts'
import { type FoundBot, requireCode, toActing, toFoundBot } from '../../shared/bots/bot.ts'
import { createJob, type RunCall, runBot } from '../../shared/bots/execute.ts'
import {
  forbidden,
  HttpError,
  methodNotAllowed,
  notFound,
  tooManyRequests,
} from '../../shared/core/errors.ts'
import { parseReference } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import { createLimiter, rateLimitItem, retryAfterSeconds } from '../../shared/redis/limiter.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { readBody } from '../http/body.ts'
import { type Context, requestIn, type Web } from '../http/context.ts'
import { sendByEither } from '../http/send.ts'
import { disconnectSignal } from '../middleware/failures.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'GET /webhook/:id': {
    summary: 'Call a bot by a web hook',
    description:
      'The id is that of the membership of a bot with `publicWebhook`; the query is its input.',
    answer: '*/*',
  },
  'POST /webhook/:id': {
    summary: 'Call a bot by a web hook with a body',
    description:
      'The id is that of the membership of a bot with `publicWebhook`. The bot verifies signatures of `event.rawBody`.',
    body: '*/*',
    answer: '*/*',
  },
}

const RUNS_PER_MINUTE = 600

export function webhookRoutes(web: Web): RouteFamily {
  const { services } = web
  const { config, redis, log } = services
  const limiter = createLimiter('webhook', redis, log)
  const routes = createRoutes({ texts: TEXTS })

  const serve = async (ctx: Context, id: string) => {
    // The router takes HEAD for GET; previews of links and monitors send it.
    if (ctx.method === 'HEAD') throw methodNotAllowed('GET, POST')
    const spent = limiter.spend(id, 1, RUNS_PER_MINUTE)
    if (spent.remaining < 0) {
      throw tooManyRequests(
        retryAfterSeconds(spent.resetMs),
        undefined,
        rateLimitItem('webhook', spent),
      )
    }
    const body = await readBody(ctx, config.maxBodyBytes)
    const request = { ...requestIn(ctx, ctx.path.slice(1), body), signal: disconnectSignal(ctx) }
    await sendByEither(ctx, web, request, {
      here: () => runWebhook(services, id, request),
      threadCaller: () => ({ webhook: id }),
    })
  }

  routes.on(['GET', 'POST'], '/webhook/:id', 'address', async (ctx) => {
    try {
      await serve(ctx, ctx.params.id ?? '')
    } catch (error) {
      if (!(error instanceof HttpError) || error.status !== 403) throw error
      // Senders of web hooks ignore outcomes.
      ctx.status = 403
      ctx.body = 'Forbidden'
    }
  })
  return routes
}

/** Errors: 404, 403, and those of `$execute`. */
export async function runWebhook(
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

/**
 * Reads the Bot on each call, so that a deploy takes effect at once. Requires a policy: without one, anonymous
 * callers would act with unrestricted rights. Errors: 403.
 */
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
