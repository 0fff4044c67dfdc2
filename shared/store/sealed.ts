/** Texts that come back from callers who are not to read them: positions in what is not all theirs to see. */
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto'

const NONCE = 12
const HEAD = NONCE + 16

/** `key` has 32 bytes. */
export function seal(key: Buffer, text: string): string {
  const nonce = randomBytes(NONCE)
  const cipher = createCipheriv('aes-256-gcm', key, nonce)
  const hidden = Buffer.concat([cipher.update(text), cipher.final()])
  return Buffer.concat([nonce, cipher.getAuthTag(), hidden]).toString('base64url')
}

/** Undefined for what was not sealed with this key. */
export function unseal(key: Buffer, sealed: string): string | undefined {
  const bytes = Buffer.from(sealed, 'base64url')
  if (bytes.length < HEAD) return undefined
  const decipher = createDecipheriv('aes-256-gcm', key, bytes.subarray(0, NONCE))
  decipher.setAuthTag(bytes.subarray(NONCE, HEAD))
  try {
    return Buffer.concat([decipher.update(bytes.subarray(HEAD)), decipher.final()]).toString()
  } catch {
    return undefined
  }
}
