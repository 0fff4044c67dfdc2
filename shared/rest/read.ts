/** Reads and histories. https://hl7.org/fhir/R4/http.html#read, #history */

import { SUBSCRIPTION } from '../access/subscription.ts'
import { badRequest, notFound, notSupported } from '../core/errors.ts'
import { singleValue } from '../core/query.ts'
import { historyEntry, type Link } from '../fhir/bundle.ts'
import { type DateRange, parseDate } from '../fhir/values.ts'
import { parseView, requireElements, type View } from '../fhir/view.ts'
import { withData } from '../request/binary/read.ts'
import { wantsStrict } from '../request/negotiate.ts'
import {
  absoluteUrl,
  emptyReply,
  formatEtag,
  isUnmodified,
  textReply,
  versionHeaders,
  versionText,
} from '../request/reply.ts'
import type { FhirContext, FhirReply } from '../request/request.ts'
import { MAX_OFFSET } from '../search/language/search.ts'
import type { HistoryPage, HistoryRequest, Version } from '../store/rows/version.ts'
import { readSocketSubscription, storedOrHeld } from '../subscriptions/socket-subscriptions.ts'
import { type PageEntry, pageReply } from './interaction.ts'

const DEFAULT_COUNT = 100
const MAX_COUNT = 1000

/** Parameters of any interaction; `_` makes an address unique, and has no other effect. */
const GENERAL = ['_elements', '_fields', '_summary', '_format', '_pretty', '_']
const OF_READS = new Set([...GENERAL, '_data', '_raw'])
const OF_HISTORIES = new Set([
  ...GENERAL,
  '_count',
  '_offset',
  '_cursor',
  '_since',
  '_at',
  '_sort',
  '_total',
])

export async function history(context: FhirContext, type: string, id: string): Promise<FhirReply> {
  const { services, principal } = context
  const page = readPage(context, [type])
  const found = await services.repository.history(principal, type, id, page)
  return historyReply(context, `${type}/${id}/_history`, page, found)
}

export async function readHistory(
  context: FhirContext,
  type: string | undefined,
): Promise<FhirReply> {
  const { services, principal } = context
  const page = readPage(context, type === undefined ? [] : [type])
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
  const views = new Map<string, View | undefined>()
  const entries = found.versions.map((version) => {
    const { type } = version
    if (!views.has(type)) views.set(type, readView(context, type))
    return toHistoryEntry(context, version, views.get(type))
  })
  const links = historyLinks(context, path, page, found)
  return pageReply(context, { type: 'history', total: found.total, links }, entries)
}

/** Rejects unknown parameters as searches do. `types`: of the resources, if known. */
function readPage({ request, preferences }: FhirContext, types: readonly string[]): HistoryRequest {
  const { query, headers } = request
  if (preferences.handling !== 'lenient') requireKnown(query, OF_HISTORIES)
  if (types.length > 0 && wantsStrict(headers.prefer)) requireElements(types, query)
  const isCount = singleValue(query, '_summary') === 'count'
  const count = isCount ? 0 : Math.min(readWhole(query, '_count', DEFAULT_COUNT), MAX_COUNT)
  const offset = readWhole(query, '_offset', 0)
  if (offset > MAX_OFFSET) {
    const reason = `Search offset exceeds maximum (got ${offset}, max ${MAX_OFFSET})`
    throw badRequest(reason, '_offset')
  }
  const cursor = singleValue(query, '_cursor')
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
    total: isCount || isCounted(query),
  }
}

function requireKnown(query: URLSearchParams, known: ReadonlySet<string>): void {
  for (const name of query.keys()) {
    if (known.has(name)) continue
    if (name === '_list') throw notSupported('_list is not supported', name)
    throw badRequest(`Unknown parameter: ${name.slice(0, 64)}`, name.slice(0, 64))
  }
}

