/** `/auth/me`: who the caller is, in the form the SDK keeps. */
import { reaches } from '../../../shared/access/areas.ts'
import { may } from '../../../shared/access/policy.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import type { Session } from '../../../shared/identity/principals.ts'
import {
  sessionDetails,
  signedInUser,
  userIdOfSession,
} from '../../../shared/projects/signed-in-user.ts'
import { loginsOf, readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/services.ts'
import { membershipsFor } from './sign-in.ts'

const SESSIONS = 100
const ACTIVE_MS = 3_600_000

export async function describeCaller(services: Services, session: Session) {
  // An app learns as whom it acts, and nothing of the account.
  if (!reaches(session.principal, 'account')) return withoutPerson(session)
  const userId = userIdOfSession(session)
  const user = userId === undefined ? undefined : await readUser(services.repository, userId)
  const own = await signedInUser(services, session)
  return {
    ...(user === undefined ? {} : { user: described(user, own !== undefined) }),
    ...sessionDetails(session),
    ...(own === undefined ? {} : { security: await securityOf(services, own, session) }),
  }
}

/** The profile is shown to whose scope asks for it, or may read resources of its type. */
function withoutPerson(session: Session) {
  const details = sessionDetails(session)
  const { principal, profile } = session
  const { resourceType, id } = profile
  const isShown =
    /(^| )(profile|fhirUser)( |$)/.test(principal.scope) || may(principal, resourceType, 'read')
  return isShown ? details : { ...details, profile: { resourceType, id } }
}

/** A Project knows the addresses of its members, and nothing else of Users that are not its own. */
function described({ id, email, identifier }: Resource, isOwn: boolean) {
  return { resourceType: 'User', id, email, ...(isOwn ? { identifier } : {}) }
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
