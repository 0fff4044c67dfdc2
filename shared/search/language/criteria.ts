/** Parses one `name=value` of a query to a Criterion. https://hl7.org/fhir/R4/search.html#chaining, #has */
import { badRequest, type HttpError, notSupported, tooCostly } from '../../core/errors.ts'
import { isResourceType, resourceTypes, searchParameter } from '../../fhir/definitions.ts'
import type { OwnParameters, SearchParameter } from '../../fhir/definitions-data.ts'
import { parseReference } from '../../fhir/resource.ts'
import { readFilter } from './filter.ts'
import {
  type Condition,
  type CriteriaScope,
  type Criterion,
  isOfWords,
  type Join,
  type JoinEnd,
  MAX_LINKS,
  MODIFIERS,
  type Refusal,
} from './search-request.ts'
import {
  parseDateValue,
  parseNearValue,
  parseNumberValue,
  parseOfTypeValue,
  parseQuantityValue,
  parseTokenValue,
  splitComposite,
  splitValue,
} from './values.ts'

const MAX_JOINS = 250
/** Reading so many chain ends takes about half a second. */
const MAX_TRIED = 20_000

const HAS = /^_has:([A-Za-z]+):([^:.]+):(.+)$/s
const CHAIN = /^([^:.]+)(?::([^:.]*))?\.(.+)$/s

/** Returns undefined for an empty value. Errors: 400 for faults that lenient handling must not ignore. */
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
  if (links > 0 && name === '_type') return ofType(type, value)
  const chain = CHAIN.exec(name)
  if (chain === null) return readCondition(type, name, value, scope)
  const [, code = '', target, rest = ''] = chain
  const parameter = readyParameter(type, code, scope.own)
  if (parameter === undefined) return unknownParameter(code, name)
  if (parameter.type !== 'reference') {
    throw badRequest(`Search parameter ${code} is not a reference and cannot be chained`, name)
  }
  if (parameter.expression === undefined) {
    throw badRequest(`Search parameter ${code} cannot be chained`, name)
  }
  const types = target === undefined ? targetTypes(parameter) : [requireType(target, name)]
  countTried(scope, types.length, name)
  const read = (end: string) => readCriterion(end, rest, value, { scope, links: links + 1 })
  const ends = types.length === 1 ? readEnd(types[0], read) : readEnds(types, read)
  if (ends === undefined || 'reason' in ends) return ends
  countJoins(scope, ends.length)
  return { kind: 'chain', code, ends }
}

function targetTypes({ targets }: SearchParameter): readonly string[] {
  return targets ?? resourceTypes
}

type ReadEnd = (type: string) => Criterion | Refusal | undefined

function readEnd(type = '', read: ReadEnd): readonly JoinEnd[] | Refusal | undefined {
  const criterion = read(type)
  if (criterion === undefined || 'reason' in criterion) return criterion
  return [{ type, criterion }]
}

/** A chain without a type covers each target type for which the rest is valid. */
function readEnds(
  types: readonly string[],
  read: ReadEnd,
): readonly JoinEnd[] | Refusal | undefined {
  const ends: JoinEnd[] = []
  let never: JoinEnd | undefined
  let refusal: Refusal | undefined
  for (const type of types) {
    const criterion = read(type)
    if (criterion === undefined) return undefined
    if ('reason' in criterion) refusal ??= criterion
    else if (criterion === NEVER) never ??= { type, criterion }
    else ends.push({ type, criterion })
  }
  if (ends.length > 0) return ends
  return never === undefined ? refusal : [never]
}

/** Every resource has `_lastUpdated`, so that the condition is true of all or of none. */
const MISSING = { code: '_lastUpdated', type: 'date', modifier: 'missing' } as const
const ALWAYS: Condition = { ...MISSING, values: ['false'] }
const NEVER: Condition = { ...MISSING, values: ['true'] }

