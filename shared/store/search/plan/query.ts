/** A compiled search, and the parts it is put together from. */

import type { Bind } from '../../rows/side-rows.ts'
import type { Order, Position } from '../order/position.ts'
import type { Test } from '../tests/test.ts'
import type { KeyStatistics } from './statistics.ts'

/** A type of a search, and how its rows are found. */
export interface Part {
  readonly query: Query
  readonly facts: Facts
  readonly way: Way
}

export interface Query {
  readonly project: number
  /** More than one: tests and order are the same for all of them, and keys are found first. */
  readonly typeNumbers: readonly number[]
  readonly tests: readonly Test[]
  /** Some of the tests are a policy's: statistics of all rows must not be revealed. */
  readonly isLimited?: boolean
  readonly order: Order
  /** The score of a row of the page, where words are searched. */
  readonly score?: ((project: string, bind: Bind) => string) | undefined
  readonly after: Position | undefined
  readonly limit: number
  readonly offset: number
}

/** The numbers that a way is chosen by. */
export interface Facts {
  readonly statistics: KeyStatistics
  /** Live rows of the types; a middling number where nobody knows. */
  readonly rows: number
  /** Rows wanted, those before the page included. */
  readonly limit: number
  /** False for a Project or type that no ANALYZE has seen. */
  readonly isKnown: boolean
}

/** A way from the tests of a search to its rows; ways.ts has all of them. */
export interface Way {
  readonly name: 'keys' | 'ids' | 'dates' | 'join' | 'walk'
  readonly fits: (query: Query) => boolean
  /** Rows that it is expected to fetch; four that are walked past cost as much as one. */
  readonly cost: (query: Query, facts: Facts) => number
  /** Rows in order, at most `most` of them. */
  readonly sql: (part: Part, most: string, bind: Bind) => string
}
