/** Required bindings to enumerable value sets. https://hl7.org/fhir/R4/terminologies.html#strength */

import { Cache } from '../core/cache.ts'
import { isResourceType, resourceTypes, valueSet } from '../fhir/definitions.ts'
import { canonicalUrl, isObject, parseReference, type Resource } from '../fhir/resource.ts'
import type { Report } from './shapes.ts'
import { getShape, type Property, type Shape } from './shapes.ts'

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
