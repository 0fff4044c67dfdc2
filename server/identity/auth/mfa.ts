/**
 * The second factor: enrolment, verification, removal, codes by mail. Each time step and code is accepted once. Wrong
 * tokens are counted per User (guesses.ts), and five of them end a Login.
 */

import { createHmac, randomBytes, randomInt, timingSafeEqual } from 'node:crypto'
import { isDeviceCurrent } from '../../../shared/access/credentials/devices.ts'
import { provenApplicant } from '../../../shared/access/credentials/hashing.ts'
import { hashPassword, verifyPassword } from '../../../shared/access/credentials/passwords.ts'
import type { ProjectContext } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest, tooManyRequests } from '../../../shared/core/errors.ts'
import { type Resource, targetIn } from '../../../shared/fhir/resource.ts'
import {
  checkGuess,
  deviceGuess,
  factorGuess,
  type Guessed,
  sessionGuess,
} from '../../../shared/identity/guesses.ts'
import { addMail } from '../../../shared/outbound/mails.ts'
import { codeMail } from '../../../shared/projects/mail-texts.ts'
import { notifyOwner } from '../../../shared/projects/signed-in-user.ts'
import {
  findMemberships,
  patchUser,
  projectOfUser,
  readUser,
} from '../../../shared/projects/users.ts'
import { countEvent } from '../../../shared/redis/limiter.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { readDeviceCookie } from '../browser.ts'
import { verifyFactor } from '../login-states.ts'
import { changeLogin, loginUserId, requireOpen, revokeLogin } from '../login-store.ts'

const WRONG_TOKENS = 5
const COUNT_SECONDS = 3600
/** Three steps are valid at a time; older ones fail by the clock. */
const STEP_MEMORY_SECONDS = 120

const CODE_SECONDS = 600
const CODES_AN_HOUR = 5

/**
 * Returns the second factor that the sign-in still needs; `new app`: to be set up first. A Project may let its members
 * use mailed codes instead, but not where a User of the whole service must have an app.
 */
export async function neededFactor(
  { principals }: Pick<Services, 'principals'>,
  login: Resource,
  user: Resource,
): Promise<'none' | 'app' | 'new app' | 'mail'> {
  if (login.authMethod !== 'password' || login.mfaVerified === true) return 'none'
  if (user.mfaEnrolled === true) return 'app'
  // A Project requires it from the moment at which the sign-in is for this Project.
  const projectId = targetIn(login.project)?.id
  const project = projectId === undefined ? undefined : await principals.project(projectId)
  if (user.mfaRequired !== true && project?.requiresFactor !== true) return 'none'
  return project !== undefined && mailsCodesTo(project, user) ? 'mail' : 'new app'
}

function mailsCodesTo({ id, mailsCodes }: ProjectContext, user: Resource): boolean {
  const mayDecide = user.mfaRequired !== true || projectOfUser(user) === id
  return mailsCodes === true && mayDecide && typeof user.email === 'string'
}

/**
 * Where any Project of the User takes mailed codes, a password alone must not set up an app, which would replace them.
 * Errors: 400.
 */
async function requireCodeFirst(services: Services, user: Resource): Promise<void> {
  const { repository, principals } = services
  for (const { active, project: reference } of await findMemberships(repository, user)) {
    const id = active === false ? undefined : targetIn(reference)?.id
    const project = id === undefined ? undefined : await principals.project(id)
    if (project === undefined || !mailsCodesTo(project, user)) continue
    if (project.requiresFactor !== true && user.mfaRequired !== true) continue
    const text = `Sign in to ${project.name} with a code by mail first, and set up the app there`
    throw badRequest(text, 'login')
  }
}

/** Mails the User a code for this sign-in, which replaces the previous one. Errors: 400, 429. */
export async function sendCode(services: Services, login: Resource): Promise<void> {
  const { redis, hashing, database, config } = services
  const user = await readLoginUser(services, login)
  if ((await neededFactor(services, login, user)) !== 'mail') {
    throw badRequest('This sign-in takes no code by mail', 'login')
  }
  const id = user.id ?? ''
  const counted = `botica:sign-in-codes-sent:${id}`
  if ((await countEvent(redis, counted, COUNT_SECONDS)) > CODES_AN_HOUR) {
    throw tooManyRequests(Math.max(1, await redis.ttl(counted)))
  }
  const code = String(randomInt(1_000_000)).padStart(6, '0')
  // A fast hash of six digits would be reversed at once.
  const hash = await hashing.run(provenApplicant(id), () => hashPassword(code))
  await redis.set(codeKey(login.id), hash, 'EX', CODE_SECONDS)
  await addMail(database, projectOfUser(user) ?? SYSTEM_PROJECT.id, codeMail(config, user, code))
}

