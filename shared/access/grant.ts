/** Grants: the rights that entries of a policy and scopes give, as plain values. */
import type { CompiledPath } from '../fhirpath/path.ts'
import type { Criterion } from '../query/search-request.ts'

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
  readonly said: readonly string[]
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
