/**
 * Cookies of known devices: their wrong passwords are counted apart from those of strangers, and nothing more. A new
 * password or second factor voids the cookie, so collected cookies are worthless.
 */
import { createHmac, hash, randomBytes, timingSafeEqual } from 'node:crypto'
import type { Resource } from '../../fhir/resource.ts'
import type { KeySet, SigningKey } from './tokens.ts'

export interface Device {
  readonly id: string
  readonly userId: string
  /** Digest of the User's credentials at the time of issue. */
  readonly state: string
}

export interface Devices {
  /** Returns the cookie text after a User's sign-in; a known device keeps its id. */
  issue(user: Resource, id?: string): string
  /** Undefined when the signature is not ours. */
  read(text: string): Device | undefined
}

const ID_BYTES = 12

export function createDevices(known: KeySet): Devices {
  return {
    issue(user, id = randomBytes(ID_BYTES).toString('base64url')) {
      const [key] = known.keys
      if (key === undefined) throw new Error('There is no signing key')
      const text = [user.id, id, credentialDigest(user)].join('.')
      return `${text}.${digest(key, text).toString('base64url')}`
    },
    read(cookie) {
      const [, text = '', userId = '', id = '', state = '', given = ''] =
        /^(([\w-]+)\.([\w-]+)\.([\w-]+))\.([\w-]{43})$/.exec(cookie) ?? []
      const signature = Buffer.from(given, 'base64url')
      const isOurs = known.keys.some((key) => {
        const expected = digest(key, text)
        return expected.length === signature.length && timingSafeEqual(expected, signature)
      })
      return isOurs ? { id, userId, state } : undefined
    },
  }
}

export function isDeviceCurrent(device: Device, user: Resource): boolean {
  return device.userId === user.id && device.state === credentialDigest(user)
}

function digest(key: SigningKey, text: string): Buffer {
  return createHmac('sha256', key.deviceSecret).update(text).digest()
}

function credentialDigest({ passwordHash, mfaEnrolled, mfaSecret }: Resource): string {
  return hash(
    'sha256',
    JSON.stringify([passwordHash, mfaEnrolled === true && mfaSecret]),
    'base64url',
  )
}