function codeKey(loginId: string | undefined): string {
  return `botica:sign-in-code:${loginId}`
}

/** Returns the data for an authenticator app; creates the User's secret if missing. */
export async function readEnrollment({ repository, config }: Services, user: Resource) {
  const secret = typeof user.mfaSecret === 'string' ? user.mfaSecret : newTotpSecret()
  if (user.mfaSecret === undefined) {
    await patchUser(repository, user.id ?? '', { mfaSecret: secret })
  }
  const enrollUri = totpUri(secret, config.productName, String(user.email ?? user.id))
  // Few processes draw one, and it has 57 modules.
  const { default: QRCode } = await import('qrcode')
  const svg = await QRCode.toString(enrollUri, { type: 'svg' })
  const enrollQrCode = `data:image/svg+xml;base64,${Buffer.from(svg).toString('base64')}`
  return { enrollUri, enrollQrCode }
}

interface FactorChange {
  readonly loginId: string
  readonly token: string
  /** The one that the login is for. */
  readonly project: Pick<ProjectContext, 'requiresFactor'>
  /** The login rests on more than a password of this service. */
  readonly isProven: boolean
}

/** Enrols a signed-in User. Errors: 400, 429. */
export async function enrollUser(
  services: Services,
  user: Resource,
  { loginId, token, isProven }: FactorChange,
): Promise<void> {
  if (!isProven) await requireCodeFirst(services, user)
  await enrolBy(services, user, { loginId, token, guessed: sessionGuess('factor', user.id ?? '') })
}

/** Disables the second factor; the next enrolment creates a new secret. Errors: 400, 429. */
export async function disableMfa(
  services: Services,
  user: Resource,
  { loginId, token, project }: FactorChange,
): Promise<void> {
  if (user.mfaEnrolled !== true) throw badRequest('User not enrolled in MFA')
  if (user.mfaRequired === true || project.requiresFactor === true)
    throw badRequest('A second factor is required')
  const guessed = sessionGuess('factor', user.id ?? '')
  await requireToken(services, user, { loginId, token, guessed }, 'Invalid token')
  await patchUser(services.repository, user.id ?? '', {
    mfaEnrolled: false,
    mfaSecret: newTotpSecret(),
  })
  await notifyOwner(services, user, 'the second factor was removed')
}

/** Enrols during a sign-in; with mailed codes only after it, since a password alone must not suffice. Errors: 400, 429. */
export async function enrollAtLogin(
  services: Services,
  ctx: Context,
  login: Resource,
  token: string,
): Promise<Resource> {
  const user = await readLoginUser(services, login)
  if ((await neededFactor(services, login, user)) === 'mail') {
    throw badRequest('Continue with a code by mail; set up the app after the sign-in', 'login')
  }
  await requireCodeFirst(services, user)
  const guessed = guessAtLogin(services, ctx, user)
  await enrolBy(services, user, { loginId: login.id ?? '', token, guessed })
  return await changeLogin(services, login, verifyFactor)
}

/** Errors: 400, 429. */
export async function verifyAtLogin(
  services: Services,
  ctx: Context,
  login: Resource,
  token: string,
): Promise<Resource> {
  const user = await readLoginUser(services, login)
  const byMail = (await neededFactor(services, login, user)) === 'mail'
  if (user.mfaEnrolled !== true && !byMail) throw badRequest('User not enrolled in MFA')
  const guessed = guessAtLogin(services, ctx, user)
  const attempt = { loginId: login.id ?? '', token, guessed, byMail }
  await requireToken(services, user, attempt, 'Invalid MFA token')
  return await changeLogin(services, login, verifyFactor)
}

interface Attempt {
  readonly loginId: string
  readonly token: string
  readonly guessed: Guessed
  /** True: the token is that of a mail. */
  readonly byMail?: boolean
}

function guessAtLogin(services: Services, ctx: Context, user: Resource): Guessed {
  const device = readDeviceCookie(services, ctx, String(user.email))
  const isKnown = device !== undefined && isDeviceCurrent(device, user)
  return isKnown ? deviceGuess('factor', device.id) : factorGuess(user.id ?? '')
}

