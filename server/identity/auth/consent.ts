/** What a person is asked before an app gets its code, and their refusal. */
import { scopeInWords } from '../../../shared/access/scope-words.ts'
import { badRequest } from '../../../shared/errors.ts'
import { parseReference, type Resource, referenceIn } from '../../../shared/fhir/resource.ts'
import { readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/services.ts'
import type { Context } from '../../context.ts'
import { clearCookie, loginCookie } from '../browser.ts'
import { clientIdOf, revokeLogin, userIdOf } from '../logins.ts'
import { findClient, projectOfClient } from './apps.ts'
import { audit } from './audit.ts'
import type { Fields } from './fields.ts'
import { openLogin, requireLogin } from './login.ts'

/** Names the app, its owner, the person and the Project, and says the scopes in words. Errors: 400. */
export async function describeConsent(services: Services, ctx: Context, id: string) {
  const login = await requireLogin(services, ctx, id)
  const client = await findClient(services, clientIdOf(login) ?? '')
  const membership = parseReference(referenceIn(login.membership))?.id
  // A code shows that the second factor and the choice of a profile are done.
  if (client === undefined || membership === undefined || login.code === undefined) {
    throw badRequest('There is nothing to allow yet', 'login')
  }
  const [session, owner, user] = await Promise.all([
    services.principals.forMembership(membership),
    ownerOf(services, client),
    readUser(services.repository, userIdOf(login) ?? ''),
  ])
  if (session === undefined || user === undefined) throw badRequest('Login revoked', 'login')
  const { principal } = session
  const scope = typeof login.scope === 'string' ? login.scope : ''
  return {
    application: typeof client.name === 'string' ? client.name : `Client ${client.id}`,
    owner,
    person: principal.profileDisplay ?? principal.profile,
    email: user.email,
    project: principal.project.name,
    redirectUri: login.redirectUri,
    scope,
    scopes: scopeInWords(scope, principal.project.name),
  }
}

async function ownerOf({ principals, config }: Services, client: Resource): Promise<string> {
  const projectId = projectOfClient(client)
  const project = projectId === undefined ? undefined : await principals.project(projectId)
  return project?.name ?? config.productName
}

/** The person says no: what was begun leads nowhere any more. Errors: 400. */
export async function denyLogin(services: Services, ctx: Context, fields: Fields): Promise<void> {
  const login = await openLogin(services, ctx, fields)
  const id = login.id ?? ''
  await revokeLogin(services, id)
  clearCookie(ctx, services.config, loginCookie(id))
  audit(services, ctx, {
    kind: 'login',
    outcome: '4',
    what: 'Access denied by the person',
    who: referenceIn(login.user),
    projectId: parseReference(referenceIn(login.project))?.id,
  })
}
