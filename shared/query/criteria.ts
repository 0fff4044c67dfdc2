/**
 * One `name=value` of a query → Criterion: chains, `_has`, `_list` and `_filter` around Conditions.
 * https://hl7.org/fhir/R4/search.html#chaining, #has
 */

import { badRequest, notSupported, tooCostly } from '../errors.ts'
import { isResourceType, resourceTypes } from '../fhir/definitions.ts'
import type { SearchParameter } from '../fhir/definitions-data.ts'
import { readCondition, unknownParameter } from './conditions.ts'
import { readyParameter } from './custom-parameters.ts'
import { readFilter } from './filter.ts'
import type { CriteriaScope, Criterion, Join, JoinEnd, Refusal } from './search-request.ts'

const MAX_LINKS = 3
const MAX_JOINS = 250

const HAS = /^_has:([A-Za-z]+):([^:.]+):(.+)$/s
const CHAIN = /^([^:.]+)(?::([^:.]*))?\.(.+)$/s

/** Undefined for an empty value. Errors: 400 for what no handling can ignore. */
export function readCriterion(
  type: string,
  name: string,
  value: string,
  { scope, links = 0 }: { readonly scope: CriteriaScope; readonly links?: number | undefined },
): Criterion | Refusal | undefined {
  if (links > MAX_LINKS) {
    throw tooCostly('Search chains longer than three links are not currently supported', name)
  }
  if (/^_has(:|$)/.test(name)) return readHas(type, name, value, { scope, links: links + 1 })
  if (/^_list(:|$)/.test(name)) return readList(type, name, value, { scope, links: links + 1 })
  if (name === '_filter') {
    const read = (path: string, text: string) => readCriterion(type, path, text, { scope, links })
    return readFilter(type, value, scope.own, read)
  }
  const chain = CHAIN.exec(name)
  if (chain === null) return readCondition(type, name, value, scope)
  const [, code = '', target, rest = ''] = chain
  const parameter = readyParameter(type, code, scope.own)
  if (parameter === undefined) return unknownParameter(code, name)
  if (parameter.type !== 'reference') {
    throw badRequest(`Search parameter ${code} is no reference and cannot be chained`, name)
  }
  if (parameter.expression === undefined) {
    throw badRequest(`Search parameter ${code} cannot be chained`, name)
  }
  const types = target === undefined ? targetsOf(parameter) : [requireType(target, name)]
  const read = (end: string) => readCriterion(end, rest, value, { scope, links: links + 1 })
  const ends = types.length === 1 ? readEnd(types[0], read) : readEnds(types, read)
  if (ends === undefined || 'reason' in ends) return ends
  countJoins(scope, ends.length)
  return { kind: 'chain', code, ends }
}

function targetsOf({ targets }: SearchParameter): readonly string[] {
  return targets ?? resourceTypes
}

type ReadEnd = (type: string) => Criterion | Refusal | undefined

function readEnd(type = '', read: ReadEnd): readonly JoinEnd[] | Refusal | undefined {
  const criterion = read(type)
  if (criterion === undefined || 'reason' in criterion) return criterion
  return [{ type, criterion }]
}

/** Without a type a chain leads to every target for which the rest of it means something. */
function readEnds(
  types: readonly string[],
  read: ReadEnd,
): readonly JoinEnd[] | Refusal | undefined {
  const ends: JoinEnd[] = []
  let refusal: Refusal | undefined
  for (const type of types) {
    const criterion = read(type)
    if (criterion === undefined) return undefined
    if ('reason' in criterion) refusal ??= criterion
    else ends.push({ type, criterion })
  }
  return ends.length === 0 ? refusal : ends
}

function readHas(
  type: string,
  name: string,
  value: string,
  { scope, links }: { readonly scope: CriteriaScope; readonly links: number },
): Join | Refusal | undefined {
  const [, source = '', code = '', rest = ''] = HAS.exec(name) ?? []
  if (rest === '')
    throw badRequest(`Invalid _has: ${name}; use _has:Type:reference:parameter`, name)
  requireType(source, name)
  const parameter = readyParameter(source, code, scope.own)
  if (parameter === undefined) return unknownParameter(code, name)
  if (parameter.type !== 'reference' || !targetsOf(parameter).includes(type)) {
    throw badRequest(`Invalid _has: ${source}:${code} does not refer to ${type}`, name)
  }
  const ends = readEnd(source, (end) => readCriterion(end, rest, value, { scope, links }))
  if (ends === undefined || 'reason' in ends) return ends
  countJoins(scope, 1)
  return { kind: 'has', code, ends }
}

/** Members of a List are those its items refer to. https://hl7.org/fhir/R4/search.html#list */
function readList(
  type: string,
  name: string,
  value: string,
  { scope, links }: { readonly scope: CriteriaScope; readonly links: number },
): Criterion | Refusal | undefined {
  if (name !== '_list') throw badRequest(`Invalid modifier ${name.slice(5)} for _list`, name)
  if (value.startsWith('$')) throw notSupported('Functional lists are not supported', name)
  const found = readHas(type, '_has:List:item:_id', value, { scope, links })
  return found === undefined || 'reason' in found ? found : { ...found, isList: true }
}

function requireType(name: string, expression: string): string {
  if (!isResourceType(name)) throw badRequest(`Unknown resource type: ${name}`, expression)
  return name
}

function countJoins(scope: CriteriaScope, count: number): void {
  scope.joins += count
  if (scope.joins > MAX_JOINS) {
    throw tooCostly(
      `A search may follow references to ${MAX_JOINS} types; name the type of a chain`,
    )
  }
}