/** Restricts the types at the end of a chain or `_has`. Errors: 400. */
function ofType(type: string, value: string): Condition {
  const types = value.split(',').map((name) => requireType(name, '_type'))
  return types.includes(type) ? ALWAYS : NEVER
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
  if (parameter.type !== 'reference' || !targetTypes(parameter).includes(type)) {
    throw badRequest(`Invalid _has: ${source}:${code} does not refer to ${type}`, name)
  }
  const ends = readEnd(source, (end) => readCriterion(end, rest, value, { scope, links }))
  if (ends === undefined || 'reason' in ends) return ends
  countJoins(scope, 1)
  return { kind: 'has', code, ends }
}

/** Members of a List are the targets of its items. https://hl7.org/fhir/R4/search.html#list */
function readList(
  type: string,
  name: string,
  value: string,
  { scope, links }: { readonly scope: CriteriaScope; readonly links: number },
): Criterion | Refusal | undefined {
  if (name !== '_list') throw badRequest(`Invalid modifier ${name.slice(5)} for _list`, name)
  // `_filter` escapes a dollar sign.
  if (/^\\?\$/.test(value)) throw notSupported('Functional lists are not supported', name)
  const found = readHas(type, '_has:List:item:_id', value, { scope, links })
  return found === undefined || 'reason' in found ? found : { ...found, isList: true }
}

function requireType(name: string, expression: string): string {
  if (!isResourceType(name)) throw badRequest(`Unknown resource type: ${name}`, expression)
  return name
}

/** Types without the parameter at the end of a chain need no join, but take time to look up. */
function countTried(scope: CriteriaScope, count: number, name: string): void {
  scope.tried += count
  if (scope.tried > MAX_TRIED) {
    throw tooCostly(
      `The chains of a search may lead to ${MAX_TRIED} types; name the types of the chains`,
      name,
    )
  }
}

function countJoins(scope: CriteriaScope, count: number): void {
  scope.joins += count
  if (scope.joins > MAX_JOINS) {
    throw tooCostly(
      `A search may follow references to ${MAX_JOINS} types; name the type of a chain`,
    )
  }
}

/** Returns the search parameter. Errors: 400 while a Project's own parameter is not indexed yet. */
export function readyParameter(
  type: string,
  code: string,
  own: OwnParameters | undefined,
  expression?: string,
): SearchParameter | undefined {
  const parameter = searchParameter(type, code, own)
  if (parameter !== undefined && !isReady(parameter)) {
    throw notReady(code, expression)
  }
  return parameter
}

function notReady(code: string, expression?: string): HttpError {
  return badRequest(`Search parameter ${code} is not ready`, expression)
}

export function isReady(parameter: SearchParameter): boolean {
  return !('isReady' in parameter) || parameter.isReady === true
}

const MAX_VALUES = 1000

const UNSUPPORTED = new Set(['_contained', '_containedType', '_deleted', '_query', '_type'])

/** Their value is a text, not a token. */
const TEXT_MODIFIERS: ReadonlySet<string> = new Set(['text', 'contains', 'in', 'not-in'])

const CONTACTS = new Set(['email', 'phone', 'telecom'])

interface Named {
  readonly parameter: SearchParameter
  readonly modifier: string | undefined
}

/** Parses a name without a chain. Always throws for an impossible modifier. */
function readName(type: string, name: string, { own }: CriteriaScope): Named | Refusal {
  const colon = name.indexOf(':')
  const code = colon === -1 ? name : name.slice(0, colon)
  const modifier = colon === -1 ? undefined : name.slice(colon + 1)
  if (UNSUPPORTED.has(code)) return { reason: notSupported(`${code} is not supported`, name) }
  if (isOfWords(code)) {
    if (own?.fullText === undefined) {
      return { reason: notSupported(`${code} is not supported`, name) }
    }
    if (own.fullText === 'indexing') throw notReady(code, name)
  }
  const parameter = readyParameter(type, code, own)
  if (parameter === undefined) return unknownParameter(code, name)
  if (modifier !== undefined) checkModifier(parameter, modifier)
  return { parameter, modifier }
}

function unknownParameter(code: string, name: string): Refusal {
  return { reason: badRequest(`Unknown search parameter: ${code}`, name) }
}

