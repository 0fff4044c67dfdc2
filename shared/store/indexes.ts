/** Resource → the rows that make it findable: keys, main date, strings, ranges, codings. */

export interface StringRow {
  readonly p: bigint
  readonly v: string
}

export interface RangeRow {
  readonly p: bigint
  readonly lo: number
  readonly hi: number
  readonly u: bigint
}

export interface CodeRow {
  readonly p: bigint
  readonly k: bigint
  readonly system: string
  readonly code: string
  readonly display: string | undefined
}

export interface IndexRows {
  /** `keys[0]` is the self key; `keys[0..nref)` are self, references and compartments. No duplicates. */
  readonly keys: readonly bigint[]
  readonly nref: number
  /** Main date of the type as PostgreSQL timestamptz text (`infinity` allowed); both or none. */
  readonly dateLow: string | undefined
  readonly dateHigh: string | undefined
  readonly strings: readonly StringRow[]
  readonly ranges: readonly RangeRow[]
  readonly codes: readonly CodeRow[]
}
