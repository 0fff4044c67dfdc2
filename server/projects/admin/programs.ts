/** Clients and bots of a Project, each with the membership that lets it in. */
import type { Principal } from '../../../shared/access/principal.ts'
import { checkBot } from '../../../shared/fhir/bot-check.ts'
import { administeredProject, requireUnlessLimited } from '../../../shared/projects/access.ts'
import { defined, Fields } from '../../../shared/projects/fields.ts'
import { createBot, createClient, onBehalfOf } from '../../../shared/projects/provision.ts'
import { recordChange } from '../../../shared/request/admin-audit.ts'
import type { Services } from '../../../shared/services.ts'
import type { WriteResult } from '../../../shared/store/rows/version.ts'
import { requireProviderRight } from '../../../shared/store/write/guards.ts'

/** Errors: 403, 404, 400 with one issue a field. */
export async function addClient(
  { repository, principals }: Services,
  caller: Principal,
  projectId: string,
  body: Record<string, unknown>,
): Promise<WriteResult> {
  const project = await administeredProject(principals, caller, projectId)
  requireUnlessLimited(caller, ['ClientApplication', 'create'], ['ProjectMembership', 'create'])
  const fields = new Fields(body)
  const client = defined({
    name: fields.requiredText('name', 'Client name is required'),
    description: fields.text('description'),
    redirectUris: fields.texts('redirectUris'),
    redirectUri: fields.text('redirectUri'),
    identityProvider: fields.object('identityProvider'),
    accessTokenLifetime: fields.lifetime('accessTokenLifetime'),
    refreshTokenLifetime: fields.lifetime('refreshTokenLifetime'),
  })
  const accessPolicy = fields.reference('accessPolicy')
  fields.check()
  if ('identityProvider' in client) requireProviderRight(caller, 'ClientApplication')
  const actor = onBehalfOf(caller)
  return await repository.transaction(async (inside) => {
    const written = await createClient(inside, actor, project, client, accessPolicy)
    await recordChange(inside, caller, project, 'create', `ClientApplication/${written.id}`)
    return written
  })
}

/** Errors: 403, 404, 400 with one issue a field. */
export async function addBot(
  { repository, principals }: Services,
  caller: Principal,
  projectId: string,
  body: Record<string, unknown>,
): Promise<WriteResult> {
  const project = await administeredProject(principals, caller, projectId)
  requireUnlessLimited(caller, ['Bot', 'create'], ['ProjectMembership', 'create'])
  const fields = new Fields(body)
  const bot = defined({
    name: fields.requiredText('name', 'Bot name is required'),
    description: fields.text('description'),
    runtimeVersion: fields.text('runtimeVersion'),
    timeout: fields.whole('timeout'),
    cronString: fields.text('cronString'),
  })
  const accessPolicy = fields.reference('accessPolicy')
  fields.check()
  checkBot({ ...bot, resourceType: 'Bot' })
  const actor = onBehalfOf(caller)
  return await repository.transaction(async (inside) => {
    const written = await createBot(inside, actor, project, bot, accessPolicy)
    await recordChange(inside, caller, project, 'create', `Bot/${written.id}`)
    return written
  })
}
