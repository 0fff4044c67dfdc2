/** The order of a search, and positions in it. */
import type { VersionRow } from '../../store/rows/rows.ts'

import type { Term } from './sort-terms.ts'

export interface Order {
  readonly column: 'lu' | 'd_lo' | 'id'
  readonly descending: boolean
  /** Order over several types: the type is the last tie-break, since two types may share an id. */
  readonly byType: boolean
  /** If not empty, sorts by these terms, then by id, ignoring `column`. */
  readonly terms: readonly Term[]
}

/** Last row of the previous page; `value` null is a row without a date. */
export interface Position {
  readonly value: string | null
  readonly values: readonly TermValue[]
  readonly id: string
  readonly type: number
  /** The page ends before this row instead of starting after it. */
  readonly isBackwards: boolean
}

export interface SortedRow extends VersionRow {
  readonly score?: number | null
  /** Infinite for the open end of a period. */
  readonly d_lo: Date | number | null
  /** `s0`, `s1`, …: values of the order's terms. */
  readonly [term: `s${number}`]: Date | number | string | null
}

/** JSON value; infinite numbers and times are strings. */
export type TermValue = string | number | null
