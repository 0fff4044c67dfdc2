import type { Principal } from '../../access/principal.ts'
import { notSupported } from '../../errors.ts'
import type { SearchRequest } from '../../fhir/search.ts'
import type { Store } from '../context.ts'
import type { SearchPage } from '../repository.ts'

export async function search(
  _store: Store,
  _principal: Principal,
  request: SearchRequest,
): Promise<SearchPage> {
  throw notSupported(`Search of ${request.type} is not supported`)
}
