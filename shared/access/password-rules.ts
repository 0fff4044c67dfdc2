/** What a new password must be. */
import { hash } from 'node:crypto'
import type { PasswordCheck } from '../config.ts'
import { badRequest } from '../errors.ts'
import { isCommonPassword } from './common-passwords.ts'

const SHORTEST = 8
const LONGEST = 256
const BREACHES = 'https://api.pwnedpasswords.com/range/'
const PATIENCE_MS = 2000

/** `field` names the password in the request. Errors: 400. */
export async function requireGoodPassword(
  password: string,
  field: string,
  check: PasswordCheck,
): Promise<void> {
  const bytes = Buffer.byteLength(password)
  if (bytes < SHORTEST || bytes > LONGEST) {
    throw badRequest(`Password must be between ${SHORTEST} and ${LONGEST} characters`, field)
  }
  if (check === 'off') return
  if (isCommonPassword(password) || (check === 'remote' && (await isBreached(password)))) {
    throw badRequest('Password found in breach database', field)
  }
}

/** Only the first 5 digits of the SHA-1 leave the house. A database that does not answer says no. */
async function isBreached(password: string): Promise<boolean> {
  const digest = hash('sha1', password).toUpperCase()
  try {
    const response = await fetch(`${BREACHES}${digest.slice(0, 5)}`, {
      headers: { 'Add-Padding': 'true' },
      signal: AbortSignal.timeout(PATIENCE_MS),
    })
    const text = response.ok ? await response.text() : ''
    return text.split('\r\n').some((line) => {
      const [rest, count] = line.split(':')
      return rest === digest.slice(5) && count !== '0'
    })
  } catch {
    return false
  }
}
