/** A public web hook of a Bot: a request without a token, carried out as the Bot's own member. */
import { systemPrincipal } from '../access/principal.ts'
import { forbidden, notFound } from '../errors.ts'
import { parseReference } from '../fhir/resource.ts'
import type { Session } from '../identity/principals.ts'
import type { ExecuteJob } from '../platform/queue/jobs.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'
import type { Services } from '../services.ts'
import { createJob, type RunCall, runBot } from './execute.ts'
import { actingAs, type FoundBot, requireCode, toFound } from './execute-bot.ts'

/** Errors: 404, 403, and those of `$execute`. */
export async function runWebhook(
  services: Services,
  membershipId: string,
  request: FhirRequest,
): Promise<FhirReply> {
  const session = await services.principals.forMembership(membershipId)
  if (session === undefined) throw notFound()
  const found = await botOf(services, session)
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
    ...createJob(call, found, actingAs(session.principal)),
    requester: undefined,
    hasRawBody,
  }
  return await runBot(call, job, found)
}

/** Read anew: a deploy is in use at once. Its member may do more than everybody if no policy says what. */
async function botOf(
  { repository }: Services,
  { principal, policies }: Session,
): Promise<FoundBot> {
  const profile = parseReference(principal.profile ?? '')
  if (profile?.type !== 'Bot' || policies.length === 0) throw forbidden('web hook')
  const system = systemPrincipal(principal.project)
  const found = toFound(await repository.read(system, 'Bot', profile.id))
  if (found.bot.publicWebhook !== true) throw forbidden('web hook')
  return found
}
