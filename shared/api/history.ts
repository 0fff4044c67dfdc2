/** History of one resource. https://hl7.org/fhir/R4/http.html#history */
import { badRequest, notSupported } from '../errors.ts'
import { type HistoryEntry, historyBundle, type Link } from '../fhir/bundle.ts'
import type { HistoryPage, Version } from '../store/repository.ts'
import type { FhirReply } from './handle.ts'
import { absoluteUrl, type Interaction, textOf } from './interaction.ts'
import { etagOf } from './preconditions.ts'
import { textReply } from './reply.ts'

const DEFAULT_COUNT = 100
const MAX_COUNT = 1000
const MAX_OFFSET = 10_000

export async function history(
  interaction: Interaction,
  type: string,
  id: string,
): Promise<FhirReply> {
  const { services, principal, request } = interaction
  const page = readPage(request.query)
  const found = await services.repository.history(principal, type, id, page)
  const entries = found.versions.map((version) => historyEntry(interaction, version))
  const links = linksOf(interaction, `${type}/${id}/_history`, page, found)
  return textReply(200, historyBundle({ type: 'history', total: found.total, links }, entries))
}

interface Page {
  readonly count: number
  readonly offset: number
  readonly since: Date | undefined
}

function readPage(query: URLSearchParams): Page {
  for (const name of ['_at', '_cursor']) {
    if (query.has(name)) throw notSupported(`${name} is not supported in a history`)
  }
  if ((query.get('_sort') ?? '-_lastUpdated') !== '-_lastUpdated') {
    throw notSupported('A history is sorted by -_lastUpdated')
  }
  const count = Math.min(readWhole(query, '_count', DEFAULT_COUNT), MAX_COUNT)
  const offset = readWhole(query, '_offset', 0)
  if (offset > MAX_OFFSET) {
    throw badRequest(`Search offset exceeds maximum (got ${offset}, max ${MAX_OFFSET})`)
  }
  return { count, offset, since: readSince(query.get('_since')) }
}

function readWhole(query: URLSearchParams, name: string, otherwise: number): number {
  const text = query.get(name)
  if (text === null || text === '') return otherwise
  if (!/^\d{1,9}$/.test(text)) throw badRequest(`${name} must be a whole number of at least 0`)
  return Number(text)
}

function readSince(text: string | null): Date | undefined {
  if (text === null || text === '') return undefined
  // A plus sign that was not percent-encoded arrives as a space.
  const since = new Date(text.replace(' ', '+'))
  if (!/^\d{4}(-\d\d){0,2}/.test(text) || Number.isNaN(since.getTime())) {
    throw badRequest('_since must be an instant or a date')
  }
  return since
}

function historyEntry(interaction: Interaction, version: Version): HistoryEntry {
  const { type, id, ver, content } = version
  const isDeletion = content === undefined
  const method = isDeletion ? 'DELETE' : ver === 1 ? 'POST' : 'PUT'
  return {
    fullUrl: absoluteUrl(interaction.services, `${type}/${id}`),
    method,
    url: method === 'POST' ? type : `${type}/${id}`,
    location: `${type}/${id}/_history/${ver}`,
    etag: etagOf(version),
    lastModified: version.lastUpdated.toISOString(),
    resource: isDeletion ? undefined : textOf(interaction, version),
  }
}

function linksOf(interaction: Interaction, path: string, page: Page, found: HistoryPage): Link[] {
  const { services, request } = interaction
  const link = (relation: Link['relation'], offset: number | undefined): Link => {
    const query = new URLSearchParams(request.query)
    if (offset !== undefined) query.set('_offset', String(offset))
    query.sort()
    const text = query.toString()
    return { relation, url: absoluteUrl(services, text === '' ? path : `${path}?${text}`) }
  }
  const links = [link('self', undefined)]
  if (page.count === 0) return links
  links.push(link('first', 0))
  const end = page.offset + page.count
  if (end < found.total && end <= MAX_OFFSET) links.push(link('next', end))
  if (page.offset > 0) links.push(link('previous', Math.max(0, page.offset - page.count)))
  return links
}
