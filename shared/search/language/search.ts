/** Parses a query string to a SearchRequest. https://hl7.org/fhir/R4/search.html */
import { badRequest, notSupported, tooCostly, withExpression } from '../../core/errors.ts'
import { singleValue } from '../../core/query.ts'
import { isResourceType } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import { namedElements } from '../../fhir/view.ts'
import { readCriterion, readyParameter } from './criteria.ts'
import type {
  Criterion,
  Ignored,
  Include,
  Refusal,
  SearchRequest,
  SortRule,
} from './search-request.ts'

interface SearchOptions {
  /** `Prefer: handling=`; strict refuses unknown parameters. Absent: strict. */
  readonly handling?: 'strict' | 'lenient'
  /** Base of the server's absolute references, `https://host/fhir/R4/`. */
  readonly fhirUrls?: readonly string[]
  readonly own?: OwnParameters | undefined
  /** Rejects parameters without a value: a write whose condition lost a criterion would change other resources. */
  readonly isCondition?: boolean
}

const MAX_CONDITIONS = 200
const MAX_INCLUDES = 100

const CONTROL = new Set([
  '_count',
  '_offset',
  '_cursor',
  '_sort',
  '_total',
  '_summary',
  '_elements',
  '_explain',
  '_fields',
  '_format',
  '_pretty',
  '_',
])

/** Errors: 400 for an invalid search; 400 not-supported for unsupported features. */
export function parseSearch(
  type: string,
  query: URLSearchParams | string,
  options: SearchOptions = {},
): SearchRequest {
  if (!isResourceType(type)) throw badRequest(`Unknown resource type: ${type}`)
  const pairs = typeof query === 'string' ? new URLSearchParams(query) : query
  const isLenient = options.handling === 'lenient'
  const conditions = new Map<string, Criterion>()
  const includes = new Map<string, Include>()
  const ignored: Ignored[] = []
  const { own, isCondition = false } = options
  const scope = { fhirUrls: options.fhirUrls ?? [], own, joins: 0, tried: 0 }
  const refuse = ({ reason }: Refusal, name: string, value: string) => {
    if (!isLenient) throw reason
    ignored.push({ name, value, text: reason.message })
  }
  const skip = (name: string) => {
    if (isCondition) throw badRequest(`Search parameter ${name} needs a value`)
  }
  const read = (name: string, value: string) => {
    if (value === '') return skip(name)
    if (/^_(rev)?include(:|$)/.test(name)) {
      const include = readInclude(name, value, own)
      if ('reason' in include) return refuse(include, name, value)
      includes.set(JSON.stringify(include), include)
      return
    }
    const criterion = readCriterion(type, name, value, { scope })
    if (criterion === undefined) return skip(name)
    if ('reason' in criterion) return refuse(criterion, name, value)
    // Duplicates count once; a parameter given once needs no comparison.
    const isAlone = pairs.getAll(name).length === 1
    conditions.set(isAlone ? name : JSON.stringify([name, criterion]), criterion)
    if (conditions.size > MAX_CONDITIONS) {
      throw tooCostly(`A search may have ${MAX_CONDITIONS} conditions`)
    }
  }
  for (const [name, value] of pairs) {
    if (CONTROL.has(name) || (name === '_contained' && value === 'false')) continue
    try {
      read(name, value)
    } catch (error) {
      throw withExpression(error, name)
    }
  }
  if (includes.size > MAX_INCLUDES) throw tooCostly(`A search may have ${MAX_INCLUDES} includes`)
  return {
    type,
    conditions: [...conditions.values()],
    includes: [...includes.values()],
    ...readPaging(type, pairs, own),
    ignored,
  }
}

