/**
 * The second factor: enrolling, asking, giving up. A time step counts once. Wrong tokens are counted by User
 * (guesses.ts), and five of them end a Login.
 */

import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import QRCode from 'qrcode'
import { isDeviceCurrent } from '../../../shared/access/credentials/devices.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import {
  checkGuess,
  deviceGuess,
  factorGuess,
  type Guessed,
  sessionGuess,
} from '../../../shared/identity/guesses.ts'
import { notifyOwner } from '../../../shared/projects/signed-in-user.ts'
import { patchUser, readUser } from '../../../shared/projects/users.ts'
import { countEvent } from '../../../shared/redis/limiter.ts'
import type { Services } from '../../../shared/request/services.ts'
import type { Context } from '../../http/context.ts'
import { readDeviceCookie } from '../browser.ts'
import { loginUserId, patchLogin, requireOpen, revokeLogin } from '../login-store.ts'

const WRONG_TOKENS = 5
const COUNT_SECONDS = 3600
/** Three steps are valid at a time; afterwards the clock itself guards. */
const STEP_MEMORY_SECONDS = 120

/** Returns the data for an authenticator app; creates the User's secret if there is none. */
export async function readEnrollment({ repository, config }: Services, user: Resource) {
  const secret = typeof user.mfaSecret === 'string' ? user.mfaSecret : newTotpSecret()
  if (user.mfaSecret === undefined) {
    await patchUser(repository, user.id ?? '', { mfaSecret: secret })
  }
  const enrollUri = totpUri(secret, config.productName, String(user.email ?? user.id))
  const svg = await QRCode.toString(enrollUri, { type: 'svg' })
  const enrollQrCode = `data:image/svg+xml;base64,${Buffer.from(svg).toString('base64')}`
  return { enrollUri, enrollQrCode }
}

/** By a User who is signed in. Errors: 400, 429. */
export async function enrollUser(
  services: Services,
  user: Resource,
  loginId: string,
  token: string,
): Promise<void> {
  await enrolBy(services, user, { loginId, token, guessed: sessionGuess('factor', user.id ?? '') })
}

/** A new secret is made at the next enrolment. Errors: 400, 429. */
export async function disableMfa(
  services: Services,
  user: Resource,
  loginId: string,
  token: string,
): Promise<void> {
  if (user.mfaEnrolled !== true) throw badRequest('User not enrolled in MFA')
  if (user.mfaRequired === true) throw badRequest('A second factor is required')
  const guessed = sessionGuess('factor', user.id ?? '')
  await requireToken(services, user, { loginId, token, guessed }, 'Invalid token')
  await patchUser(services.repository, user.id ?? '', {
    mfaEnrolled: false,
    mfaSecret: newTotpSecret(),
  })
  await notifyOwner(services, user, 'the second factor was removed')
}

/** Enrols while signing in. Errors: 400, 429. */
export async function enrollAtLogin(
  services: Services,
  ctx: Context,
  login: Resource,
  token: string,
): Promise<Resource> {
  const user = await readLoginUser(services, login)
  const guessed = guessAtLogin(services, ctx, user)
  await enrolBy(services, user, { loginId: login.id ?? '', token, guessed })
  return await verified(services, login)
}

/** Errors: 400, 429. */
export async function verifyAtLogin(
  services: Services,
  ctx: Context,
  login: Resource,
  token: string,
): Promise<Resource> {
  const user = await readLoginUser(services, login)
  if (user.mfaEnrolled !== true) throw badRequest('User not enrolled in MFA')
  const guessed = guessAtLogin(services, ctx, user)
  await requireToken(
    services,
    user,
    { loginId: login.id ?? '', token, guessed },
    'Invalid MFA token',
  )
  return await verified(services, login)
}

interface Attempt {
  readonly loginId: string
  readonly token: string
  readonly guessed: Guessed
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

async function verified(services: Services, login: Resource): Promise<Resource> {
  return await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    return { ...current, mfaVerified: true }
  })
}

/** A failure of `text` for a wrong token. Errors: 400, 429. */
async function requireToken(
  services: Services,
  user: Resource,
  { loginId, token, guessed }: Attempt,
  text: string,
): Promise<void> {
  const { redis } = services
  const id = user.id ?? ''
  const found = await checkGuess(redis, guessed, id, async () => {
    const step = totpStep(String(user.mfaSecret ?? ''), token, Date.now())
    if (step === undefined) return undefined
    const key = `botica:totp:${id}:${step}`
    const isFirst = await redis.set(key, '1', 'EX', STEP_MEMORY_SECONDS, 'NX')
    return isFirst === 'OK' ? step : undefined
  })
  if (found !== undefined) return
  const wrong = await countEvent(redis, `botica:wrong-tokens:${loginId}`, COUNT_SECONDS)
  if (wrong >= WRONG_TOKENS) await revokeLogin(services, loginId)
  throw badRequest(text, 'token')
}

// One-time passwords from a clock: RFC 6238 with SHA-1, 6 digits, 30 s.

const STEP_MS = 30_000
const SECRET_BYTES = 20
const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

/** 160 bit in base32, as authenticator apps take it. */
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

/** The time step a token belongs to, this one or a neighbour; undefined for a wrong token. */
function totpStep(secret: string, token: string, now: number): number | undefined {
  if (!/^\d{6}$/.test(token)) return undefined
  const step = Math.floor(now / STEP_MS)
  const given = Buffer.from(token)
  return [step - 1, step, step + 1].find((candidate) =>
    timingSafeEqual(Buffer.from(totpToken(secret, candidate)), given),
  )
}

/** https://datatracker.ietf.org/doc/html/rfc4226#section-5.3 */
export function totpToken(secret: string, step: number): string {
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
