/** Search expressions that are one plain path → the same path for PostgreSQL's jsonpath. */
import { searchParameter } from '../../../fhir/definitions.ts'
import type { OwnParameters } from '../../../fhir/definitions-data.ts'
import { plannedParameter } from '../../index/index-plan.ts'

/** Member of an element that is compared; the element itself where it is a plain value. */
const COMPARED: ReadonlyMap<string, string> = new Map([
  ['Identifier', '.value'],
  ['ContactPoint', '.value'],
  ['Reference', '.reference'],
])

/** A path, then at most one type or condition. */
const PATH =
  /^\(?(\w+)\.([\w.]+?)(?: as (\w+)|\.as\((\w+)\)|\.where\(resolve\(\) is (\w+)\)|\.where\((\w+) ?= ?'([\w-]+)'\))?\)?$/

/** Undefined when a part of the expression is not so simple. */
export function jsonPaths(
  type: string,
  code: string,
  own: OwnParameters | undefined,
): readonly string[] | undefined {
  const expression = searchParameter(type, code, own)?.expression
  const [kind, second] = plannedParameter(type, code, own)?.types ?? []
  if (expression === undefined || kind === undefined || second !== undefined) return undefined
  const paths = expression.split(' | ').map((part) => jsonPath(part, COMPARED.get(kind) ?? ''))
  return paths.every((path) => path !== undefined) ? paths : undefined
}

function jsonPath(part: string, compared: string): string | undefined {
  const match = PATH.exec(part.trim())
  if (match === null) return undefined
  const [, , path = '', as, ofType, resolved, member, value] = match
  const chosen = as ?? ofType
  const property = chosen === undefined ? '' : chosen.charAt(0).toUpperCase() + chosen.slice(1)
  const whole = `$.${path}${property}`
  if (resolved !== undefined) return `${whole}${compared} ? (@ starts with "${resolved}/")`
  if (member !== undefined) return `${whole} ? (@.${member} == "${value}")${compared}`
  return `${whole}${compared}`
}
