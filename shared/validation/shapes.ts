/**
 * Properties that an object of a type may have, derived once per type from the definitions; the report of their
 * faults; their required bindings to enumerable value sets, and the types that their references may have.
 * https://hl7.org/fhir/R4/terminologies.html#strength
 */

import { Cache } from '../core/cache.ts'
import { type Issue, issue, type Severity } from '../core/errors.ts'
import { isResourceType, resourceTypes, typeDefinition, valueSet } from '../fhir/definitions.ts'
import type { ElementDefinition } from '../fhir/definitions-data.ts'
import { isPrimitive, type PrimitiveCheck, primitiveCheck } from '../fhir/primitives.ts'
import { canonicalUrl, isObject, parseReference, type Resource } from '../fhir/resource.ts'
import { compileInvariants, type Invariant, UNIVERSAL } from './invariants.ts'

export interface Property {
  readonly name: string
  /** `value` of `valueQuantity`; undefined unless it is a choice. */
  readonly choice: string | undefined
  /** `Quantity`, `code`, `Claim.item`; `Resource` for any resource. */
  readonly type: string
  readonly isArray: boolean
  readonly min: number
  readonly max: number
  /** Primitives only. */
  readonly check: PrimitiveCheck | undefined
  /** Shape of an object; undefined for a primitive and for any resource. */
  readonly shape: (() => Shape) | undefined
  readonly isReference: boolean
  /** Holds id and extensions of a primitive: `_birthDate`. */
  readonly isSibling: boolean
  /** Invariants of this element; those of its type are in the shape. */
  readonly invariants: readonly Invariant[]
  readonly binding: string | undefined
  /** Allowed target types; undefined: any. */
  readonly targets: readonly string[] | undefined
}

export interface Shape {
  readonly name: string
  readonly invariants: readonly Invariant[]
  readonly properties: ReadonlyMap<string, Property>
  /** One name of each must be present. */
  readonly required: readonly Alternatives[]
  /** At most one name of each may be present. */
  readonly choices: readonly Alternatives[]
}

interface Alternatives {
  /** The element's name in the standard: `value[x]`. */
  readonly element: string
  readonly names: readonly string[]
}

/** Returns the shape of `Patient`, `HumanName` or `Patient.contact`. Throws for an unknown name. */
export function getShape(name: string): Shape {
  const known = shapes.get(name)
  if (known) return known
  const shape = compile(name)
  shapes.set(name, shape)
  return shape
}

const shapes = new Map<string, Shape>()

function compile(name: string): Shape {
  const [type = '', ...steps] = name.split('.')
  const definition = typeDefinition(type)
  if (definition === undefined) throw new Error(`No definition of "${name}"`)
  const prefix = steps.length === 0 ? '' : `${steps.join('.')}.`
  const all = definition.elements
  const properties = new Map<string, Property>()
  const required: Alternatives[] = []
  const choices: Alternatives[] = []
  for (const element of all) {
    if (!element.path.startsWith(prefix)) continue
    const own = element.path.slice(prefix.length)
    if (own.includes('.')) continue
    const made = compileProperties(type, own, element, all)
    for (const property of made) properties.set(property.name, property)
    const names = made.map((property) => property.name)
    const alternatives = { element: element.choice ? `${own}[x]` : own, names }
    if (element.min) required.push(alternatives)
    if (element.choice) {
      choices.push({ ...alternatives, names: names.filter((name) => !name.startsWith('_')) })
    }
  }
  const { constraints } = all.find(({ path }) => `${path}.` === prefix) ?? definition
  const invariants = [...compileInvariants(constraints, name), ...(UNIVERSAL.get(name) ?? [])]
  return { name, invariants, properties, required, choices }
}

