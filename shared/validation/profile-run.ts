/** Profiles that a resource claims, and shared parts of profile checks. */
import { tooCostly } from '../core/errors.ts'
import { asArray, isObject, isResource, type Resource } from '../fhir/resource.ts'
import { type CodeList, type Property, Report } from './shapes.ts'

export interface Profile {
  readonly url: string
  readonly type: string
  /** Canonicals of required value sets that are not packaged. */
  readonly valueSets: readonly string[]
  readonly check: Check
}

export interface CheckedResource {
  readonly resource: Resource
  /** Container of a contained resource, otherwise the resource itself. */
  readonly root: Resource
  /** Path from the outermost resource's type to this one. */
  readonly steps: readonly (string | number)[]
}

export interface Claimed extends CheckedResource {
  readonly profile: Profile
}

export interface Run {
  readonly faults: Report
  /** Codes outside required bindings, and references to other types. */
  readonly terminology: Report
  readonly resource: Resource
  readonly root: Resource
  readonly codes: ReadonlyMap<string, CodeList>
  readonly spend: Spend
}

export type Check = (value: unknown, run: Run) => void

export interface Item {
  readonly value: unknown
  readonly property: Property
  /** Undefined unless the element is a list. */
  readonly index: number | undefined
  /** `_name`: id and extensions of a primitive. */
  readonly sibling: unknown
}

export type ItemCheck = (item: Item, run: Run) => void

export type Test = (value: unknown, run: Run) => boolean

export function at({ property, index }: Item, { faults }: Run, work: () => void): void {
  faults.enter(property.name)
  if (index !== undefined) faults.enter(index)
  work()
  if (index !== undefined) faults.leave()
  faults.leave()
}

/** True when a check finds nothing; its findings are discarded. */
export function conforms(check: Check, value: unknown, run: Run): boolean {
  const faults = new Report(true)
  check(value, { ...run, faults, terminology: faults })
  return !faults.hasErrors
}

export function parseMax(max: string | undefined): number | undefined {
  return max === undefined ? undefined : max === '*' ? Number.POSITIVE_INFINITY : Number(max)
}

export function rangeText(min: number, max: number): string {
  return `${min}..${max === Number.POSITIVE_INFINITY ? '*' : max}`
}

/** Counts steps. Errors: 400 `too-costly`. */
export type Spend = (steps?: number) => void

/** CPU time, so that a busy machine does not matter; far more than profiles need. */
const MAX_CPU_MS = 1_000
const STEPS_BETWEEN_LOOKS = 2_000
/** Enough steps to check the clock. */
export const MANY_STEPS = STEPS_BETWEEN_LOOKS

/** Reads the thread's CPU time only occasionally, since the call is slow. */
export function createMeter(): Spend {
  const start = process.threadCpuUsage()
  let left = STEPS_BETWEEN_LOOKS
  return (steps = 1) => {
    left -= steps
    if (left > 0) return
    left = STEPS_BETWEEN_LOOKS
    const { user, system } = process.threadCpuUsage(start)
    if ((user + system) / 1_000 > MAX_CPU_MS) {
      throw tooCostly('The profiles take too long to check')
    }
  }
}

export interface Claim extends CheckedResource {
  readonly canonicals: readonly string[]
}

/** Lists claims, outermost resource first; resources without claims are left out. */
export function listClaims(
  resource: Resource,
  { root = resource, steps = [resource.resourceType] }: Outside = {},
): Claim[] {
  const canonicals = claimedProfiles(resource)
  const own = canonicals.length === 0 ? [] : [{ resource, root, steps, canonicals }]
  const contained = asArray(resource.contained).flatMap((item, i) =>
    isResource(item) ? listClaims(item, { root, steps: [...steps, 'contained', i] }) : [],
  )
  return [...own, ...contained, ...carriedBy(resource, steps)]
}

interface Outside {
  readonly root?: Resource
  readonly steps?: CheckedResource['steps']
}

/** Skips entries that are not strings; validation reports them. */
function claimedProfiles({ meta }: Resource): readonly string[] {
  const claimed = asArray(meta?.profile)
  return [...new Set(claimed.filter((item) => typeof item === 'string'))]
}

function carriedBy(
  { resourceType, entry, parameter }: Resource,
  steps: CheckedResource['steps'],
): Claim[] {
  if (resourceType === 'Parameters') return inParameters(parameter, [...steps, 'parameter'])
  if (resourceType !== 'Bundle') return []
  return asArray(entry).flatMap((item, i) => {
    if (!isObject(item)) return []
    const { resource, response } = item
    const at = [...steps, 'entry', i]
    const outcome = isObject(response) ? response.outcome : undefined
    return [
      ...carried(resource, [...at, 'resource']),
      ...carried(outcome, [...at, 'response', 'outcome']),
    ]
  })
}

function inParameters(parameters: unknown, steps: CheckedResource['steps']): Claim[] {
  return asArray(parameters).flatMap((item, i) => {
    if (!isObject(item)) return []
    const at = [...steps, i]
    return [
      ...carried(item.resource, [...at, 'resource']),
      ...inParameters(item.part, [...at, 'part']),
    ]
  })
}

function carried(value: unknown, steps: CheckedResource['steps']): Claim[] {
  return isResource(value) ? listClaims(value, { steps }) : []
}
