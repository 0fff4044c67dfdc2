/** Which UCUM units a project's data has, so that a quantity is found in whatever unit it is. */

import { UCUM } from '../../../fhir/ucum.ts'
import type { SearchRequest } from '../../../query/search-request.ts'
import type { Store } from '../../rows/context.ts'

/** One small statement, and only for what names a unit of UCUM somewhere. */
export async function unitsOf(
  { connection, keys }: Pick<Store, 'connection' | 'keys'>,
  project: number,
  requests: readonly Pick<SearchRequest, 'conditions'>[],
): Promise<readonly string[]> {
  const asked = JSON.stringify(requests.map(({ conditions }) => conditions))
  if (!asked.includes(`|${UCUM}|`)) return []
  const rows = await connection.query<{ code: string }>({
    name: 'search-units',
    text: 'select distinct code from code where project = $1 and p = $2 and system = $3',
    values: [project, keys.units(project), UCUM],
  })
  return rows.map(({ code }) => code)
}
