/** The second factor: enrolling, asking, giving up. A time step counts once, five wrong tokens end a Login. */
import QRCode from 'qrcode'
import { newTotpSecret, totpStep, totpUri } from '../../shared/access/totp.ts'
import { patchUser, readUser } from '../../shared/api/users.ts'
import { badRequest } from '../../shared/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { patchLogin, requireOpen, revokeLogin, userIdOf } from '../logins.ts'
import { count } from './guesses.ts'

const WRONG_TOKENS = 5
const COUNT_SECONDS = 3600
/** Three steps are valid at a time; afterwards the clock itself guards. */
const STEP_MEMORY_SECONDS = 120

/** What an authenticator app needs; makes the User's secret if there is none. */
export async function enrolment({ repository, config }: Services, user: Resource) {
  const secret = typeof user.mfaSecret === 'string' ? user.mfaSecret : newTotpSecret()
  if (user.mfaSecret === undefined) {
    await patchUser(repository, user.id ?? '', { mfaSecret: secret })
  }
  const enrollUri = totpUri(secret, config.productName, String(user.email ?? user.id))
  const svg = await QRCode.toString(enrollUri, { type: 'svg' })
  const enrollQrCode = `data:image/svg+xml;base64,${Buffer.from(svg).toString('base64')}`
  return { enrollUri, enrollQrCode }
}

/** Errors: 400. */
export async function enrol(
  services: Services,
  user: Resource,
  loginId: string,
  token: string,
): Promise<void> {
  if (user.mfaEnrolled === true) throw badRequest('Already enrolled')
  if (typeof user.mfaSecret !== 'string') throw badRequest('Secret not found')
  await requireToken(services, user, loginId, token, 'Invalid token')
  await patchUser(services.repository, user.id ?? '', { mfaEnrolled: true })
}

/** A new secret is made at the next enrolment. Errors: 400. */
export async function disable(
  services: Services,
  user: Resource,
  loginId: string,
  token: string,
): Promise<void> {
  if (user.mfaEnrolled !== true) throw badRequest('User not enrolled in MFA')
  if (user.mfaRequired === true) throw badRequest('A second factor is required')
  await requireToken(services, user, loginId, token, 'Invalid token')
  await patchUser(services.repository, user.id ?? '', {
    mfaEnrolled: false,
    mfaSecret: newTotpSecret(),
  })
}

/** Enrols while signing in. Errors: 400. */
export async function enrolAtLogin(
  services: Services,
  login: Resource,
  token: string,
): Promise<Resource> {
  const user = await userOf(services, login)
  await enrol(services, user, login.id ?? '', token)
  return await verified(services, login)
}

/** Errors: 400. */
export async function verifyAtLogin(
  services: Services,
  login: Resource,
  token: string,
): Promise<Resource> {
  const user = await userOf(services, login)
  if (user.mfaEnrolled !== true) throw badRequest('User not enrolled in MFA')
  await requireToken(services, user, login.id ?? '', token, 'Invalid MFA token')
  return await verified(services, login)
}

async function userOf({ repository }: Services, login: Resource): Promise<Resource> {
  requireOpen(login)
  if (login.mfaVerified === true) throw badRequest('Login already verified')
  const user = await readUser(repository, userIdOf(login) ?? '')
  if (user === undefined) throw badRequest('Login revoked', 'login')
  return user
}

async function verified(services: Services, login: Resource): Promise<Resource> {
  return await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    return { ...current, mfaVerified: true }
  })
}

async function requireToken(
  services: Services,
  user: Resource,
  loginId: string,
  token: string,
  text: string,
): Promise<void> {
  const { redis } = services
  const step = totpStep(String(user.mfaSecret ?? ''), token, Date.now())
  if (step !== undefined) {
    const key = `botica:totp:${user.id}:${step}`
    const isFirst = await redis.set(key, '1', 'EX', STEP_MEMORY_SECONDS, 'NX')
    if (isFirst === 'OK') return
  }
  const wrong = await count(redis, `botica:wrong-tokens:${loginId}`, COUNT_SECONDS)
  if (wrong >= WRONG_TOKENS) await revokeLogin(services, loginId)
  throw badRequest(text, 'token')
}
