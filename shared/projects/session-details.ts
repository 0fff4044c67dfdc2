/** The details of a session, in the form of the SDK. */

import { effectiveEntries } from '../access/policy.ts'
import { systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import { type Resource, referenceTo } from '../fhir/resource.ts'
import type { Session } from '../identity/principals.ts'
import type { Services } from '../services.ts'

export function sessionDetails(session: Session) {
  const { project, membership, profile, principal } = session
  return {
    project: {
      resourceType: 'Project',
      id: project.id,
      name: project.name,
      description: project.description,
      strictMode: principal.project.strictMode,
      superAdmin: principal.project.superAdmin,
    },
    membership: {
      resourceType: 'ProjectMembership',
      id: membership.id,
      identifier: membership.identifier,
      user: membership.user,
      profile: membership.profile,
      admin: membership.admin,
    },
    profile: withoutSecrets(profile),
    config: configurationOf(session),
    accessPolicy: effectivePolicy(session),
  }
}

/** A client reads itself here; its secret is for its administrators. */
function withoutSecrets(profile: Resource): Resource {
  const { secret: _, retiringSecret: __, ...rest } = profile
  return rest as Resource
}

function effectivePolicy({ principal, policies }: Session) {
  return {
    resourceType: 'AccessPolicy',
    ...(policies.length === 0
      ? {}
      : { basedOn: policies.map((policy) => ({ reference: referenceTo(policy) })) }),
    resource: effectiveEntries(principal),
  }
}

/** The configuration that the membership names, with the usual menu unless it has its own. */
function configurationOf({ principal, membership, configuration }: Session) {
  if (configuration?.menu !== undefined) return configuration
  const menu = [{ title: 'Favorites', link: [link('Patient'), link('Practitioner')] }]
  if (membership.admin === true) {
    const admin = [
      { name: 'Project', target: '/admin/project' },
      link('AccessPolicy'),
      link('Bot'),
      link('ClientApplication'),
    ]
    menu.push({ title: 'Admin', link: admin })
  }
  if (principal.isSuperAdmin) {
    menu.push({ title: 'Super Admin', link: [link('Project'), link('User')] })
  }
  return { ...configuration, resourceType: 'UserConfiguration', menu }
}

function link(type: string) {
  return { name: type, target: `/${type}` }
}

/** Within the scope of the Session; answers its id. One statement. */
export async function createMemberLogin(
  { repository }: Pick<Services, 'repository'>,
  { principal, membership, profile }: Session,
  authMethod: 'execute' | 'client',
): Promise<string> {
  const { id } = await repository.create(systemPrincipal(SYSTEM_PROJECT), {
    resourceType: 'Login',
    authMethod,
    authTime: new Date().toISOString(),
    user: { reference: principal.profile },
    project: { reference: `Project/${principal.project.id}` },
    membership: { reference: `ProjectMembership/${membership.id}` },
    profileType: profile.resourceType,
    granted: true,
    scope: principal.scope,
    ...(principal.patient === undefined
      ? {}
      : { patient: { reference: `Patient/${principal.patient}` } }),
  })
  return id
}
