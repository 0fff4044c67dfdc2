/** One-time passwords from a clock: RFC 6238 with SHA-1, 6 digits, 30 s. */
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto'

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
export function totpUri(secret: string, issuer: string, account: string): string {
  const label = `${encodeURIComponent(issuer)}:${encodeURIComponent(account)}`
  return `otpauth://totp/${label}?secret=${secret}&issuer=${encodeURIComponent(issuer)}`
}

/** The time step a token belongs to, this one or a neighbour; undefined for a wrong token. */
export function totpStep(secret: string, token: string, now: number): number | undefined {
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
  const digest = createHmac('sha1', bytesOf(secret)).update(counter).digest()
  const offset = (digest[19] ?? 0) & 15
  const number = (digest.readUInt32BE(offset) & 0x7fff_ffff) % 1_000_000
  return String(number).padStart(6, '0')
}

function bytesOf(secret: string): Buffer {
  const bits = [...secret].map((letter) => ALPHABET.indexOf(letter).toString(2).padStart(5, '0'))
  const bytes = bits.join('').match(/.{8}/g) ?? []
  return Buffer.from(bytes.map((byte) => Number.parseInt(byte, 2)))
}
