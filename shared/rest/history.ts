/** History of a resource, a type and a Project. https://hl7.org/fhir/R4/http.html#history */

import { badRequest, notSupported } from '../core/errors.ts'
import { historyEntry, type Link } from '../fhir/bundle.ts'
import { type DateRange, parseDate } from '../fhir/values.ts'
import { versionText } from '../request/binary/attachments.ts'
import { absoluteUrl, formatEtag } from '../request/reply.ts'
import type { FhirContext, FhirReply } from '../request/request.ts'
import type { HistoryPage, HistoryRequest, Version } from '../store/rows/version.ts'
import { type PageEntry, pageReply } from './interaction.ts'

const DEFAULT_COUNT = 100
const MAX_COUNT = 1000
const MAX_OFFSET = 10_000

export async function history(context: FhirContext, type: string, id: string): Promise<FhirReply> {
  const { services, principal, request } = context
  const page = readPage(request.query)
  const found = await services.repository.history(principal, type, id, page)
  return historyReply(context, `${type}/${id}/_history`, page, found)
}

export async function readHistory(
  context: FhirContext,
  type: string | undefined,
): Promise<FhirReply> {
  const { services, principal, request } = context
  const page = readPage(request.query)
  const found = await services.repository.historyOf(principal, type, page)
  const path = type === undefined ? '_history' : `${type}/_history`
  return historyReply(context, path, page, found)
}

function historyReply(
  context: FhirContext,
  path: string,
  page: HistoryRequest,
  found: HistoryPage,
): Promise<FhirReply> {
  const entries = found.versions.map((version) => toHistoryEntry(context, version))
  const links = historyLinks(context, path, page, found)
  return pageReply(context, { type: 'history', total: found.total, links }, entries)
}

function readPage(query: URLSearchParams): HistoryRequest {
  const count = Math.min(readWhole(query, '_count', DEFAULT_COUNT), MAX_COUNT)
  const offset = readWhole(query, '_offset', 0)
  if (offset > MAX_OFFSET) {
    const reason = `Search offset exceeds maximum (got ${offset}, max ${MAX_OFFSET})`
    throw badRequest(reason, '_offset')
  }
  const cursor = query.get('_cursor') || undefined
  if (cursor !== undefined && offset > 0) {
    throw badRequest('Cannot use both offset and cursor', '_cursor')
  }
  const since = readTime(query, '_since')
  const at = readTime(query, '_at')
  return {
    count,
    offset,
    since: since && new Date(since.low),
    at: at && { start: new Date(at.low), end: new Date(at.high) },
    ascending: isAscending(query),
    cursor,
    total: isCounted(query),
  }
}

function readWhole(query: URLSearchParams, name: string, otherwise: number): number {
  const text = query.get(name)
  if (text === null || text === '') return otherwise
  if (!/^\d{1,9}$/.test(text)) {
    throw badRequest(`${name} must be a whole number of at least 0`, name)
  }
  return Number(text)
}

function readTime(query: URLSearchParams, name: string): DateRange | undefined {
  const text = query.get(name)
  if (text === null || text === '') return undefined
  // An unencoded plus sign arrives as a space.
  const range = parseDate(text.replace(' ', '+'))
  if (range === undefined) throw badRequest(`${name} must be an instant or a date`, name)
  return range
}

function isAscending(query: URLSearchParams): boolean {
  const sort = query.get('_sort') || '-_lastUpdated'
  if (sort === '_lastUpdated') return true
  if (sort === '-_lastUpdated') return false
  throw notSupported('A history is sorted by _lastUpdated or -_lastUpdated', '_sort')
}

function isCounted(query: URLSearchParams): boolean {
  const total = query.get('_total') || 'none'
  if (total === 'none' || total === 'accurate') return total === 'accurate'
  throw notSupported('_total of a history is none or accurate', '_total')
}

function toHistoryEntry(context: FhirContext, version: Version): PageEntry {
  const { type, id, ver, content } = version
  const isDeletion = content === undefined
  const method = isDeletion ? 'DELETE' : ver === 1 ? 'POST' : 'PUT'
  const write = () =>
    historyEntry({
      fullUrl: absoluteUrl(context.services, `${type}/${id}`),
      method,
      url: method === 'POST' ? type : `${type}/${id}`,
      location: `${type}/${id}/_history/${ver}`,
      etag: formatEtag(version),
      lastModified: version.lastUpdated.toISOString(),
      resource: isDeletion ? undefined : versionText(context, version),
    })
  return { content: content ?? '', write }
}

function historyLinks(
  context: FhirContext,
  path: string,
  { count, offset }: HistoryRequest,
  { next, previous }: HistoryPage,
): Link[] {
  const { services, request } = context
  const link = (
    relation: Link['relation'],
    changes: Readonly<Record<string, string>> | undefined,
  ): Link => {
    const query = new URLSearchParams(request.query)
    if (changes !== undefined) for (const name of ['_offset', '_cursor']) query.delete(name)
    for (const [name, value] of Object.entries(changes ?? {})) query.set(name, value)
    query.sort()
    const text = query.toString()
    return { relation, url: absoluteUrl(services, text === '' ? path : `${path}?${text}`) }
  }
  const isOffset = request.query.has('_offset')
  const at = (start: number) => ({ _offset: String(Math.max(0, start)) })
  const links = [link('self', undefined)]
  if (count === 0) return links
  links.push(link('first', isOffset ? at(0) : {}))
  const end = offset + count
  if (next !== undefined && (!isOffset || end <= MAX_OFFSET)) {
    links.push(link('next', isOffset ? at(end) : { _cursor: next }))
  }
  if (offset > 0) links.push(link('previous', at(offset - count)))
  if (previous !== undefined) links.push(link('previous', { _cursor: previous }))
  return links
}
