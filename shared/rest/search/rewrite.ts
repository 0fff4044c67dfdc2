/** A parsed search → what the store can be asked. */
import type { SearchRequest } from '../../query/search-request.ts'
import type { Asking } from '../../request/request.ts'
import { withCodes } from './codes.ts'
import { withRegistry } from './registry.ts'

/** Its codes are listed, and its joins are those of one place. Errors: 400, 403. */
export async function resolved(asking: Asking, request: SearchRequest): Promise<SearchRequest> {
  return withRegistry(asking, await withCodes(asking, request))
}
