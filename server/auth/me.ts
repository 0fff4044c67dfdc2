/** `/auth/me`: who the caller is, in the form the SDK keeps (auth.md §4.2). */
import { sessionDetails } from '../../shared/api/session-details.ts'
import { signedInUser, userIdOfSession } from '../../shared/api/signed-in-user.ts'
import { loginsOf, readUser } from '../../shared/api/users.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import type { Session } from '../../shared/store/principals.ts'
import { membershipsFor } from './sign-in.ts'

const SESSIONS = 100
const ACTIVE_MS = 3_600_000

export async function describeCaller(services: Services, session: Session) {
  const userId = userIdOfSession(session)
  const user = userId === undefined ? undefined : await readUser(services.repository, userId)
  const own = await signedInUser(services, session)
  return {
    ...(user === undefined ? {} : { user: described(user) }),
    ...sessionDetails(session),
    ...(own === undefined ? {} : { security: await securityOf(services, own, session) }),
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
