/**
 * Claims about a person: https://openid.net/specs/openid-connect-core-1_0.html#UserInfo. Unknown values are omitted.
 */
import { asArray, isObject, type Resource, toObjects } from '../../shared/fhir/resource.ts'
import { displayName, type Session } from '../../shared/identity/principals.ts'
import { userIdOfSession, visibleProfile } from '../../shared/projects/signed-in-user.ts'
import { readUser } from '../../shared/projects/users.ts'
import type { Services } from '../../shared/request/services.ts'
import { type Context, caller } from '../http/context.ts'

export async function userInfo(services: Services, ctx: Context): Promise<Record<string, unknown>> {
  const { session, principal } = caller(ctx)
  const profile = await visibleProfile(services, session)
  const words = new Set((ctx.state.claims?.scope ?? '').split(' '))
  const phone = findTelecom(profile, 'phone')
  return known({
    sub: profile.id,
    ...(words.has('profile')
      ? { profile: principal.profile, name: displayName(profile), ...personClaims(profile) }
      : {}),
    ...(words.has('email') ? await emailClaims(services, session, profile) : {}),
    ...(words.has('phone') && phone !== undefined
      ? { phone_number: phone, phone_number_verified: false }
      : {}),
    ...(words.has('address') ? { address: addressClaim(profile) } : {}),
  })
}

function known(claims: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(claims).filter(([, value]) => value !== undefined && value !== ''),
  )
}

function personClaims(profile: Resource): Record<string, unknown> {
  const name = firstObject(profile.name)
  const given = asArray(name?.given)
  const communication = firstObject(profile.communication)
  const language = firstObject(
    isObject(communication?.language) ? communication.language.coding : communication?.coding,
  )
  return {
    given_name: given[0],
    family_name: name?.family,
    middle_name: given.length > 1 ? given.slice(1).join(' ') : undefined,
    birthdate: profile.birthDate,
    locale: language?.code,
    updated_at: seconds(profile.meta?.lastUpdated),
  }
}

/** OpenID Connect Core §5.1 requires a number. */
function seconds(instant: string | undefined): number | undefined {
  return instant === undefined ? undefined : Math.floor(Date.parse(instant) / 1000)
}

async function emailClaims(
  { repository }: Services,
  session: Session,
  profile: Resource,
): Promise<Record<string, unknown>> {
  const userId = userIdOfSession(session)
  const user = userId === undefined ? undefined : await readUser(repository, userId)
  if (typeof user?.email === 'string') {
    return { email: user.email, email_verified: user.emailVerified === true }
  }
  const email = findTelecom(profile, 'email')
  return email === undefined ? {} : { email, email_verified: false }
}

function findTelecom(profile: Resource, system: string): unknown {
  const list = toObjects(profile.telecom)
  return list.find((item) => item.system === system && item.value !== undefined)?.value
}

function addressClaim(profile: Resource): { formatted: string } | undefined {
  const address = firstObject(profile.address)
  if (address === undefined) return undefined
  const { text, line, city, state, postalCode, country } = address
  if (typeof text === 'string') return { formatted: text }
  const lines = asArray(line)
  const town = [city, state, postalCode].filter((part) => typeof part === 'string').join(', ')
  const all = [...lines, town, country].filter((part) => typeof part === 'string' && part !== '')
  return all.length === 0 ? undefined : { formatted: all.join('\n') }
}

function firstObject(value: unknown): Record<string, unknown> | undefined {
  const first: unknown = Array.isArray(value) ? value[0] : undefined
  return isObject(first) ? first : undefined
}
