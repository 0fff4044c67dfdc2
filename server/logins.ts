/** Logins: the rows that tokens stand on. */
import { systemPrincipal } from '../shared/access/principal.ts'
import type { Services } from '../shared/services.ts'
import type { Session } from '../shared/store/principals.ts'
import { SYSTEM_PROJECT } from '../shared/store/projects.ts'

/** One statement; answers the id of the Login. */
export async function createLogin(
  { repository }: Services,
  session: Session,
  details: { readonly scope: string; readonly remoteAddress: string; readonly userAgent: string },
): Promise<string> {
  const { principal, membership } = session
  const { userAgent, ...rest } = details
  const client = { reference: principal.profile }
  const written = await repository.create(systemPrincipal(SYSTEM_PROJECT), {
    resourceType: 'Login',
    authMethod: 'client',
    authTime: new Date().toISOString(),
    user: client,
    client,
    project: { reference: `Project/${principal.project.id}` },
    membership: { reference: `ProjectMembership/${membership.id}` },
    profileType: 'ClientApplication',
    granted: true,
    ...rest,
    ...(userAgent === '' ? {} : { userAgent: userAgent.slice(0, 512) }),
  })
  return written.id
}

/** In force at once in this process, within 5 s in the others. A Login that is gone is revoked. */
export async function revokeLogin({ repository, principals }: Services, id: string): Promise<void> {
  await repository.patch(systemPrincipal(SYSTEM_PROJECT), 'Login', id, (login) => ({
    ...login,
    revoked: true,
  }))
  principals.forget(id)
}
