/** A parsed search → what the store can be asked. */
import type { SearchRequest } from '../fhir/search.ts'
import type { Asking } from './criteria.ts'
import { withCodes } from './search-codes.ts'
import { withRegistry } from './search-registry.ts'

/** Its codes are listed, and its joins are those of one place. Errors: 400, 403. */
export async function resolved(asking: Asking, request: SearchRequest): Promise<SearchRequest> {
  return withRegistry(asking, await withCodes(asking, request))
}