/** Errors: 400 for an impossible modifier. Returns a refusal when no reference is named. */
function readInclude(
  name: string,
  value: string,
  own: OwnParameters | undefined,
): Include | Refusal {
  const [kind = '', modifier, ...others] = name.slice(1).split(':')
  if (others.length > 0 || ![undefined, 'iterate', 'recurse'].includes(modifier)) {
    throw badRequest(`Invalid modifier :${name.slice(kind.length + 2)} for _${kind}`, name)
  }
  const found = {
    kind: kind === 'include' ? 'include' : 'revinclude',
    iterate: modifier !== undefined,
  } as const
  if (value === '*') return { ...found, type: undefined, code: undefined, target: undefined }
  const [type = '', code = '', target, ...more] = value.split(':')
  const isKnown =
    more.length === 0 &&
    isResourceType(type) &&
    (target === undefined || isResourceType(target)) &&
    (code === '*' || readyParameter(type, code, own)?.type === 'reference')
  if (!isKnown) return { reason: badRequest(`Invalid include parameter: ${value}`, name) }
  return { ...found, type, code: code === '*' ? undefined : code, target }
}

const DEFAULT_COUNT = 20
const MAX_COUNT = 1000
export const MAX_OFFSET = 10_000
const SUMMARIES = ['true', 'text', 'data', 'count', 'false']

type Paging = Omit<SearchRequest, 'type' | 'conditions' | 'includes' | 'ignored'>

/** `_sort` and element lists accumulate; the other parameters may be given once. */
function readPaging(type: string, query: URLSearchParams, own: OwnParameters | undefined): Paging {
  const offset = readOffset(singleValue(query, '_offset'))
  const cursor = singleValue(query, '_cursor')
  if (cursor !== undefined && query.has('_offset')) {
    throw badRequest('Cannot use both offset and cursor', '_cursor')
  }
  const elements = namedElements(query)
  return {
    sort: readSort(type, lists(query, '_sort'), own),
    count: readCount(singleValue(query, '_count')),
    offset,
    cursor,
    total: readTotal(singleValue(query, '_total')),
    summary: readSummary(singleValue(query, '_summary')),
    elements: elements.length === 0 ? undefined : elements,
  }
}

function readCount(text: string | undefined): number {
  if (text === undefined) return DEFAULT_COUNT
  if (!/^\d+$/.test(text)) throw badRequest(`Invalid _count: ${text}`, '_count')
  return Math.min(Number(text), MAX_COUNT)
}

function readOffset(text: string | undefined): number {
  if (text === undefined) return 0
  if (!/^\d+$/.test(text)) throw badRequest(`Invalid _offset: ${text}`, '_offset')
  const offset = Number(text)
  if (offset > MAX_OFFSET) {
    const reason = `Search offset exceeds maximum (got ${text}, max ${MAX_OFFSET})`
    throw badRequest(reason, '_offset')
  }
  return offset
}

function readTotal(text: string | undefined): SearchRequest['total'] {
  if (text === undefined) return 'none'
  if (text === 'none' || text === 'estimate' || text === 'accurate') return text
  throw badRequest(`Invalid _total: ${text}; use none, estimate or accurate`, '_total')
}

function readSummary(text: string | undefined): string | undefined {
  if (text === undefined || SUMMARIES.includes(text)) return text
  throw badRequest(`Invalid _summary: ${text}; use ${SUMMARIES.join(', ')}`, '_summary')
}

function readSort(
  type: string,
  names: readonly string[],
  own: OwnParameters | undefined,
): SortRule[] {
  const rules = new Map<string, SortRule>()
  for (const name of names) {
    const descending = name.startsWith('-')
    const code = descending ? name.slice(1) : name
    if (code === '') throw badRequest('A sort rule needs a search parameter', '_sort')
    const parameter = readyParameter(type, code, own, '_sort')
    if (parameter?.expression === undefined && code !== '_score') {
      throw badRequest(`Unknown search parameter: ${code}`, '_sort')
    }
    if (parameter?.type === 'composite') {
      throw notSupported(`Sorting by ${code} is not supported`, '_sort')
    }
    if (!rules.has(code)) rules.set(code, { code, descending })
  }
  return [...rules.values()]
}

function lists(query: URLSearchParams, name: string): string[] {
  const items = query.getAll(name).flatMap((value) => value.split(','))
  return items.map((item) => item.trim()).filter((item) => item !== '')
}
