/** Query string → SearchRequest, as plain data. https://hl7.org/fhir/R4/search.html */
import { badRequest, notSupported, tooCostly } from '../errors.ts'
import { isResourceType, searchParameter } from './definitions.ts'
import type { SearchParameter } from './definitions-data.ts'
import { readPaging } from './search-paging.ts'
import {
  parseDateValue,
  parseNearValue,
  parseNumberValue,
  parseOfTypeValue,
  parseQuantityValue,
  parseTokenValue,
  splitComposite,
  splitValue,
} from './search-values.ts'

export type SearchParamType =
  | 'token'
  | 'reference'
  | 'string'
  | 'date'
  | 'number'
  | 'quantity'
  | 'uri'
  | 'composite'
  | 'special'

/** One `name:modifier=a,b` of a query; conditions are AND-ed, values OR-ed. */
export interface Condition {
  readonly code: string
  readonly type: SearchParamType
  /** `missing`, `not`, `exact`, `contains`, `text`, … or a resource type. */
  readonly modifier: string | undefined
  /** Not empty, without repeats; still escaped, to be read with search-values.ts. */
  readonly values: readonly string[]
}

export interface SortRule {
  readonly code: string
  readonly descending: boolean
}

export interface SearchRequest {
  readonly type: string
  readonly conditions: readonly Condition[]
  readonly sort: readonly SortRule[]
  readonly count: number
  readonly offset: number
  readonly cursor: string | undefined
  readonly total: 'none' | 'estimate' | 'accurate'
  readonly summary: string | undefined
  readonly elements: readonly string[] | undefined
  /** Parameters that were ignored under `handling=lenient`. */
  readonly ignored: readonly string[]
}

export interface SearchOptions {
  /** `Prefer: handling=`; strict refuses unknown parameters. Absent: strict. */
  readonly handling?: 'strict' | 'lenient'
  /** Base of our own absolute references, `https://host/fhir/R4/`. */
  readonly fhirUrl?: string
}

const MAX_VALUES = 1000
const MAX_CONDITIONS = 200

/** Steer the answer and are read elsewhere; not part of what is searched. */
const CONTROL = new Set([
  '_count',
  '_offset',
  '_cursor',
  '_sort',
  '_total',
  '_summary',
  '_elements',
  '_fields',
  '_format',
  '_pretty',
  '_',
])

const UNSUPPORTED = new Set([
  '_compartment',
  '_contained',
  '_containedType',
  '_content',
  '_deleted',
  '_explain',
  '_filter',
  '_has',
  '_include',
  '_list',
  '_project',
  '_query',
  '_revinclude',
  '_text',
  '_type',
])

interface Modifiers {
  readonly supported: readonly string[]
  /** Of the standard or the contract, but not answered. */
  readonly known: readonly string[]
}

const MODIFIERS: Readonly<Record<SearchParamType, Modifiers>> = {
  token: {
    supported: ['not', 'missing', 'text', 'of-type', 'contains'],
    known: ['in', 'not-in', 'above', 'below'],
  },
  reference: { supported: ['identifier', 'not', 'missing'], known: ['above', 'below'] },
  string: { supported: ['exact', 'contains', 'text', 'not', 'missing'], known: [] },
  date: { supported: ['missing'], known: [] },
  number: { supported: ['missing'], known: [] },
  quantity: { supported: ['missing'], known: [] },
  uri: { supported: ['above', 'below', 'contains', 'missing'], known: [] },
  composite: { supported: [], known: [] },
  special: { supported: [], known: [] },
}

/** The token parameters that `:contains` is good for. */
const CONTACTS = new Set(['email', 'phone', 'telecom'])

/** Errors: 400 as search.html and the contract say; 400 not-supported for what is not answered. */
export function parseSearch(
  type: string,
  query: URLSearchParams | string,
  options: SearchOptions = {},
): SearchRequest {
  if (!isResourceType(type)) throw badRequest(`Unknown resource type: ${type}`)
  const pairs = typeof query === 'string' ? new URLSearchParams(query) : query
  const isLenient = options.handling === 'lenient'
  const conditions = new Map<string, Condition>()
  const ignored = new Set<string>()
  for (const [name, value] of pairs) {
    if (CONTROL.has(name) || value === '' || (name === '_contained' && value === 'false')) continue
    const found = readName(type, name)
    if ('reason' in found) {
      if (!isLenient) throw found.reason
      ignored.add(name)
      continue
    }
    const condition = readCondition(type, found, value, options.fhirUrl)
    if (condition === undefined) continue
    conditions.set(JSON.stringify([name, condition.values]), condition)
    if (conditions.size > MAX_CONDITIONS) {
      throw tooCostly(`A search may have ${MAX_CONDITIONS} conditions`)
    }
  }
  const paging = readPaging(type, pairs)
  return { type, conditions: [...conditions.values()], ...paging, ignored: [...ignored] }
}

