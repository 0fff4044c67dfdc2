/**
 * Validation of a resource in stages: structure, invariants, profiles, terminology.
 * https://hl7.org/fhir/R4/validation.html
 */
import { invalid } from '../errors.ts'
import type { Issue } from './outcome.ts'
import type { Resource } from './resource.ts'
import { validateStructure } from './validate-structure.ts'

export interface ValidationOptions {
  /** False: only unknown properties, JSON types and formats are errors, the rest are warnings. */
  readonly strict: boolean
  /** As the operation `$validate` asks: every stage, and warnings of a write that are errors to it. */
  readonly thorough?: boolean
}

/** The issues up to the first stage that has an error, at most 100 each. The type must be a known one. */
export function validate(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const { strict, thorough = false } = options
  const { structure, invariants } = validateStructure(resource, {
    isStrict: strict,
    refusesChoices: thorough && strict,
  })
  if (structure.hasErrors) return structure.issues
  return [...structure.issues, ...invariants.issues]
}

/** Throws 400 with the issues when one is an error; answers the warnings otherwise. */
export function requireValid(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const issues = validate(resource, options)
  if (issues.some(({ severity }) => severity === 'error')) throw invalid(issues)
  return issues
}