function compileProperties(
  owner: string,
  name: string,
  element: ElementDefinition,
  all: readonly ElementDefinition[],
): Property[] {
  const max = element.max === '*' ? Number.POSITIVE_INFINITY : Number(element.max ?? 1)
  const path = `${owner}.${element.path}`
  const base: Property = {
    name,
    choice: element.choice ? name : undefined,
    type: element.content ?? path,
    isArray: max > 1,
    min: element.min ?? 0,
    max,
    check: undefined,
    shape: undefined,
    isReference: false,
    isSibling: false,
    invariants: [],
    binding: element.binding,
    targets: undefined,
  }
  if (element.content !== undefined) {
    const invariants = compileInvariants(element.constraints, element.content)
    return [objectProperty({ ...base, invariants }, element.content)]
  }
  const isInner = all.some((other) => other.path.startsWith(`${element.path}.`))
  if (isInner) return [objectProperty(base, path)]
  return element.types.flatMap(({ code, targets }) => {
    const suffix = element.choice ? code.charAt(0).toUpperCase() + code.slice(1) : ''
    // The definitions type resource ids as string; they have the format of an id.
    const isResourceId = element.path === 'id' && isResourceType(owner)
    const type = isResourceId ? 'id' : code
    const invariants = [
      ...compileInvariants(element.constraints, code),
      ...(UNIVERSAL.get(path) ?? []),
    ]
    return typedProperties({ ...base, name: name + suffix, type, invariants, targets })
  })
}

function typedProperties(property: Property): Property[] {
  const { name, type, choice } = property
  if (!isPrimitive(type)) {
    const isAnyResource = type === 'Resource' || isResourceType(type)
    return [objectProperty(property, isAnyResource ? undefined : type)]
  }
  const sibling = { ...property, name: `_${name}`, type: 'Element', invariants: [] }
  return [
    { ...property, check: primitiveCheck(type) },
    { ...objectProperty(sibling, 'Element'), choice, isSibling: true },
  ]
}

function objectProperty(property: Property, shape: string | undefined): Property {
  return {
    ...property,
    isReference: shape === 'Reference',
    shape: shape === undefined ? undefined : lazily(() => getShape(shape)),
  }
}

/** Resolved lazily, because types refer to each other in cycles. */
function lazily(find: () => Shape): () => Shape {
  let found: Shape | undefined
  return () => {
    found ??= find()
    return found
  }
}

const MAX_ISSUES = 100

interface Spot {
  readonly step?: string | number | undefined
  readonly diagnostics?: string | undefined
}

/** Reports share one stack of steps to the current element; paths are formatted for findings only. */
export class Report {
  readonly issues: Issue[] = []
  readonly isStrict: boolean
  readonly #steps: (string | number)[]
  #errors = 0

  constructor(isStrict: boolean, steps: (string | number)[] = []) {
    this.isStrict = isStrict
    this.#steps = steps
  }

  get hasErrors(): boolean {
    return this.#errors > 0
  }

  get isFull(): boolean {
    return this.issues.length >= MAX_ISSUES
  }

  /** True when further findings cannot change the report. */
  get isDone(): boolean {
    return this.isFull && this.hasErrors
  }

  enter(step: string | number): void {
    this.#steps.push(step)
  }

  leave(): void {
    this.#steps.pop()
  }

  within(steps: readonly (string | number)[], work: () => void): void {
    for (const step of steps) this.enter(step)
    work()
    this.#steps.length -= steps.length
  }

  /** Adds a structural error, enforced in every project. */
  error(text: string, step?: string | number): void {
    this.add('error', 'structure', text, { step })
  }

  /** Adds a finding: an error in strict mode, otherwise a warning. */
  rule(text: string, step?: string | number, code = 'structure', diagnostics?: string): void {
    this.add(this.isStrict ? 'error' : 'warning', code, text, { step, diagnostics })
  }

  add(severity: Severity, code: string, text: string, { step, diagnostics }: Spot = {}): void {
    if (this.isFull) {
      // An error replaces a warning, so that the resource is still rejected.
      if (severity !== 'error' || this.hasErrors) return
      this.issues.pop()
    }
    if (severity === 'error') this.#errors++
    const steps = step === undefined ? this.#steps : [...this.#steps, step]
    this.issues.push(issue(severity, code, text, { expression: toFhirPath(steps), diagnostics }))
  }
}

export function toFhirPath(steps: readonly (string | number)[]): string {
  let path = ''
  for (const step of steps) {
    if (typeof step === 'number') path += `[${step}]`
    else path += path === '' ? step : `.${step}`
  }
  return path
}

export interface CodeList {
  /** Without a system: in any system. */
  has(system: string | undefined, code: string): boolean
}

