/** Search of one type. https://hl7.org/fhir/R4/http.html#search */
import { badRequest } from '../errors.ts'
import { type Link, type SearchEntry, searchBundle } from '../fhir/bundle.ts'
import { issue, outcome } from '../fhir/outcome.ts'
import { parseSearch, type SearchRequest } from '../fhir/search.ts'
import { viewOf } from '../fhir/view.ts'
import type { SearchPage } from '../store/repository.ts'
import type { FhirReply } from './handle.ts'
import { absoluteUrl, type Interaction, textOf } from './interaction.ts'
import { readForm } from './negotiate.ts'
import { textReply } from './reply.ts'

/** `GET Type?…`; a search result is never 404, only empty. */
export async function search(interaction: Interaction, type: string): Promise<FhirReply> {
  return searchWith(interaction, type, interaction.request.query)
}

/** `POST Type/_search`: the parameters of the form join those of the URL. */
export async function searchForm(interaction: Interaction, type: string): Promise<FhirReply> {
  const { request } = interaction
  const query = new URLSearchParams([...request.query, ...readForm(request)])
  return searchWith(interaction, type, query)
}

async function searchWith(
  interaction: Interaction,
  type: string,
  query: URLSearchParams,
): Promise<FhirReply> {
  if (type === 'Binary') throw badRequest('Cannot search on Binary resource type')
  const { services, principal, preferences } = interaction
  const wanted = parseSearch(type, query, {
    handling: preferences.handling,
    fhirUrl: absoluteUrl(services, ''),
  })
  const isCount = query.get('_summary') === 'count'
  const request: SearchRequest = isCount ? { ...wanted, count: 0, total: 'accurate' } : wanted
  const view = viewOf(type, query)
  const page = await services.repository.search(principal, request)
  const entries: SearchEntry[] = page.versions.map((version) => {
    const text = textOf(interaction, version)
    return {
      fullUrl: absoluteUrl(services, `${type}/${version.id}`),
      resource: view === undefined ? text : view(text),
      mode: 'match',
    }
  })
  if (request.ignored.length > 0) entries.push(ignoredEntry(request.ignored))
  const links = linksOf(interaction, request, query, page)
  return textReply(200, searchBundle({ type: 'searchset', total: page.total, links }, entries))
}

function ignoredEntry(names: readonly string[]): SearchEntry {
  const issues = names.map((name) =>
    issue('warning', 'not-supported', `Unknown search parameter: ${name}`),
  )
  return { fullUrl: '', resource: JSON.stringify(outcome(undefined, ...issues)), mode: 'outcome' }
}

/** Links carry the query as it was understood, its parameters in the order of their names. */
function linksOf(
  interaction: Interaction,
  request: SearchRequest,
  query: URLSearchParams,
  page: SearchPage,
): Link[] {
  const { type, count, offset, cursor, ignored } = request
  const understood = new URLSearchParams(query)
  for (const name of [...ignored, '_']) understood.delete(name)
  const link = (relation: Link['relation'], changes: Readonly<Record<string, string>> = {}) => {
    const changed = new URLSearchParams(understood)
    if (relation !== 'self') {
      changed.delete('_cursor')
      changed.delete('_offset')
    }
    for (const [name, value] of Object.entries(changes)) changed.set(name, value)
    changed.sort()
    const text = changed.toString()
    const path = text === '' ? type : `${type}?${text}`
    return { relation, url: absoluteUrl(interaction.services, path) }
  }
  const links: Link[] = [link('self')]
  if (count === 0 || page.versions.length === 0) return links
  const isOffset = query.has('_offset')
  links.push(link('first', isOffset ? { _offset: '0' } : {}))
  if (page.next !== undefined) {
    links.push(
      isOffset && cursor === undefined
        ? link('next', { _offset: String(offset + count) })
        : link('next', { _cursor: page.next }),
    )
  }
  if (offset > 0) links.push(link('previous', { _offset: String(Math.max(0, offset - count)) }))
  return links
}
