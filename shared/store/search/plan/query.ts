/** A compiled search, and the parts it is put together from. */

import type { Bind } from '../../rows/side-rows.ts'
import type { Order, Position } from '../order/position.ts'
import type { Test } from '../tests/test.ts'
import type { Driver } from './driver.ts'

/** A type of a search, and how its rows are found. */
export interface Part {
  readonly query: Query
  readonly driver: Driver
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
  readonly score?: ((bind: Bind) => string) | undefined
  readonly after: Position | undefined
  readonly limit: number
  readonly offset: number
}