interface Named {
  readonly parameter: SearchParameter
  readonly modifier: string | undefined
}

/** What a query name means, or why it cannot be answered. An impossible modifier throws always. */
function readName(type: string, name: string): Named | { readonly reason: Error } {
  const colon = name.indexOf(':')
  const code = colon === -1 ? name : name.slice(0, colon)
  const modifier = colon === -1 ? undefined : name.slice(colon + 1)
  if (UNSUPPORTED.has(code)) return { reason: notSupported(`${code} is not supported`) }
  const head = /^([^:.]+)(?::[A-Za-z]+)?\../.exec(name)?.[1]
  if (head !== undefined && searchParameter(type, head)?.type === 'reference') {
    return { reason: notSupported(`Chained search is not supported: ${name}`) }
  }
  const parameter = searchParameter(type, code)
  if (parameter === undefined) return { reason: badRequest(`Unknown search parameter: ${code}`) }
  if (modifier !== undefined) checkModifier(parameter, modifier)
  return { parameter, modifier }
}

function checkModifier(parameter: SearchParameter, modifier: string): void {
  const { supported, known } = MODIFIERS[parameter.type]
  const isOfId = parameter.code === '_id' && modifier !== 'not'
  const isContact = parameter.type !== 'token' || CONTACTS.has(parameter.code)
  if (supported.includes(modifier) && !isOfId && (modifier !== 'contains' || isContact)) return
  if (parameter.type === 'reference' && isResourceType(modifier)) return
  const id = parameter.url.slice(parameter.url.lastIndexOf('/') + 1)
  if (known.includes(modifier)) {
    throw notSupported(`Modifier :${modifier} is not supported for ${id}`)
  }
  throw badRequest(`Invalid modifier :${modifier} for ${id}`)
}

/** Undefined when nothing but commas is left. Errors: 400 for a value that is none of its type. */
function readCondition(
  type: string,
  { parameter, modifier }: Named,
  text: string,
  fhirUrl: string | undefined,
): Condition | undefined {
  const isOneValue = modifier === 'missing'
  const parts = (isOneValue ? [text] : splitValue(text, ',')).filter((part) => part !== '')
  if (parts.length > MAX_VALUES) {
    throw tooCostly(`${parameter.code} has ${parts.length} values; ${MAX_VALUES} are allowed`)
  }
  if (parts.length === 0) return undefined
  const values = parts.map((part) => relative(type, parameter, part, fhirUrl))
  for (const value of values) checkValue(parameter, modifier, value)
  return {
    code: parameter.code,
    type: parameter.type,
    modifier,
    values: [...new Set(values)],
  }
}

/** Our own absolute references become `Type/id`; so does `_id=Patient/1` of Patient become `1`. */
function relative(
  type: string,
  parameter: SearchParameter,
  value: string,
  fhirUrl: string | undefined,
): string {
  if (parameter.code === '_id' && value.startsWith(`${type}/`)) return value.slice(type.length + 1)
  if (parameter.type !== 'reference' || fhirUrl === undefined) return value
  return value.startsWith(fhirUrl) ? value.slice(fhirUrl.length) : value
}

function checkValue(parameter: SearchParameter, modifier: string | undefined, value: string): void {
  if (value.includes('\0')) throw badRequest(`Invalid value for ${parameter.code}`)
  if (modifier === 'missing') {
    if (value === 'true' || value === 'false') return
    throw badRequest(`${parameter.code}:missing must be true or false, not ${value}`)
  }
  if (parameter.type === 'date') parseDateValue(value)
  if (parameter.type === 'number') parseNumberValue(value)
  if (parameter.type === 'quantity') parseQuantityValue(value)
  if (parameter.type === 'composite') checkComposite(parameter, value)
  if (parameter.type === 'special') parseNearValue(value)
  if (modifier === 'of-type') parseOfTypeValue(value)
  else if (modifier === 'text' || modifier === 'contains') return
  else if (parameter.type === 'token' || modifier === 'identifier') parseTokenValue(value)
}

function checkComposite(parameter: SearchParameter, value: string): void {
  const parts = splitComposite(parameter, value)
  parameter.components?.forEach(({ type }, i) => {
    const part = parts[i] ?? ''
    checkValue({ ...parameter, type }, undefined, part)
    if (type !== 'token' || parseTokenValue(part).code !== undefined) return
    throw badRequest(`${parameter.code} needs a code in ${value}`)
  })
}
