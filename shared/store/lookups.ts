/** Short forms of the searches that the service does for itself. */
import type { Principal } from '../access/principal.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Condition, SearchRequest } from '../fhir/search.ts'
import type { Repository, Version } from './repository.ts'
import { parseVersion } from './rows.ts'

/** Live resources of a type that meet all conditions; at most `count`. One statement. */
export async function find(
  repository: Repository,
  principal: Principal,
  type: string,
  conditions: readonly Condition[],
  count: number,
): Promise<Resource[]> {
  return (await findVersions(repository, principal, type, conditions, count)).map(parseVersion)
}

/** The same, as they are stored. */
export async function findVersions(
  repository: Repository,
  principal: Principal,
  type: string,
  conditions: readonly Condition[],
  count: number,
): Promise<readonly Version[]> {
  const page = await repository.search(principal, searchFor(type, conditions, count))
  return page.versions
}

function searchFor(type: string, conditions: readonly Condition[], count: number): SearchRequest {
  return {
    type,
    conditions,
    includes: [],
    sort: [],
    count,
    offset: 0,
    cursor: undefined,
    total: 'none',
    summary: undefined,
    elements: undefined,
    ignored: [],
  }
}
