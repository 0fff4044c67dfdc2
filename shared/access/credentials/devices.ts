/**
 * Devices on which a User has signed in before. A device shows a cookie with a random name of its own, by which its
 * wrong guesses are counted apart from those of strangers. The cookie proves nothing else, and it is void after
 * the password or the second factor has changed, so that nobody can collect cookies for later guesses.
 */
import { createHmac, hash, randomBytes, timingSafeEqual } from 'node:crypto'
import type { Resource } from '../../fhir/resource.ts'
import type { KeySet, SigningKey } from './tokens.ts'

export interface Device {
  readonly id: string
  readonly userId: string
  /** Digest of the credentials of the User at the time of issue. */
  readonly state: string
}

export interface Devices {
  /** The text of a cookie, for a User who has just signed in; the same device keeps its id. */
  issue(user: Resource, id?: string): string
  /** Undefined for a text that no process of ours has signed. */
  read(text: string): Device | undefined
}

const ID_BYTES = 12

/** The first key signs, all verify, as for tokens. */
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

/** True while the User has the credentials that the device was signed in with. */
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
