/** Index rows of a resource, and the parameters they are made for. */

export interface PlannedParameter {
  readonly code: string
  readonly index: number
  readonly isMainDate: boolean
  /** Nearly all resources have it, so its absence is indexed. */
  readonly isUsual: boolean
  /** Element types (`Coding`, `Identifier`, `code` …), which decide on the keys of a token. */
  readonly types: readonly string[]
  /** `Patient/`, … for the compartments that this parameter leads to. */
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

export interface PlannedType {
  readonly type: string
  /** Identifies the Project's custom parameters; empty without any. */
  readonly stamp: string
  readonly parameters: readonly PlannedParameter[]
}

/** P(List, this) ^ R(item): held by a List from which the item was removed. */
export const REMOVED_KEY = '_removed'
