/** What the checks of a profile are made of. */
import { tooCostly } from '../errors.ts'
import type { Resource } from './resource.ts'
import type { Property } from './shapes.ts'
import type { Report } from './validation-report.ts'

export interface Profile {
  readonly url: string
  readonly type: string
  readonly check: Check
}

/** One check of one resource: where faults go, and what its invariants may look at. */
export interface Run {
  readonly faults: Report
  /** Codes outside of required bindings. */
  readonly terminology: Report
  readonly resource: Resource
  /** When the check began, as `performance.now` tells it. */
  readonly startedAt: number
}

export type Check = (value: unknown, run: Run) => void

/** One value of an element. */
export interface Item {
  readonly value: unknown
  readonly property: Property
  /** Undefined for an element that has one value at most. */
  readonly index: number | undefined
  /** `_name`: id and extensions of a primitive. */
  readonly sibling: unknown
}

export type ItemCheck = (item: Item, run: Run) => void

/** Far more than any profile needs; a tenant's own must not hold up the others. */
const MAX_MS = 5_000

/** Errors: 400 `too-costly` for a check that takes longer than that. */
export function requireTime({ startedAt }: Run): void {
  if (performance.now() - startedAt > MAX_MS) throw tooCostly('The profiles take too long to check')
}

/** Runs `work` with the path at the item. */
export function at({ property, index }: Item, { faults }: Run, work: () => void): void {
  faults.enter(property.name)
  if (index !== undefined) faults.enter(index)
  work()
  if (index !== undefined) faults.leave()
  faults.leave()
}

export function maxOf(max: string | undefined): number | undefined {
  return max === undefined ? undefined : max === '*' ? Number.POSITIVE_INFINITY : Number(max)
}

export function rangeText(min: number, max: number): string {
  return `${min}..${max === Number.POSITIVE_INFINITY ? '*' : max}`
}
