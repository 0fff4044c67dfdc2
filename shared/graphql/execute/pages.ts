/** Pages of searches: which parts of them are asked for, and what their fields are made of. */
import type { Resource } from '../../fhir/resource.ts'
import type { SearchPage, Version } from '../../store/rows/version.ts'
import type { Given } from '../schema/sources.ts'
import type { Plan, Shape } from './plan.ts'
import { parse, type Search } from './reads.ts'
import type { Run } from './run.ts'

const DEFAULT_COUNT = 20
const MAX_COUNT = 1000

/** The parts of a plain list. */
export const LIST: Omit<Search, 'type' | 'args'> = {
  hasTotal: false,
  hasRows: true,
  hasNext: false,
}

/** Counting and fetching are left out when their fields are. */
export function partsOf(shape: Shape): Omit<Search, 'type' | 'args'> {
  const steps = shape.kind === 'object' ? shape.plan().steps : []
  const names = new Set(steps.map(({ field }) => field?.name))
  const hasNext = names.has('next') || names.has('previous')
  return { hasTotal: names.has('count'), hasRows: hasNext || names.has('edges'), hasNext }
}

export interface Edge {
  readonly mode: 'match'
  readonly version: Version
}

/** https://hl7.org/fhir/R4/graphql.html#connection */
export function connection({ versions, total, previous, next }: SearchPage, given: Given): object {
  const size = sizeOf(given)
  const edges: readonly Edge[] = versions.map((version) => ({ mode: 'match', version }))
  const sizes = { offset: given._offset ?? 0, pageSize: size, pagesize: size }
  return { count: total, ...sizes, first: null, previous, next, last: null, edges }
}

export function sizeOf({ _count }: Given): number {
  return typeof _count === 'number' ? Math.min(_count, MAX_COUNT) : DEFAULT_COUNT
}

/** Undefined for what is no type of the schema. */
export function planOf(shape: Shape, { type }: Version): Plan | undefined {
  if (shape.kind === 'object') return shape.plan()
  return shape.kind === 'any' ? shape.planFor(type) : undefined
}

/** As much of a resource that a search has found as its plan looks at. */
export function parseFor(run: Run, shape: Shape, version: Version): Resource {
  return parse(run, version, planOf(shape, version)?.members())
}
