/**
 * Areas are the actions outside of FHIR resources that a scope has to allow. Administration and changes of a
 * person's account call `requireArea`; the rights of administrators include it (`narrowed` in scopes.ts).
 */
import { HttpError, issue, outcome } from '../errors.ts'

export type Area = 'administration' | 'account'

/**
 * The words that give an area to an app. SMART leaves words that begin with two underscores to
 * implementations: https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html
 */
export const AREA_WORDS: Readonly<Record<Area, string>> = {
  administration: '__admin',
  account: '__account',
}

export const AREAS: readonly Area[] = ['administration', 'account']

interface Narrowed {
  readonly areas: readonly Area[]
}

export function reaches({ areas }: Narrowed, area: Area): boolean {
  return areas.includes(area)
}

/** Errors: 403 with the word that is missing. https://datatracker.ietf.org/doc/html/rfc6750#section-3.1 */
export function requireArea(principal: Narrowed, area: Area): void {
  if (reaches(principal, area)) return
  const word = AREA_WORDS[area]
  const text = `The scope of this token does not reach the ${area}; that takes ${word}`
  throw new HttpError(403, outcome('forbidden', issue('error', 'forbidden', text)), {
    cause: 'scope',
    headers: { 'WWW-Authenticate': `Bearer error="insufficient_scope", scope="${word}"` },
  })
}
