/** Shortcuts for the service's own searches. */

import type { Principal } from '../access/principal.ts'
import { system, unlinked } from '../access/project-context.ts'
import type { Resource } from '../fhir/resource.ts'
import type {
  Condition,
  Criterion,
  SearchRequest,
  SortRule,
} from '../search/language/search-request.ts'
import { escapeValue } from '../search/language/values.ts'
import type { Repository } from './repository.ts'
import { isLegalId } from './rows/context.ts'
import { parseVersion } from './rows/rows.ts'
import type { Version } from './rows/version.ts'

interface Lookup {
  readonly conditions: readonly Condition[]
  readonly count: number
  readonly sort?: readonly SortRule[] | undefined
}

/** Returns a resource of the registry, read by the service or by `reader`; undefined if there is none. One statement. */
export async function readRegistry(
  repository: Repository,
  type: string,
  id: string,
  reader = system,
): Promise<Resource | undefined> {
  if (!isLegalId(id)) return undefined
  const [found] = await repository.readMany(reader, [{ type, id }])
  return found?.content === undefined ? undefined : parseVersion(found)
}

/** The condition that a parameter has one of these values, without modifier. */
export function equals(
  code: string,
  type: 'token' | 'reference' | 'uri',
  ...values: readonly string[]
): Condition {
  return { code, type, modifier: undefined, values }
}

/** The condition that a string parameter has exactly this value. */
export function exactly(code: string, value: string): Condition {
  return { code, type: 'string', modifier: 'exact', values: [escapeValue(value)] }
}

/** Returns at most `count` live resources that meet all conditions. One statement. */
export async function find(
  repository: Repository,
  principal: Principal,
  type: string,
  { conditions, count, sort = [] }: Lookup,
): Promise<Resource[]> {
  const versions = await findVersions(repository, principal, type, { conditions, count, sort })
  return versions.map(parseVersion)
}

export async function findVersions(
  repository: Repository,
  principal: Principal,
  type: string,
  { conditions, count, sort = [] }: Lookup,
): Promise<readonly Version[]> {
  const request = searchFor(type, conditions, count, sort)
  const page = await repository.search(unlinked(principal), request)
  return page.versions
}

/** One statement per `PAGE`; ordered by id. */
export async function findAll(
  repository: Repository,
  principal: Principal,
  type: string,
  conditions: readonly Criterion[],
): Promise<readonly Resource[]> {
  const all: Version[] = []
  let cursor: string | undefined
  do {
    const request = searchFor(type, conditions, PAGE, [{ code: '_id', descending: false }])
    const page = await repository.search(unlinked(principal), { ...request, cursor })
    all.push(...page.versions)
    cursor = page.next
  } while (cursor !== undefined)
  return all.map(parseVersion)
}

const PAGE = 100

export function searchFor(
  type: string,
  conditions: readonly Criterion[],
  count: number,
  sort: readonly SortRule[],
): SearchRequest {
  return {
    type,
    conditions,
    includes: [],
    sort,
    count,
    offset: 0,
    cursor: undefined,
    total: 'none',
    summary: undefined,
    elements: undefined,
    ignored: [],
  }
}
