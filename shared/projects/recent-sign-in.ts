/**
 * What takes an account over for good (its address, its second factor) asks for the person, not for a token:
 * a sign-in of the last minutes, or the password. https://datatracker.ietf.org/doc/html/rfc9470
 */
import { badRequest, HttpError, issue, outcome } from '../errors.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { isOwnPassword } from './own-password.ts'

const RECENT_SECONDS = 300
/** Logins that begin with the person at the keyboard; a token exchange and a bot run do not. */
const IN_PERSON = new Set<unknown>(['password', 'google', 'external'])

/** True while the login of the person is young; renewals keep the time of the sign-in. */
export function isRecent(login: Resource | undefined): boolean {
  const begun = Date.parse(String(login?.authTime))
  return IN_PERSON.has(login?.authMethod) && Date.now() - begun < RECENT_SECONDS * 1000
}

/** Errors: 403 when neither is there, 400 for a wrong password, 429 for one guess too many. */
export async function requirePerson(
  services: Pick<Services, 'redis' | 'hashing'>,
  login: Resource | undefined,
  user: Resource,
  password: string | undefined,
): Promise<void> {
  if (password === undefined) {
    if (isRecent(login)) return
    throw personNeeded()
  }
  if (await isOwnPassword(services, user, password)) return
  throw badRequest('Incorrect password', 'password')
}

function personNeeded(): HttpError {
  const minutes = RECENT_SECONDS / 60
  const text = `This takes your password, or a sign-in less than ${minutes} minutes ago`
  const challenge = `Bearer error="insufficient_user_authentication", max_age="${RECENT_SECONDS}"`
  return new HttpError(403, outcome('forbidden', issue('error', 'forbidden', text, 'password')), {
    cause: 'no recent sign-in',
    headers: { 'WWW-Authenticate': challenge },
  })
}
