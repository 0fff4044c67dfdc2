/**
 * Validation of a resource in stages: structure, invariants, profiles, terminology.
 * https://hl7.org/fhir/R4/validation.html
 */
import { type Issue, invalid } from '../errors.ts'
import type { Resource } from '../fhir/resource.ts'
import { withinTime } from '../fhirpath/custom.ts'
import { type CodeList, checkBindings } from './bindings.ts'
import { type Claimed, createMeter, type Run } from './profiles/run.ts'
import { Report } from './report.ts'
import { validateStructure } from './structure.ts'

export interface ValidationOptions {
  /** False: only unknown properties, JSON types and formats are errors, the rest are warnings. */
  readonly strict: boolean
  /** The claims of the resource and of those inside it. */
  readonly profiles?: readonly Claimed[]
  /** The codes of value sets that the profiles name, as they name them. */
  readonly codes?: ReadonlyMap<string, CodeList>
  /** Codes are looked up in the value sets of required bindings. */
  readonly terminology?: boolean
  /** As the operation `$validate` asks: every stage, and what a write only warns of is an error. */
  readonly thorough?: boolean
}

/** An invariant may compare each value with each other: what has more of them gets so much time. */
const MANY_VALUES = 10_000
const MAX_MS = 5_000

/**
 * The issues up to the first stage that has an error, at most 100 a stage. The type must be a known
 * one. Errors: 400 `too-costly` for profiles, and for a large resource that takes too long.
 */
export function validate(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const check = () => validateNow(resource, options)
  if (countTo(MANY_VALUES, resource) > 0) return check()
  return withinTime(MAX_MS, 'The resource takes too long to validate', check)
}

/** Subtracts the number of values in an object from a number; 0 when there are more. */
function countTo(most: number, value: object): number {
  let left = most
  for (const name in value) {
    const member: unknown = value[name as keyof typeof value]
    left -= 1
    if (left > 0 && typeof member === 'object' && member !== null) left = countTo(left, member)
    if (left <= 0) return 0
  }
  return left
}

function validateNow(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const { strict, thorough = false, profiles = [], terminology = false } = options
  const { codes: lists = new Map() } = options
  const { structure, invariants } = validateStructure(resource, {
    isStrict: strict,
    refusesChoices: thorough && strict,
  })
  if (structure.hasErrors) return structure.issues
  const stages = [structure, invariants]
  const isOver = () => !thorough && stages.some(({ hasErrors }) => hasErrors)
  const steps = [resource.resourceType]
  const codes = new Report(strict, steps)
  if (profiles.length > 0 && !isOver()) {
    const faults = new Report(strict, steps)
    const spend = createMeter()
    checkProfiles(profiles, { faults, terminology: codes, codes: lists, spend })
    stages.push(faults)
  }
  if ((terminology || thorough) && !isOver()) {
    checkBindings(resource, codes)
    stages.push(codes)
  }
  return stages.flatMap(({ issues }) => issues)
}

function checkProfiles(profiles: readonly Claimed[], common: Omit<Run, 'resource' | 'root'>): void {
  const { faults } = common
  for (const { profile, resource, root, steps } of profiles) {
    const { url, type, check } = profile
    faults.within(steps.slice(1), () => {
      if (type === resource.resourceType) check(resource, { ...common, resource, root })
      else faults.rule(`Profile ${url} is for ${type}`, 'meta.profile')
    })
  }
}

/** Throws 400 with the issues when one is an error; answers the warnings otherwise. */
export function requireValid(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const issues = validate(resource, options)
  if (issues.some(({ severity }) => severity === 'error')) throw invalid(issues)
  return issues
}
