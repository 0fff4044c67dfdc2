/**
 * Definitions of the standard are not stored in any Project. Who looks for one by its url, as the SDK
 * does, and has none of its own, is given it all the same.
 */
import type { SearchEntry } from '../fhir/bundle.ts'
import { publishedDefinition } from '../fhir/published.ts'
import { isCondition, type SearchRequest } from '../fhir/search.ts'
import { unescapeValue } from '../fhir/search-values.ts'

/** What `StructureDefinition?url=…`, `ValueSet?url=…` and the like find of them. */
export function standardDefinitions({ type, conditions, count }: SearchRequest): SearchEntry[] {
  const [asked, ...others] = conditions
  if (count === 0 || others.length > 0) return []
  if (asked === undefined || !isCondition(asked)) return []
  if (asked.code !== 'url' || asked.modifier !== undefined) return []
  const found = asked.values.flatMap(
    (value) => publishedDefinition(type, unescapeValue(value)) ?? [],
  )
  return found.map((definition) => ({
    fullUrl: String(definition.url),
    resource: JSON.stringify(definition),
    mode: 'match',
  }))
}
