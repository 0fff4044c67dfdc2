/** Validates structure, cardinality, primitives and invariants. https://hl7.org/fhir/R4/validation.html */

import { type Issue, invalid } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import { isDecimal, isPlainObject } from '../fhir/json.ts'
import { EMPTY_STRING } from '../fhir/primitives.ts'
import type { Resource } from '../fhir/resource.ts'
import { withinTime } from '../fhirpath/custom.ts'
import type { Invariant } from './invariants.ts'
import { type Claimed, createMeter, type Run } from './profile-run.ts'
import {
  bindingFault,
  type CodeList,
  checkTargets,
  getShape,
  type Property,
  publishedCodes,
  Report,
  type Shape,
} from './shapes.ts'

interface StructureOptions {
  /** False: only unknown properties, JSON types and formats are errors, the rest are warnings. */
  readonly isStrict: boolean
  /** True: a code outside a required binding is an error, otherwise a warning. */
  readonly refusesCodes: boolean
}

/** Checks a resource of a known type. Other reports are valid only if the first has no errors. */
function validateStructure(
  resource: Resource,
  options: StructureOptions,
): { readonly structure: Report; readonly invariants: Report; readonly codes: Report } {
  const walk = new Walk(options)
  walk.resource(resource, resource.resourceType, undefined)
  return walk
}

class Walk {
  readonly structure: Report
  readonly invariants: Report
  readonly codes: Report
  readonly #variables: { context: unknown; resource: unknown; rootResource: unknown } = {
    context: undefined,
    resource: undefined,
    rootResource: undefined,
  }

  constructor({ isStrict, refusesCodes }: StructureOptions) {
    const steps: (string | number)[] = []
    this.structure = new Report(isStrict, steps)
    this.invariants = new Report(isStrict, steps)
    this.codes = new Report(refusesCodes, steps)
  }

  resource(value: object, step: string | number, property: Property | undefined): void {
    const { resourceType } = value as Record<string, unknown>
    const variables = this.#variables
    const outer = { ...variables }
    variables.resource = value
    if (property?.name !== 'contained') variables.rootResource = value
    this.structure.enter(step)
    if (typeof resourceType !== 'string' || !isResourceType(resourceType)) {
      this.structure.error('Unknown resource type', 'resourceType')
    } else {
      this.#object(value as Record<string, unknown>, getShape(resourceType), property)
    }
    this.structure.leave()
    Object.assign(variables, outer)
  }

  #object(value: Record<string, unknown>, shape: Shape, property: Property | undefined): void {
    const isResource = property === undefined || property.shape === undefined
    let isEmpty = true
    let choices = 0
    for (const key in value) {
      if (this.structure.isDone) return
      isEmpty = false
      const found = shape.properties.get(key)
      if (found?.choice !== undefined && !found.isSibling) choices += 1
      if (found !== undefined) this.#property(value[key], found, value)
      else if (key !== 'resourceType' || !isResource) {
        const name = key.slice(0, 100)
        this.structure.error(`Invalid additional property "${name}"`, name)
      }
    }
    if (isEmpty) {
      this.structure.rule('Invalid empty non-primitive value')
      return
    }
    for (const { element, names } of shape.required) {
      if (!hasAny(value, names)) this.structure.rule('Missing required property', element)
    }
    // An extension may have one of 50 types.
    if (choices > 1) for (const { names } of shape.choices) this.#choice(value, names)
    this.#check(shape.invariants, value)
    if (property !== undefined) this.#check(property.invariants, value)
  }

  #choice(value: Record<string, unknown>, names: readonly string[]): void {
    let first: string | undefined
    for (const name of names) {
      if (value[name] === undefined) continue
      if (first === undefined) {
        first = name
        continue
      }
      const text = `Conflicting choice of type properties: "${first}", "${name}"`
      this.structure.error(text, name)
    }
  }

  #property(value: unknown, property: Property, parent: Record<string, unknown>): void {
    const { name } = property
    if (value === null) this.structure.rule('Invalid null value', name)
    else if (property.isArray) {
      if (!Array.isArray(value)) {
        this.structure.error('Expected array of values for property', name)
      } else if (value.length === 0) this.structure.rule('Invalid empty value', name)
      else this.#items(value, property, parent)
    } else if (Array.isArray(value)) {
      this.structure.error('Expected single value for property', name)
    } else this.#item(value, name, property)
  }

  #items(values: readonly unknown[], property: Property, parent: Record<string, unknown>): void {
    const { length } = values
    if (length < property.min || length > property.max) {
      const range = `${property.min}..${property.max === Number.POSITIVE_INFINITY ? '*' : property.max}`
      const text = `Invalid number of values: expected ${range}, but found ${length}`
      this.structure.rule(text, property.name)
    }
    this.structure.enter(property.name)
    for (let index = 0; index < length && !this.structure.isDone; index++) {
      if (values[index] !== null) this.#item(values[index], index, property)
      else if (!hasSibling(parent, property, index))
        this.structure.rule('Invalid null value', index)
    }
    this.structure.leave()
  }

  #item(value: unknown, step: string | number, property: Property): void {
    if (property.check !== undefined) {
      const fault = property.check(value)
      if (fault === EMPTY_STRING) this.structure.rule(fault, step)
      else if (fault !== undefined) this.structure.error(fault, step)
      else {
        this.#check(property.invariants, value, step)
        this.#bound(value, property, step)
      }
    } else if (!isPlainObject(value)) {
      const text = `Invalid JSON type: expected object, but got ${jsonType(value)}`
      this.structure.error(text, step)
    } else if (property.shape === undefined) {
      this.resource(value, step, property)
    } else {
      this.structure.enter(step)
      this.#object(value, property.shape(), property)
      this.structure.leave()
      this.#bound(value, property, step)
    }
  }

  #bound(value: unknown, { binding, isSibling }: Property, step: string | number): void {
    if (binding === undefined || isSibling || this.structure.hasErrors || this.codes.isFull) return
    const codes = publishedCodes(binding)
    const fault = codes && bindingFault(value, binding, codes)
    if (fault !== undefined) this.codes.rule(fault, step, 'value')
  }

  /** Skipped after structural errors, which must be fixed first. */
  #check(invariants: readonly Invariant[], value: unknown, step?: string | number): void {
    if (invariants.length === 0 || this.structure.hasErrors || this.invariants.isFull) return
    this.#variables.context = value
    for (const { text, expression, holds } of invariants) {
      if (holds(value, this.#variables)) continue
      this.invariants.rule(text, step, 'invariant', JSON.stringify({ fhirpath: expression }))
    }
  }
}

