/** Grants: the rights from policies and scopes as plain values, and the areas outside of resources. */

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

/** One policy entry with its parameters filled in, narrowed by scopes. */
export interface Grant {
  /** `AccessPolicy/1 entry 0`, for logs and explanations. */
  readonly source: string
  readonly type: string
  readonly interactions: ReadonlySet<Interaction>
  /** AND-ed; empty: every resource. */
  readonly criteria: readonly Criterion[]
  readonly criteriaTexts: readonly string[]
  /** Element paths left out of every response and kept as stored in every write. */
  readonly hidden: readonly string[]
  readonly readonly: readonly string[]
  readonly constraints: readonly WriteConstraint[]
  /** Reference added to `meta.accounts` of new resources. */
  readonly account: string | undefined
  /** True when a policy entry names this type, not `*` or a scope. */
  readonly isNamed: boolean
}

/** Grants every resource of a type, or of all types for `*`. */
export function plainGrant(
  type: string,
  interactions: readonly Interaction[],
  source: string,
): Grant {
  return {
    source,
    type,
    interactions: new Set(interactions),
    criteria: [],
    criteriaTexts: [],
    hidden: [],
    readonly: [],
    constraints: [],
    account: undefined,
    isNamed: false,
  }
}

export interface WriteConstraint {
  readonly name: string | undefined
  readonly run: CompiledPath
  /** Variables of the policy; each write adds `%before` and `%after`. */
  readonly variables: Readonly<Record<string, string>>
}

export interface Rules {
  readonly grants: readonly Grant[]
  /** Grants of SMART scopes, which also narrow the rights of admins. Undefined: without scopes. */
  readonly scoped?: readonly Grant[]
}

/** Actions outside of FHIR resources that need a scope, checked by `requireArea`. */
export type Area = 'administration' | 'account'

/** SMART reserves the prefix `__`: https://hl7.org/fhir/smart-app-launch/scopes-and-launch-context.html */
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

/** Errors: 403 with the missing word. https://datatracker.ietf.org/doc/html/rfc6750#section-3.1 */
export function requireArea(principal: Narrowed, area: Area): void {
  if (reaches(principal, area)) return
  const word = AREA_WORDS[area]
  const text = `The scope of this token does not reach the ${area}; that takes ${word}`
  throw new HttpError(403, outcome('forbidden', issue('error', 'forbidden', text)), {
    cause: 'scope',
    headers: { 'WWW-Authenticate': `Bearer error="insufficient_scope", scope="${word}"` },
  })
}
