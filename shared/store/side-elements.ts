/**
 * Which elements of a type the string and range rows come from. An update that leaves those elements as
 * they are leaves these rows as they are, so nobody has to derive what is stored once more.
 */
import type { SearchParameter } from '../fhir/definitions-data.ts'
import { isSameValue } from '../fhir/json.ts'
import { compileExpression, type Leg } from '../fhir/path-extract.ts'
import type { Resource } from '../fhir/resource.ts'

/** Stands for every element. */
export const ANY_ELEMENT = '*'

/** PostgreSQL and the caller set some of it: it differs from version to version. */
const META = 'meta'
const OF_RESOURCE = '%resource.'

/** Elements that the rows of one leg of a parameter are read from; none for a leg that makes keys only. */
export function sideElements(
  type: string,
  parameter: SearchParameter,
  isMainDate: boolean,
  leg: Leg,
): readonly string[] {
  switch (parameter.type) {
    case 'reference':
    case 'uri':
      return []
    case 'token':
      // For `:contains`.
      return leg.type === 'ContactPoint' ? [rootOf(leg)] : []
    case 'date':
      return isMainDate ? [] : [rootOf(leg)]
    case 'composite':
      return compositeElements(type, parameter, leg)
    case 'string':
    case 'number':
    case 'quantity':
    case 'special':
      return [rootOf(leg)]
    default: {
      const never: never = parameter.type
      return never
    }
  }
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
