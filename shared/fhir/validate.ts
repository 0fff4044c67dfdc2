/**
 * Structural validation of a resource: JSON shape, cardinality and primitive formats.
 * https://hl7.org/fhir/R4/validation.html, levels "structure", "cardinality" and "values".
 * Steps to the current element are kept on one stack; paths are only written when something is wrong.
 */
import { invalid } from '../errors.ts'
import { isResourceType } from './definitions.ts'
import { isDecimal } from './json.ts'
import { type Issue, issue, type Severity } from './outcome.ts'
import { EMPTY_STRING } from './primitives.ts'
import { isObject, type Resource } from './resource.ts'
import { type Property, type Shape, shapeOf } from './shapes.ts'

export interface ValidationOptions {
  /** False: only unknown properties, JSON types and formats are errors, the rest are warnings. */
  readonly strict: boolean
}

/** All issues, at most 100, in document order. The type must be a known one. */
export function validate(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const walk = new Walk(options.strict)
  walk.resource(resource, resource.resourceType, false)
  return walk.issues
}

/** Throws 400 with the issues when one is an error; answers the warnings otherwise. */
export function requireValid(resource: Resource, options: ValidationOptions): readonly Issue[] {
  const issues = validate(resource, options)
  if (issues.some(({ severity }) => severity === 'error')) throw invalid(issues)
  return issues
}

const MAX_ISSUES = 100

class Walk {
  readonly issues: Issue[] = []
  readonly #strict: boolean
  readonly #steps: (string | number)[] = []
  #localReferences: { readonly id: string; readonly path: string }[] = []

  constructor(strict: boolean) {
    this.#strict = strict
  }

  /** A resource of its own, or one contained in another (`isContained`). */
  resource(value: object, step: string | number, isContained: boolean): void {
    const { resourceType, contained, meta } = value as Record<string, unknown>
    const outer = this.#localReferences
    if (!isContained) this.#localReferences = []
    this.#steps.push(step)
    if (typeof resourceType !== 'string' || !isResourceType(resourceType)) {
      this.#error('Unknown resource type', 'resourceType')
    } else {
      this.#object(value as Record<string, unknown>, shapeOf(resourceType), true)
      if (isContained) this.#checkContained(contained, meta)
      else this.#checkLocalReferences(contained)
    }
    this.#steps.pop()
    if (!isContained) this.#localReferences = outer
  }

