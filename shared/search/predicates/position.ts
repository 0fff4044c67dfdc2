/** The order of a search, and positions in it. */
import type { VersionRow } from '../../store/rows/rows.ts'

import type { Term } from './sort-terms.ts'

export interface Order {
  readonly column: 'lu' | 'd_lo' | 'id'
  readonly descending: boolean
  /** Several types: the type is the last tie-break, as two of them may share an id. */
  readonly byType: boolean
  /** Not empty: the order is by these, then by id, and the column says nothing. */
  readonly terms: readonly Term[]
}

/** The last row of the page before; `value` null is a row without a date. */
export interface Position {
  readonly value: string | null
  /** In the order of the terms. */
  readonly values: readonly TermValue[]
  readonly id: string
  /** Number of its type, in an order by type. */
  readonly type: number
  /** The page ends before this row instead of beginning after it. */
  readonly isBackwards: boolean
}

export interface SortedRow extends VersionRow {
  /** Where words are searched. */
  readonly score?: number | null
  /** Infinite for the open end of a period. */
  readonly d_lo: Date | number | null
  /** `s0`, `s1`, …: what the terms of the order give. */
  readonly [term: `s${number}`]: Date | number | string | null
}

/** As JSON says it; infinite numbers and times are texts. */
export type TermValue = string | number | null