async function enrolBy(services: Services, user: Resource, attempt: Attempt): Promise<void> {
  if (user.mfaEnrolled === true) throw badRequest('Already enrolled')
  if (typeof user.mfaSecret !== 'string') throw badRequest('Secret not found')
  await requireToken(services, user, attempt, 'Invalid token')
  await patchUser(services.repository, user.id ?? '', { mfaEnrolled: true })
  await notifyOwner(services, user, 'a second factor was added')
}

async function readLoginUser({ repository }: Services, login: Resource): Promise<Resource> {
  requireOpen(login)
  if (login.mfaVerified === true) throw badRequest('Login already verified')
  const user = await readUser(repository, loginUserId(login) ?? '')
  if (user === undefined) throw badRequest('Login revoked', 'login')
  return user
}

/** Reports `text` for a wrong token. Errors: 400, 429. */
async function requireToken(
  services: Services,
  user: Resource,
  { loginId, token, guessed, byMail = false }: Attempt,
  text: string,
): Promise<void> {
  const { redis } = services
  const found = await checkGuess(redis, guessed, user.id ?? '', async () => {
    const isRight = byMail
      ? await redeemCode(services, user, loginId, token)
      : await redeemToken(services, user, token)
    return isRight ? true : undefined
  })
  if (found !== undefined) return
  const wrong = await countEvent(redis, `botica:wrong-tokens:${loginId}`, COUNT_SECONDS)
  if (wrong >= WRONG_TOKENS) await revokeLogin(services, { resourceType: 'Login', id: loginId })
  throw badRequest(text, 'token')
}

async function redeemToken({ redis }: Services, user: Resource, token: string): Promise<boolean> {
  const step = totpStep(String(user.mfaSecret ?? ''), token, Date.now())
  if (step === undefined) return false
  const key = `botica:totp:${user.id}:${step}`
  return (await redis.set(key, '1', 'EX', STEP_MEMORY_SECONDS, 'NX')) === 'OK'
}

/** One of concurrent calls with the right code succeeds. Errors: 429. */
async function redeemCode(
  { redis, hashing }: Services,
  user: Resource,
  loginId: string,
  code: string,
): Promise<boolean> {
  const stored = await redis.get(codeKey(loginId))
  if (stored === null || !/^\d{6}$/.test(code)) return false
  const isRight = await hashing.run(provenApplicant(user.id ?? ''), () =>
    verifyPassword(code, stored),
  )
  return isRight && (await redis.del(codeKey(loginId))) === 1
}

// One-time passwords from a clock: RFC 6238 with SHA-1, 6 digits, 30 s.

const STEP_MS = 30_000
const SECRET_BYTES = 20
const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** Returns 160 random bits in base32, as authenticator apps expect. */
export function newTotpSecret(): string {
  const bits = [...randomBytes(SECRET_BYTES)].map((byte) => byte.toString(2).padStart(8, '0'))
  const fives = bits.join('').match(/.{5}/g) ?? []
  return fives.map((five) => ALPHABET[Number.parseInt(five, 2)]).join('')
}

/** https://github.com/google/google-authenticator/wiki/Key-Uri-Format */
function totpUri(secret: string, issuer: string, account: string): string {
  const label = `${encodeURIComponent(issuer)}:${encodeURIComponent(account)}`
  return `otpauth://totp/${label}?secret=${secret}&issuer=${encodeURIComponent(issuer)}`
}

/** Returns the time step of a token, current or adjacent; undefined for a wrong token. */
function totpStep(secret: string, token: string, now: number): number | undefined {
  if (!/^\d{6}$/.test(token)) return undefined
  const step = Math.floor(now / STEP_MS)
  const given = Buffer.from(token)
  return [step - 1, step, step + 1].find((candidate) =>
    timingSafeEqual(Buffer.from(totpToken(secret, candidate)), given),
  )
}

/** https://datatracker.ietf.org/doc/html/rfc4226#section-5.3 */
function totpToken(secret: string, step: number): string {
  const counter = Buffer.alloc(8)
  counter.writeBigUInt64BE(BigInt(step))
  const digest = createHmac('sha1', decodeBase32(secret)).update(counter).digest()
  const offset = (digest[19] ?? 0) & 15
  const number = (digest.readUInt32BE(offset) & 0x7fff_ffff) % 1_000_000
  return String(number).padStart(6, '0')
}

function decodeBase32(secret: string): Buffer {
  const bits = [...secret].map((letter) => ALPHABET.indexOf(letter).toString(2).padStart(5, '0'))
  const bytes = bits.join('').match(/.{8}/g) ?? []
  return Buffer.from(bytes.map((byte) => Number.parseInt(byte, 2)))
}