function checkModifier(parameter: SearchParameter, modifier: string): void {
  const supported: readonly string[] = MODIFIERS[parameter.type]
  const isOfId = parameter.code === '_id' && modifier !== 'not'
  const isPlain = parameter.expression === undefined && !isOfProject(parameter, modifier)
  const isApt =
    modifier !== 'contains' || parameter.type !== 'token' || CONTACTS.has(parameter.code)
  if (supported.includes(modifier) && !isOfId && !isPlain && isApt) return
  if (parameter.type === 'reference' && isResourceType(modifier) && !isPlain) return
  const id = parameter.url.slice(parameter.url.lastIndexOf('/') + 1)
  throw badRequest(`Invalid modifier :${modifier} for ${id}`)
}

function isOfProject({ code }: SearchParameter, modifier: string): boolean {
  return code === '_project' && modifier === 'missing'
}

/** Returns undefined for empty values. Errors: 400 for a value of the wrong type. */
function readCondition(
  type: string,
  name: string,
  text: string,
  scope: CriteriaScope,
): Condition | Refusal | undefined {
  const named = readName(type, name, scope)
  if ('reason' in named) return named
  const { parameter, modifier } = named
  const isOneValue = modifier === 'missing'
  const parts = (isOneValue ? [text] : splitValue(text, ',')).filter((part) => part !== '')
  if (parts.length > MAX_VALUES) {
    const text = `${parameter.code} has ${parts.length} values; ${MAX_VALUES} are allowed`
    throw tooCostly(text, name)
  }
  if (parts.length === 0) return undefined
  const values = parts.map((part) => relative(type, parameter, part, scope.fhirUrls))
  for (const value of values) checkValue(parameter, modifier, value)
  const { code, type: parameterType } = parameter
  // `checkModifier` has found the modifier among those of the type.
  return { code, type: parameterType, modifier, values: [...new Set(values)] } as Condition
}

/** Rewrites the server's own absolute references to `Type/id`, and `_id=Patient/1` of Patient to `1`. */
function relative(
  type: string,
  parameter: SearchParameter,
  value: string,
  fhirUrls: readonly string[],
): string {
  if (parameter.code === '_id' && value.startsWith(`${type}/`)) return value.slice(type.length + 1)
  if (parameter.type !== 'reference') return value
  const base = fhirUrls.find((url) => value.startsWith(url))
  return base === undefined ? value : value.slice(base.length)
}

function checkValue(parameter: SearchParameter, modifier: string | undefined, value: string): void {
  if (value.includes('\0')) throw badRequest(`Invalid value for ${parameter.code}`)
  if (modifier !== undefined && isResourceType(modifier)) checkTarget(modifier, value)
  if (modifier === 'missing') {
    if (value === 'true' || value === 'false') return
    throw badRequest(`${parameter.code}:missing must be true or false, not ${value}`)
  }
  if (parameter.type === 'date') parseDateValue(value)
  if (parameter.type === 'number') parseNumberValue(value)
  if (parameter.type === 'quantity') parseQuantityValue(value)
  if (parameter.type === 'composite') checkComposite(parameter, value)
  if (parameter.type === 'special' && parameter.expression !== undefined) parseNearValue(value)
  if (modifier === 'of-type') parseOfTypeValue(value)
  else if (modifier !== undefined && TEXT_MODIFIERS.has(modifier)) return
  else if (parameter.type === 'token' || modifier === 'identifier') parseTokenValue(value)
}

function checkTarget(target: string, value: string): void {
  const type = parseReference(value)?.type
  if (type !== undefined && type !== target) {
    throw badRequest(`${value.slice(0, 200)} is not a reference to ${target}`)
  }
}

function checkComposite(parameter: SearchParameter, value: string): void {
  const parts = splitComposite(parameter, value)
  parameter.components?.forEach(({ type }, i) => {
    const part = parts[i] ?? ''
    checkValue({ ...parameter, type }, undefined, part)
    if (type !== 'token' || parseTokenValue(part).code !== undefined) return
    throw badRequest(
      `${parameter.code} needs a code in ${value}; any code of a system is not searched for in composites`,
    )
  })
}
