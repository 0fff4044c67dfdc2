/** The result parameters of a search: how many, in what order, which view of them. */
import { badRequest, notSupported } from '../errors.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { readyParameter } from './custom-parameters.ts'
import type { SearchRequest, SortRule } from './search-request.ts'

const DEFAULT_COUNT = 20
const MAX_COUNT = 1000
const MAX_OFFSET = 10_000
const SUMMARIES = ['true', 'text', 'data', 'count', 'false']

type Paging = Omit<SearchRequest, 'type' | 'conditions' | 'includes' | 'ignored'>

/** The last one of a repeated parameter counts; `_sort` and the element lists add up. */
export function readPaging(
  type: string,
  query: URLSearchParams,
  own: OwnParameters | undefined,
): Paging {
  const offset = readOffset(last(query, '_offset'))
  const cursor = last(query, '_cursor')
  if (cursor !== undefined && query.has('_offset')) {
    throw badRequest('Cannot use both offset and cursor', '_cursor')
  }
  const elements = [...lists(query, '_elements'), ...lists(query, '_fields')]
  return {
    sort: readSort(type, lists(query, '_sort'), own),
    count: readCount(last(query, '_count')),
    offset,
    cursor,
    total: readTotal(last(query, '_total')),
    summary: readSummary(last(query, '_summary')),
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

function last(query: URLSearchParams, name: string): string | undefined {
  return query.getAll(name).findLast((value) => value !== '')
}

function lists(query: URLSearchParams, name: string): string[] {
  const items = query.getAll(name).flatMap((value) => value.split(','))
  return items.map((item) => item.trim()).filter((item) => item !== '')
}
