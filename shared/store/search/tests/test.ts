/** A condition on a row, as SQL. */
import type { Bind } from '../../rows/side-rows.ts'
import type { KeyStatistics } from '../plan/statistics.ts'

export type Test =
  /** It holds one of the keys. */
  | KeysTest
  /** Its id is among those of a subselect on a side table. */
  | IdsTest
  | JoinTest
  /** `narrow`: found by an index of its own; `date`: a range of the main date; else a mere filter. */
  | {
      readonly kind: 'narrow' | 'date' | 'filter'
      readonly sql: (bind: Bind) => string
      /** The same for few rows. */
      readonly few?: (bind: Bind) => string
      /** The range of a column of the order that all matches are in. */
      readonly within?: Within
      /** For a date: between what nearly all matches begin; absent where that is not bounded. */
      readonly begins?: Within
      /** Looks beyond the row: worth asking only of rows that may be on the page. */
      readonly isCostly?: boolean
      /** The scope of `few`; absent: whatever its values lead to. */
      readonly reach?: Reach | undefined
      /** The tests that it says in one. */
      readonly of?: readonly Test[]
      /** Its opposite. */
      readonly none?: KeysTest
    }

/** A range of a time, bounds included, in epoch ms. */
export interface Within {
  readonly column: 'lu' | 'd_lo'
  readonly from: number
  readonly to: number
}

export interface KeysTest {
  readonly kind: 'keys'
  readonly any: readonly bigint[]
  /** They are of identifiers: few rows hold one, also where no statistics say so. */
  readonly isIdentifying?: boolean
}

export interface IdsTest {
  readonly kind: 'ids'
  readonly ids: (bind: Bind) => string
  /** The same in fewer words, for a row at hand: the ranges of the index that `ids` reads are no help then. */
  readonly few?: (bind: Bind) => string
  /** About how many ids there are at most; absent: nobody knows. */
  readonly expected?: (statistics: Pick<Matches, 'startingWith'>) => number
  /** Read by the same indexes whatever is looked for. */
  readonly isSteady?: boolean
}

/** It holds one of the keys that the other side of a reference gives, or a dictionary. */
export interface JoinTest {
  readonly kind: 'join'
  /** One bigint[] of those keys; more than allowed is an error. */
  readonly keys: (bind: Bind) => string
  /** The same keys, some of them twice, as a subselect that is worth a try to its first ones. */
  readonly some?: (bind: Bind) => string
  /** Looks the row up in the keys, given as a bigint[], or `isNamed` by the name of one; for many rows. */
  readonly check: (keys: string, isNamed: boolean) => string
  /** Tests this row alone; for few rows, where the keys may be many. */
  readonly probe?: (bind: Bind) => string
  /** Both sides are read by the same indexes whatever is looked for. */
  readonly isSteady?: boolean
  /** A walk that is worth a try before the keys are looked for, which may be many or held by many rows. */
  readonly walk?: JoinWalk
  /** The same where the statistics say how to look rows up; absent: in one way. */
  readonly informed?: (statistics: KeyStatistics) => JoinTest
  /** Says what to do where the keys may be many; absent: they are few, or `walk` says it. */
  readonly many?: (statistics: KeyStatistics) => Many
  /** The scope of `probe`; absent: whatever its values lead to. */
  readonly reach?: Reach | undefined
}

export interface Many {
  /** Rows of the searched type, of so many, that hold one of the keys. */
  readonly held: (rows: number) => number
  /** Counts the other side, to a bound, before its keys are asked for; with the rows to walk if it is not few. */
  readonly walk?: { readonly isMany: (bind: Bind) => string; readonly rows: number }
}

/** How far a test looks: at the row itself, or at rows beside it, each found by one key or id that the row holds. */
export type Reach = 'row' | 'beside'

export interface JoinWalk {
  /** How far; 0 is not worth it. */
  readonly rows: (statistics: Matches) => number
  /** Tests one row; without it, whether the row holds one of the keys. */
  readonly test?: (bind: Bind) => string
  /** The share of walked rows that pass, if they are spread evenly. */
  readonly share?: (statistics: KeyStatistics) => number
  /** `test` as what `r` is joined with, once for each target that lets it through. */
  readonly targets?: (bind: Bind) => string
}

/** Statistics of keys and strings. */
export type Matches = Pick<KeyStatistics, 'matches' | 'startingWith'>

// Which tests ask the same of every row, so that one plan serves whatever is looked for.

/** Undefined: it reads whatever its values lead to. */
export function reachOf(test: Test): Reach | undefined {
  if (test.kind === 'keys' || test.kind === 'date') return 'row'
  if (test.kind === 'ids') return test.isSteady ? 'beside' : undefined
  return test.reach
}

/** True when it is read by the same indexes whatever it looks for. */
export function isSteady(test: Test): boolean {
  if ((test.kind === 'ids' || test.kind === 'join') && test.isSteady === true) return true
  return reachOf(test) !== undefined
}

/** The widest scope of several tests. */
export function farthest(tests: readonly Test[]): Reach | undefined {
  const all = tests.map(reachOf)
  if (all.includes(undefined)) return undefined
  return all.includes('beside') ? 'beside' : 'row'
}
