/** `/cds-services`: CDS Hooks 2.0 with Bots as services. */
import { acceptEhrTokens } from '../cds/ehr-tokens.ts'
import { answerCds, describeServices } from '../cds/services.ts'
import { readBody } from '../http/body.ts'
import { type Context, caller, requestIn, type ThreadCaller, type Web } from '../http/context.ts'
import { sendByEither } from '../http/send.ts'
import { credentialsIn } from '../middleware/authenticate.ts'
import { disconnectSignal } from '../middleware/failures.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'GET /cds-services': {
    summary: 'List the services of CDS Hooks',
    description: 'Bots with the element `cdsService` or the extension `bot-cds-hook`.',
    answer: { services: 'list!: Hook, title, description, id and prefetch templates' },
  },
  'POST /cds-services/:id': {
    summary: 'Call a service of CDS Hooks',
    description:
      'The id is that of the bot. Missing prefetch data is read here with the rights of the caller, unless `fhirServer` is another server.',
    body: {
      hook: 'text!: The hook of the service',
      hookInstance: 'text!: Id of this call',
      context: 'object!: By the hook',
      prefetch: 'object: Data by key',
      fhirServer: 'text: FHIR base of the ids in the context',
      fhirAuthorization: 'object: Token for fhirServer, passed to the bot',
    },
    example: {
      hook: 'patient-view',
      hookInstance: 'd1577c69-dfbe-44ad-ba6d-3e05e953b2ea',
      context: { userId: 'Practitioner/1', patientId: '2' },
    },
    answer: { cards: 'list!: Cards', systemActions: 'list: Actions' },
  },
  'POST /cds-services/:id/feedback': {
    summary: 'Report reactions of users to cards',
    description: 'Stored as AuditEvents of subtype `feedback`.',
    body: { feedback: 'list!: Card, outcome and time of each' },
    example: {
      feedback: [
        {
          card: '4e0a3a1e-3283-4575-ab82-028d55fe2719',
          outcome: 'overridden',
          outcomeTimestamp: '2026-01-01T00:00:00Z',
        },
      ],
    },
    answer: 'object',
  },
}

export function cdsRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ texts: TEXTS, outside: [acceptEhrTokens(web)] })

  routes.get('/cds-services', 'signed-in', async (ctx) => {
    ctx.body = await describeServices(services, caller(ctx).principal)
  })
  const answer = async (ctx: Context) => {
    const body = await readBody(ctx, services.config.maxBodyBytes)
    const request = { ...requestIn(ctx, ctx.path.slice(1), body), signal: disconnectSignal(ctx) }
    ctx.state.bot = ctx.params.id
    await sendByEither(ctx, web, request, {
      here: () => answerCds(services, caller(ctx).principal, request),
      threadCaller: () => toThreadCaller(services, ctx),
    })
  }
  routes.post(['/cds-services/:id', '/cds-services/:id/feedback'], 'signed-in', answer)
  return routes
}

/** A JWT of an EHR works once, so the thread gets the membership that it proved. */
function toThreadCaller(services: Web['services'], ctx: Context): ThreadCaller {
  const { proven } = ctx.state
  if (proven === undefined) return { ...credentialsIn(services, ctx), sends: 'hook' }
  return { ehr: proven.membership.id ?? '' }
}
