/** Evaluates a search on resources that are not stored. */
import { plainGrant } from '../access/compile.ts'
import { compileGrant, createTypeScope } from '../access/decisions/grant-predicates.ts'
import { toIndexedRow } from '../access/decisions/match-row.ts'
import type { Principal } from '../access/principal.ts'
import type { Resource } from '../fhir/resource.ts'
import type { StoreContext } from '../store/rows/context.ts'
import { indexRows } from '../store/rows/index-rows.ts'
import type { SearchRequest } from './language/search-request.ts'

/** True when the search would match the resource; false for conditions that need PostgreSQL. */
export function finder(
  store: StoreContext,
  principal: Principal,
  { type, conditions }: SearchRequest,
): (resource: Resource) => boolean {
  if (conditions.length === 0) return () => true
  const place = createTypeScope(store.keys, principal, type, principal.project.number)
  const grant = { ...plainGrant(type, ['search'], 'search'), criteria: conditions }
  const { matches } = compileGrant(place, grant)
  if (matches === undefined) return () => false
  return (resource) => {
    const rows = indexRows(store, place.project, resource, { parameters: place.own })
    const rowId = store.keys.rowId(type, resource.id ?? '')
    return matches(toIndexedRow(rowId, rows))
  }
}