  #checkContained(contained: unknown, meta: unknown): void {
    if (contained !== undefined) this.#rule('Contained resources must not contain', 'contained')
    if (typeof meta === 'object' && meta !== null && 'versionId' in meta) {
      this.#rule('Contained resources must not have a version', 'meta.versionId')
    }
  }

  #checkLocalReferences(contained: unknown): void {
    if (this.#localReferences.length === 0) return
    const ids = new Set<unknown>()
    for (const item of Array.isArray(contained) ? contained : []) ids.add(item?.id)
    for (const { id, path } of this.#localReferences) {
      if (ids.has(id)) continue
      this.#add(this.#strict ? 'error' : 'warning', `Contained resource "${id}" not found`, path)
    }
  }

  #object(value: Record<string, unknown>, shape: Shape, isResource = false): void {
    let isEmpty = true
    for (const key in value) {
      isEmpty = false
      const property = shape.properties.get(key)
      if (property !== undefined) this.#property(value[key], property, value)
      else if (key !== 'resourceType' || !isResource) {
        this.#error(`Invalid additional property "${key.slice(0, 100)}"`, key.slice(0, 100))
      }
    }
    if (isEmpty) {
      this.#rule('Invalid empty non-primitive value')
      return
    }
    for (const { element, names } of shape.required) {
      if (!hasAny(value, names)) this.#rule('Missing required property', element)
    }
    for (const { names } of shape.choices) this.#choice(value, names)
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
      this.#add('warning', text, this.#path(name))
    }
  }

  #property(value: unknown, property: Property, parent: Record<string, unknown>): void {
    const { name } = property
    if (value === null) this.#rule('Invalid null value', name)
    else if (property.isArray) {
      if (!Array.isArray(value)) this.#error('Expected array of values for property', name)
      else if (value.length === 0) this.#rule('Invalid empty value', name)
      else this.#items(value, property, parent)
    } else if (Array.isArray(value)) this.#error('Expected single value for property', name)
    else this.#item(value, name, property)
  }

  #items(values: readonly unknown[], property: Property, parent: Record<string, unknown>): void {
    const { length } = values
    if (length < property.min || length > property.max) {
      const range = `${property.min}..${property.max === Number.POSITIVE_INFINITY ? '*' : property.max}`
      const text = `Invalid number of values: expected ${range}, but found ${length}`
      this.#rule(text, property.name)
    }
    this.#steps.push(property.name)
    for (let index = 0; index < length && this.issues.length < MAX_ISSUES; index++) {
      if (values[index] !== null) this.#item(values[index], index, property)
      else if (!hasTwin(parent, property, index)) this.#ruleAt('Invalid null value', index)
    }
    this.#steps.pop()
  }

  #item(value: unknown, step: string | number, property: Property): void {
    if (property.check !== undefined) {
      const fault = property.check(value)
      if (fault === EMPTY_STRING) this.#ruleAt(fault, step)
      else if (fault !== undefined) this.#errorAt(fault, step)
    } else if (!isPlainObject(value)) {
      this.#errorAt(`Invalid JSON type: expected object, but got ${jsonType(value)}`, step)
    } else if (property.shape === undefined) {
      this.resource(value, step, property.name === 'contained')
    } else {
      this.#steps.push(step)
      this.#object(value, property.shape())
      if (property.isReference) this.#noteLocal(value.reference)
      this.#steps.pop()
    }
  }

  #noteLocal(reference: unknown): void {
    if (typeof reference !== 'string' || !reference.startsWith('#') || reference === '#') return
    this.#localReferences.push({ id: reference.slice(1), path: this.#path('reference') })
  }

  /** A fault of the JSON shape: an error in every project. */
  #error(text: string, step?: string): void {
    this.#add('error', text, this.#path(step))
  }

  #errorAt(text: string, step: string | number): void {
    this.#steps.push(step)
    this.#error(text)
    this.#steps.pop()
  }

  /** A rule that projects without strict mode do not enforce. */
  #rule(text: string, step?: string): void {
    this.#add(this.#strict ? 'error' : 'warning', text, this.#path(step))
  }

  #ruleAt(text: string, step: string | number): void {
    this.#steps.push(step)
    this.#rule(text)
    this.#steps.pop()
  }

  #add(severity: Severity, text: string, path: string): void {
    if (this.issues.length < MAX_ISSUES) this.issues.push(issue(severity, 'structure', text, path))
  }

  #path(last?: string): string {
    let path = ''
    for (const step of this.#steps) {
      if (typeof step === 'number') path += `[${step}]`
      else path += path === '' ? step : `.${step}`
    }
    return last === undefined ? path : `${path}.${last}`
  }
}

function isPlainObject(value: unknown): value is Record<string, unknown> {
  return isObject(value) && !isDecimal(value)
}

function jsonType(value: unknown): string {
  if (isDecimal(value)) return 'number'
  return Array.isArray(value) ? 'array' : typeof value
}

function hasAny(value: Record<string, unknown>, names: readonly string[]): boolean {
  for (const name of names) if (value[name] !== undefined) return true
  return false
}

/** A null in an array of primitives stands for a value that has only an id or extensions, or none of them. */
function hasTwin(parent: Record<string, unknown>, property: Property, index: number): boolean {
  if (property.check === undefined && !property.isSibling) return false
  const name = property.isSibling ? property.name.slice(1) : `_${property.name}`
  const twin = parent[name]
  return Array.isArray(twin) && twin[index] !== undefined && twin[index] !== null
}
