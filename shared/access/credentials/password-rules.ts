/** What a new password must be. */
import { hash } from 'node:crypto'
import type { Config } from '../../config/config.ts'
import { badRequest } from '../../errors.ts'
import { isCommonPassword } from './common-passwords.ts'

const SHORTEST = 8
const LONGEST = 256
const PATIENCE_MS = 2000

/** `field` names the password in the request. Errors: 400. */
export async function requireGoodPassword(
  password: string,
  field: string,
  { passwordCheck, passwordCheckUrl }: Pick<Config, 'passwordCheck' | 'passwordCheckUrl'>,
): Promise<void> {
  const bytes = Buffer.byteLength(password)
  if (bytes < SHORTEST || bytes > LONGEST) {
    throw badRequest(`Password must be between ${SHORTEST} and ${LONGEST} characters`, field)
  }
  if (passwordCheck === 'off') return
  const isKnown =
    isCommonPassword(password) ||
    (passwordCheck === 'remote' && (await isBreached(password, passwordCheckUrl)))
  if (isKnown) {
    throw badRequest('Password found in breach database', field)
  }
}

/** Only the first 5 digits of the SHA-1 leave the house. A database that does not answer says no. */
async function isBreached(password: string, database: string): Promise<boolean> {
  const digest = hash('sha1', password).toUpperCase()
  try {
    const response = await fetch(`${database}${digest.slice(0, 5)}`, {
      headers: { 'Add-Padding': 'true' },
      signal: AbortSignal.timeout(PATIENCE_MS),
    })
    const text = response.ok ? await response.text() : ''
    return text.split(/\r?\n/).some((line) => {
      const [rest, count] = line.split(':')
      return rest === digest.slice(5) && count !== '0'
    })
  } catch {
    return false
  }
}