function jsonType(value: unknown): string {
  if (isDecimal(value)) return 'number'
  return Array.isArray(value) ? 'array' : typeof value
}

function hasAny(value: Record<string, unknown>, names: readonly string[]): boolean {
  for (const name of names) if (value[name] !== undefined) return true
  return false
}

/** A null in an array of primitives stands for a value with only an id or extensions. */
function hasSibling(parent: Record<string, unknown>, property: Property, index: number): boolean {
  if (property.check === undefined && !property.isSibling) return false
  const name = property.isSibling ? property.name.slice(1) : `_${property.name}`
  const sibling = parent[name]
  return Array.isArray(sibling) && sibling[index] !== undefined && sibling[index] !== null
}

interface ValidationOptions {
  /** False: only unknown properties, JSON types and formats are errors, the rest are warnings. */
  readonly strict: boolean
  readonly profiles?: readonly Claimed[]
  /** Codes of the profiles' value sets, by canonical as written. */
  readonly codes?: ReadonlyMap<string, CodeList>
  /** True: codes outside required bindings of the standard are warnings. */
  readonly takesCodes?: boolean | undefined
  /** For `$validate`: runs every stage and reports a write's warnings as errors. */
  readonly thorough?: boolean
}

/** An invariant may compare all pairs of values: larger resources get a time limit. */
const MANY_VALUES = 10_000
const MAX_MS = 5_000

/** Stops after the first stage with an error; at most 100 issues per stage. Errors: 400 `too-costly`. */
export function validate(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const check = () => validateNow(resource, options)
  if (countTo(MANY_VALUES, resource) > 0) return check()
  return withinTime(MAX_MS, 'The resource takes too long to validate', check)
}

/** Subtracts the number of values in an object; 0 when there are more. */
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
  const { strict, thorough = false, profiles = [], takesCodes = false } = options
  const { codes: lists = new Map() } = options
  const { structure, invariants, codes } = validateStructure(resource, {
    isStrict: strict,
    refusesCodes: !takesCodes,
  })
  if (structure.hasErrors) return structure.issues
  const stages = [structure, invariants, codes]
  const isOver = () => !thorough && stages.some(({ hasErrors }) => hasErrors)
  const steps = [resource.resourceType]
  if (profiles.length > 0 && !isOver()) {
    const faults = new Report(strict, steps)
    const terminology = new Report(strict && !takesCodes, steps)
    checkProfiles(profiles, { faults, terminology, codes: lists, spend: createMeter() })
    stages.push(faults)
    if (!isOver()) stages.push(terminology)
  }
  if (thorough) {
    const targets = new Report(strict, steps)
    checkTargets(resource, targets)
    stages.push(targets)
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

/** Throws 400 with the issues if one is an error; otherwise returns the warnings. */
export function requireValid(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const issues = validate(resource, options)
  if (issues.some(({ severity }) => severity === 'error')) throw invalid(issues)
  return issues
}
