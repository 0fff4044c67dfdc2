/**
 * Definitions of the standard are not stored in any Project. Who looks for them by url, name, type, base
 * or code, as the SDK does, and has none of its own, is given them all the same.
 */
import type { SearchEntry } from '../fhir/bundle.ts'
import { publishedBy } from '../fhir/published.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  type SearchRequest,
} from '../query/search-request.ts'
import { unescapeValue } from '../query/values.ts'
import type { Asking } from '../request/request.ts'

/** The definitions that `StructureDefinition?url=…`, `SearchParameter?base=…` and the like find, on all pages. */
export function standardDefinitions(
  { services, principal }: Asking,
  request: SearchRequest,
): readonly SearchEntry[] {
  const { type, conditions } = request
  const asked = conditions.find((one): one is Condition => isNaming(type, one))
  if (asked === undefined) return []
  const named = asked.values.flatMap((value) => publishedBy(type, asked.code, unescapeValue(value)))
  const found = new Map(named.map((definition) => [String(definition.url), definition]))
  if (found.size === 0) return []
  const others = conditions.filter((criterion) => criterion !== asked)
  const isFound = services.repository.finder(principal, { ...request, conditions: others })
  return [...found]
    .filter(([, definition]) => isFound(definition))
    .map(([url, definition]) => ({
      fullUrl: url,
      resource: JSON.stringify(definition),
      mode: 'match',
    }))
}

/** The types whose definitions are found by more than their url. */
const NAMING: ReadonlyMap<string, readonly string[]> = new Map([
  ['SearchParameter', ['url', 'base', 'code']],
  ['StructureDefinition', ['url', 'name', 'type']],
])

function isNaming(type: string, criterion: Criterion): criterion is Condition {
  if (!isCondition(criterion)) return false
  const { code, modifier } = criterion
  if (!(NAMING.get(type) ?? ['url']).includes(code)) return false
  return modifier === undefined || modifier === 'exact'
}
