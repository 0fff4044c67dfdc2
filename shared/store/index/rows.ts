/** The rows that searches find a resource by, and the parameters that they are made for. */

export interface PlannedParameter {
  readonly code: string
  readonly index: number
  readonly isMainDate: boolean
  /** Nearly all resources have it, so one that lacks it has a key that says so. */
  readonly isUsual: boolean
  /** Types of its elements: `Coding`, `Identifier`, `code` …; they decide which keys a token has. */
  readonly types: readonly string[]
  /** `Patient/`, … for the compartments this parameter puts a resource into. */
  readonly compartments: readonly string[]
}

export interface CodeRow {
  readonly p: bigint
  readonly k: bigint
  readonly system: string
  readonly code: string
  readonly display: string | undefined
}

export interface RangeRow {
  readonly p: bigint
  readonly lo: number
  readonly hi: number
  readonly u: bigint
}

export interface StringRow {
  readonly p: bigint
  readonly v: string
}

/** The part of a plan that decides the constants of its keys. */
export interface PlannedType {
  readonly type: string
  /** Identifies the Project's own parameters in it; empty without any. */
  readonly stamp: string
  readonly parameters: readonly PlannedParameter[]
}

/** P(List, this) ^ R(item) is held by a List of which the item is no member any more. */
export const REMOVED_KEY = '_removed'
