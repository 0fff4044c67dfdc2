/** Grants: the rights that entries of a policy and scopes give, as plain values, and the areas outside of resources. */

import { HttpError, issue, outcome } from '../core/errors.ts'
import type { CompiledPath } from '../fhirpath/path.ts'
import type { Criterion } from '../search/language/search-request.ts'

export type Interaction = 'create' | 'read' | 'vread' | 'update' | 'delete' | 'search' | 'history'

export const INTERACTIONS: readonly Interaction[] = [
  'create',
  'read',
  'vread',
  'update',
  'delete',
  'search',
  'history',
]
export const READONLY: readonly Interaction[] = ['read', 'vread', 'history', 'search']

/** One entry of a policy with its parameters filled in, narrowed by scopes. */
export interface Grant {
  /** `AccessPolicy/1 entry 0`, for logs and explanations. */
  readonly source: string
  /** Resource type or `*`. */
  readonly type: string
  readonly interactions: ReadonlySet<Interaction>
  /** AND-ed; empty: every resource. */
  readonly criteria: readonly Criterion[]
  /** The criteria as the policy says them. */
  readonly criteriaTexts: readonly string[]
  /** Element paths that are taken out of every answer and stay as stored in every write. */
  readonly hidden: readonly string[]
  /** Element paths that stay as stored in every write. */
  readonly readonly: readonly string[]
  readonly constraints: readonly WriteConstraint[]
  /** A reference that new resources get in `meta.accounts`. */
  readonly account: string | undefined
  /** An entry of a policy names this type: neither `*` nor a scope does so. */
  readonly isNamed: boolean
}

export interface WriteConstraint {
  readonly name: string | undefined
  readonly run: CompiledPath
  /** The variables of the policy; each write adds `%before` and `%after`. */
  readonly variables: Readonly<Record<string, string>>
}

export interface Rules {
  readonly grants: readonly Grant[]
  /** The grants of SMART scopes, which narrow the rights of admins, too. Undefined: without scopes. */
  readonly scoped?: readonly Grant[]
}

/**
 * Areas are the actions outside of FHIR resources that a scope has to allow. Administration and changes of a
 * person's account call `requireArea`; the rights of administrators include it (`narrowed` in scopes.ts).
 */
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
