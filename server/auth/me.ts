/** `/auth/me`: who the caller is, in the form the SDK keeps (auth.md §4.2). */
import { effectiveEntries } from '../../shared/access/effective.ts'
import type { Principal } from '../../shared/access/principal.ts'
import { loginsOf, readUser } from '../../shared/api/users.ts'
import { parseReference, type Resource, referenceTo } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { referenceIn } from '../../shared/store/memberships.ts'
import type { Session } from '../../shared/store/principals.ts'
import { membershipsFor } from './sign-in.ts'

const SESSIONS = 100
const ACTIVE_MS = 3_600_000
/** Id of the User of a Session; undefined for programs. */
export function userIdOfSession({ membership }: Session): string | undefined {
  const user = parseReference(referenceIn(membership.user))
  return user?.type === 'User' ? user.id : undefined
}

export async function describeCaller(services: Services, session: Session) {
  const { project, membership, profile, principal } = session
  const userId = userIdOfSession(session)
  const user = userId === undefined ? undefined : await readUser(services.repository, userId)
  return {
    ...(user === undefined ? {} : { user: described(user) }),
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
    config: configurationOf(principal, membership),
    accessPolicy: effectivePolicy(session),
    ...(user === undefined ? {} : { security: await securityOf(services, user, session) }),
  }
}

function described({ id, email, identifier }: Resource) {
  return { resourceType: 'User', id, email, identifier }
}

async function securityOf(services: Services, user: Resource, { principal }: Session) {
  const [logins, memberships] = await Promise.all([
    loginsOf(services.repository, user.id ?? '', SESSIONS),
    membershipsFor(services, user, principal.project.id),
  ])
  return {
    mfaEnrolled: user.mfaEnrolled === true,
    sessions: logins.filter(isActive).map(sessionSummary),
    memberships: memberships.map(({ id, profile, admin }) => ({
      resourceType: 'ProjectMembership',
      id,
      profile,
      admin,
    })),
  }
}

function isActive({ granted, revoked, meta }: Resource): boolean {
  const isRecent = Date.parse(meta?.lastUpdated ?? '') + ACTIVE_MS > Date.now()
  return granted === true && revoked !== true && isRecent
}

function sessionSummary({ id, meta, authMethod, remoteAddress, userAgent }: Resource) {
  const agent = typeof userAgent === 'string' ? userAgent : ''
  return {
    id,
    lastUpdated: meta?.lastUpdated,
    authMethod,
    remoteAddress,
    browser: firstIn(agent, BROWSERS),
    os: firstIn(agent, SYSTEMS),
  }
}

/** The first word that fits: Edge and Opera call themselves Chrome, too, and Chrome Safari. */
const BROWSERS: readonly (readonly [RegExp, string])[] = [
  [/Edg\//, 'Edge'],
  [/OPR\//, 'Opera'],
  [/Firefox\//, 'Firefox'],
  [/Chrome\//, 'Chrome'],
  [/Safari\//, 'Safari'],
]
const SYSTEMS: readonly (readonly [RegExp, string])[] = [
  [/Android/, 'Android'],
  [/iPhone|iPad/, 'iOS'],
  [/Windows/, 'Windows'],
  [/Mac OS X/, 'macOS'],
  [/Linux/, 'Linux'],
]

function firstIn(agent: string, words: typeof BROWSERS): string | undefined {
  return words.find(([pattern]) => pattern.test(agent))?.[1]
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

function configurationOf(principal: Principal, membership: Resource) {
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
  return { resourceType: 'UserConfiguration', menu }
}

function link(type: string) {
  return { name: type, target: `/${type}` }
}