function readWhole(query: URLSearchParams, name: string, otherwise: number): number {
  const text = singleValue(query, name)
  if (text === undefined) return otherwise
  if (!/^\d{1,9}$/.test(text)) {
    throw badRequest(`${name} must be a whole number of at least 0`, name)
  }
  return Number(text)
}

function readTime(query: URLSearchParams, name: string): DateRange | undefined {
  const text = singleValue(query, name)
  if (text === undefined) return undefined
  // An unencoded plus sign arrives as a space.
  const range = parseDate(text.replace(' ', '+'))
  if (range === undefined) throw badRequest(`${name} must be an instant or a date`, name)
  return range
}

function isAscending(query: URLSearchParams): boolean {
  const sort = singleValue(query, '_sort') ?? '-_lastUpdated'
  if (sort === '_lastUpdated') return true
  if (sort === '-_lastUpdated') return false
  throw notSupported('A history is sorted by _lastUpdated or -_lastUpdated', '_sort')
}

function isCounted(query: URLSearchParams): boolean {
  const total = singleValue(query, '_total') ?? 'none'
  if (total === 'none' || total === 'accurate') return total === 'accurate'
  throw notSupported('_total of a history is none or accurate', '_total')
}

function toHistoryEntry(context: FhirContext, version: Version, view: View | undefined): PageEntry {
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
      resource: isDeletion ? undefined : viewed(versionText(context, version), view),
    })
  return { content: content ?? '', write }
}

function historyLinks(
  context: FhirContext,
  path: string,
  { count, offset, cursor }: HistoryRequest,
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
  // A cursor leads on from another cursor, and beyond the largest offset.
  const isByOffset = isOffset && cursor === undefined && end <= MAX_OFFSET
  if (next !== undefined) links.push(link('next', isByOffset ? at(end) : { _cursor: next }))
  if (offset > 0) links.push(link('previous', at(offset - count)))
  if (previous !== undefined) links.push(link('previous', { _cursor: previous }))
  return links
}

export async function read(context: FhirContext, type: string, id: string): Promise<FhirReply> {
  const { services, principal } = context
  const stored = () => services.repository.read(principal, type, id)
  const held = () => readSocketSubscription(services, principal, id)
  return replyWith(context, await (type === SUBSCRIPTION ? storedOrHeld(stored, held) : stored()))
}

export async function vread(
  context: FhirContext,
  type: string,
  id: string,
  vid: string,
): Promise<FhirReply> {
  if (!/^[1-9]\d{0,8}$/.test(vid)) throw notFound()
  const { services, principal } = context
  return replyWith(context, await services.repository.readVersion(principal, type, id, vid))
}

/** A Binary as JSON includes its content if it was created so or with `_data=true`. */
export async function replyWith(context: FhirContext, version: Version): Promise<FhirReply> {
  const { services, request } = context
  const reply = versionReply(context, version)
  const { body } = reply
  if (version.type !== 'Binary' || typeof body !== 'string') return reply
  const isAsked = request.query.get('_data') === 'true'
  if (!isAsked && parseView(version.type, request.query) !== undefined) return reply
  return { ...reply, body: await withData(services, version, body, isAsked) }
}

function versionReply(context: FhirContext, version: Version): FhirReply {
  const { request } = context
  const { lastUpdated } = version
  const headers = versionHeaders(version)
  if (isUnmodified(request, version)) return { ...emptyReply(304, headers), lastUpdated }
  if (wantsStrict(request.headers.prefer)) {
    requireKnown(request.query, OF_READS)
    requireElements([version.type], request.query)
  }
  if (singleValue(request.query, '_summary') === 'count') {
    throw badRequest('_summary=count is for searches and histories', '_summary')
  }
  const text = viewed(versionText(context, version), readView(context, version.type))
  return { ...textReply(200, text, headers), lastUpdated }
}

function readView({ request }: FhirContext, type: string): View | undefined {
  return request.query.size === 0 ? undefined : parseView(type, request.query)
}

function viewed(text: string, view: View | undefined): string {
  return view === undefined ? text : view(text)
}
