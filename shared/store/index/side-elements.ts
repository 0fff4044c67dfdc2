/**
 * Which elements of a type its index rows come from. An update that leaves those elements as they are
 * leaves the rows as they are, so nobody has to derive what is stored once more.
 */
import type { SearchParameter } from '../../fhir/definitions-data.ts'
import { isSameValue } from '../../fhir/json.ts'
import type { Meta, Resource } from '../../fhir/resource.ts'
import { compileExpression, type Leg } from '../../fhirpath/extract.ts'

/** Stands for every element. */
export const ANY_ELEMENT = '*'

/** PostgreSQL and the caller set some of it: it differs from version to version. */
export const META = 'meta'
const OF_RESOURCE = '%resource.'

/** Elements that one leg of a parameter is read from. */
export function elementsRead(
  type: string,
  parameter: SearchParameter,
  leg: Leg,
): readonly string[] {
  return parameter.type === 'composite' ? compositeElements(type, parameter, leg) : [rootOf(leg)]
}

/** False for a leg that makes keys only, or the main date. */
export function makesSideRows({ type }: SearchParameter, isMainDate: boolean, leg: Leg): boolean {
  switch (type) {
    case 'reference':
    case 'uri':
      return false
    case 'token':
      // For `:contains`.
      return leg.type === 'ContactPoint'
    case 'date':
      return !isMainDate
    case 'composite':
    case 'string':
    case 'number':
    case 'quantity':
    case 'special':
      return true
    default: {
      const never: never = type
      return never
    }
  }
}

/** True when no element that any row comes from differs, nor what the platform says of the resource. */
export function keepsRows(
  elements: ReadonlySet<string>,
  before: Resource,
  after: Resource,
): boolean {
  if (elements.has(ANY_ELEMENT)) return false
  for (const name of elements) {
    if (name !== META && !isSameValue(before[name], after[name])) return false
  }
  return isSameValue(indexedMeta(before.meta), indexedMeta(after.meta))
}

function indexedMeta({ versionId, lastUpdated, author, onBehalfOf, ...indexed }: Meta = {}): Meta {
  return indexed
}

/** True when no element that string and range rows come from differs. */
export function keepsSideRows(
  elements: ReadonlySet<string>,
  before: Resource,
  after: Resource,
): boolean {
  if (elements.has(ANY_ELEMENT) || elements.has(META)) return false
  for (const name of elements) if (!isSameValue(before[name], after[name])) return false
  return true
}

function compositeElements(
  type: string,
  { expression, components = [] }: SearchParameter,
  leg: Leg,
): readonly string[] {
  const isWhole = expression === type
  const found = isWhole ? [] : [rootOf(leg)]
  for (const component of components) {
    const isOfResource = component.expression.startsWith(OF_RESOURCE)
    if (!isWhole && !isOfResource) continue
    const path = isOfResource
      ? component.expression.slice(OF_RESOURCE.length)
      : component.expression
    found.push(...compileExpression(type, path).map(rootOf))
  }
  return found
}

function rootOf({ root }: Leg): string {
  return root ?? ANY_ELEMENT
}