/** Builds a list with constant-time lookup by system and code. */
export function codeList(
  codes: Iterable<{ readonly system: string; readonly code: string }>,
): CodeList {
  const systems = new Map<string, Set<string>>()
  for (const { system, code } of codes) {
    const known = systems.get(system)
    if (known === undefined) systems.set(system, new Set([code]))
    else known.add(code)
  }
  return {
    has(system, code) {
      if (system !== undefined) return systems.get(system)?.has(code) === true
      return systems.values().some((known) => known.has(code))
    },
  }
}

const RESOURCE_TYPES = 'http://hl7.org/fhir/resource-types'

/** Returns the packaged codes of a value set, by canonical. */
export function publishedCodes(canonical: string): CodeList | undefined {
  const known = published.get(canonical)
  if (known !== undefined) return known
  const systems = valueSet(canonicalUrl(canonical))?.systems
  if (systems === undefined) return undefined
  const list = codeList(
    Object.entries(systems).flatMap(([system, codes]) =>
      (system === RESOURCE_TYPES ? [...codes, ...resourceTypes] : codes).map((code) => ({
        system,
        code,
      })),
    ),
  )
  published.set(canonical, list)
  return list
}

const published = new Cache<string, CodeList>({ name: 'published-codes', max: 1000 })

export function findCodes(
  canonical: string,
  found: ReadonlyMap<string, CodeList>,
): CodeList | undefined {
  return publishedCodes(canonical) ?? found.get(canonical)
}

/** Describes the error of a code, Coding, CodeableConcept or Quantity, if any. */
export function bindingFault(
  value: unknown,
  canonical: string,
  codes: CodeList,
): string | undefined {
  const given = valueCodes(value)
  if (given.length === 0 || isBound(value, codes)) return undefined
  const found = given.map(({ system, code }) => (system === undefined ? code : `${system}|${code}`))
  return `Value ${JSON.stringify(found.join(', '))} did not satisfy terminology binding ${canonicalUrl(canonical)}`
}

/** True when the list contains one of the value's codes. */
export function isBound(value: unknown, codes: CodeList): boolean {
  return valueCodes(value).some(({ system, code }) => codes.has(system, code))
}

interface Code {
  readonly system: string | undefined
  readonly code: string
}

function valueCodes(value: unknown): readonly Code[] {
  if (typeof value === 'string') return [{ system: undefined, code: value }]
  if (!isObject(value)) return []
  if (Array.isArray(value.coding)) return value.coding.flatMap(valueCodes)
  const { system, code } = value
  if (typeof code !== 'string') return []
  return [{ system: typeof system === 'string' ? system : undefined, code }]
}

/** Reports references to forbidden types. The resource is structurally valid; `report` is positioned at it. */
export function checkTargets(resource: Resource, report: Report): void {
  checkObject(resource, getShape(resource.resourceType), report)
}

function checkObject(value: Record<string, unknown>, shape: Shape, report: Report): void {
  for (const [name, content] of Object.entries(value)) {
    const property = shape.properties.get(name)
    if (property === undefined) continue
    report.enter(name)
    if (!Array.isArray(content)) checkItem(content, property, report)
    else {
      for (const [index, item] of content.entries()) {
        report.enter(index)
        checkItem(item, property, report)
        report.leave()
      }
    }
    report.leave()
  }
}

function checkItem(value: unknown, property: Property, report: Report): void {
  if (!isObject(value)) return
  if (property.isReference) checkTarget(value, property.targets, report)
  const { resourceType } = value
  if (property.shape !== undefined) checkObject(value, property.shape(), report)
  else if (typeof resourceType === 'string' && isResourceType(resourceType)) {
    checkObject(value, getShape(resourceType), report)
  }
}

/** Wrong target types are warnings: servers disagree on interchangeable types. */
export function checkTarget(
  { reference }: Record<string, unknown>,
  targets: readonly string[] | undefined,
  report: Report,
): void {
  const type = typeof reference === 'string' ? parseReference(reference)?.type : undefined
  if (type === undefined || targets === undefined || targets.includes(type)) return
  const text = `Invalid reference: expected ${targets.join(' or ')}, but found ${type}`
  report.add('warning', 'structure', text, { step: 'reference' })
}
