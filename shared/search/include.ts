/** `_include` and `_revinclude`: one statement per step. https://hl7.org/fhir/R4/search.html#revinclude */

import { isHidden, visibleRows } from '../access/decisions/grant-predicates.ts'
import { grantsFor } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { isShared } from '../access/project-context.ts'
import { getOrInsert } from '../core/cache.ts'
import { ignoreClientError } from '../core/errors.ts'
import { isResourceType, resourceTypes, searchParameter, typeNumber } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { parseReference, type Resource, referenceTo } from '../fhir/resource.ts'
import { arrayLiteral, type Bind } from '../postgres/statement.ts'
import { CANONICAL_KEY } from '../store/index/derivation.ts'
import { isCanonicalParameter } from '../store/index/index-plan.ts'
import { readVersion, redactRows } from '../store/read/read.ts'
import { normalId, type StoreContext } from '../store/rows/context.ts'
import { withContents } from '../store/rows/recent-versions.ts'
import { extendedText } from '../store/rows/rows.ts'
import type { Version } from '../store/rows/version.ts'
import { referenceLiterals, referenceParameters } from './language/parameter-paths.ts'
import type { Include } from './language/search-request.ts'
import { pageStatement } from './planner/page-statement.ts'
import { planQuery } from './planner/prepare.ts'
import { CHUNK, holdsSql, type Predicate, type SearchScope } from './predicates/predicate.ts'
import type { Query, SortedRow } from './predicates/query.ts'

interface IncludeResult {
  /** Each once, and none of the matches. */
  readonly included: readonly Version[]
  readonly isTruncated: boolean
}

const MAX_STEPS = 5
const MAX_INCLUDED = 1000
/** Limit of one step: `_revinclude=*` covers every reference parameter of every type. */
const MAX_KEYS = 10_000

interface Includes {
  readonly projects: readonly number[]
  readonly includes: readonly Include[]
  readonly matches: readonly Version[]
}

export async function followIncludes(
  store: StoreContext,
  principal: Principal,
  { projects, includes, matches }: Includes,
): Promise<IncludeResult> {
  const own = principal.project.parameters
  const seen = new Set(matches.map(resourceKey))
  const included: Version[] = []
  let newest = matches
  let wanted = includes
  for (let step = 1; newest.length > 0 && wanted.length > 0; step++) {
    // Only links are read, so numbers may lose digits.
    const resources = newest.map((version) => JSON.parse(extendedText(version)) as Resource)
    const sought = seekIncludes(wanted, resources, MAX_KEYS, own)
    const limit = MAX_INCLUDED + seen.size + 1
    const queries = projects.flatMap((project) =>
      buildIncludeQueries(store, principal, project, { codes: sought, seen, limit }),
    )
    if (queries.length === 0) break
    if (step > MAX_STEPS) return { included, isTruncated: true }
    const plans = queries.map((query) => planQuery(store, query))
    const rows = await withContents(store, queries, (isBare) =>
      store.connection.query<SortedRow>(pageStatement(plans, isBare)),
    )
    // A resource reached both ways is shown as `read` allows.
    const requiredInteraction = (type: string) => (sought.targets.has(type) ? 'read' : 'search')
    const shown = await redactRows(store, principal, requiredInteraction, rows)
    const current = new Map(shown.map((version) => [resourceKey(version), version]))
    const named = await inVersions(store, principal, sought, current)
    const found = [...named].filter(([name]) => !seen.has(name)).map(([, version]) => version)
    for (const name of named.keys()) seen.add(name)
    const room = MAX_INCLUDED - included.length
    included.push(...found.slice(0, room))
    if (found.length > room || sought.isTruncated) return { included, isTruncated: true }
    newest = found
    wanted = includes.filter(({ iterate }) => iterate)
  }
  return { included, isTruncated: false }
}

/** Versions are read one by one; above this limit the current version is shown. */
const MAX_VERSIONS = 50

/** Shows versioned references in that version, if readable. https://hl7.org/fhir/R4/search.html#include */
async function inVersions(
  store: StoreContext,
  principal: Principal,
  { targets }: IncludeTargets,
  current: ReadonlyMap<string, Version>,
): Promise<ReadonlyMap<string, Version>> {
  const asked = [...current].flatMap(([name, { type, id, ver }]) => {
    const wanted = targets.get(type)?.versions.get(id)
    return wanted === undefined || wanted === String(ver) ? [] : [{ name, type, id, ver: wanted }]
  })
  if (asked.length === 0 || asked.length > MAX_VERSIONS) return current
  const read = await Promise.all(
    asked.map(async (version) => {
      const found = await readVersion(store, principal, version).catch(ignoreClientError)
      return found === undefined ? [] : [[version.name, found] as const]
    }),
  )
  return new Map([...current, ...read.flat()])
}

function resourceKey({ type, id }: { readonly type: string; readonly id: string }): string {
  return `${type}/${normalId(id)}`
}

interface IncludeStep {
  readonly codes: IncludeTargets
  readonly seen: ReadonlySet<string>
  readonly limit: number
}

/** Builds one query per type: referring resources need `search`, targets need `read`. */
function buildIncludeQueries(
  store: StoreContext,
  principal: Principal,
  project: number,
  { codes: { targets, holders }, seen, limit }: IncludeStep,
): Query[] {
  const queries: Query[] = []
  const add = (scope: SearchScope, predicate: Predicate) => {
    const order = { column: 'lu', descending: true, byType: true, terms: [] } as const
    queries.push({
      project: scope.project,
      typeNumbers: [typeNumber(scope.type)],
      predicates: [...scope.visible, predicate],
      order,
      after: undefined,
      limit,
      offset: 0,
    })
  }
  for (const [type, { ids, urls }] of targets) {
    const unseen = [...ids].map(normalId).filter((id) => !seen.has(`${type}/${id}`))
    if (!isShared(principal, project, type)) continue
    if (unseen.length > 0) {
      const scope = visibleRows(store, principal, type, { interaction: 'read', project })
      if (scope !== undefined) add(scope, idsPredicate(scope, unseen))
    }
    // Finding a resource by its url reveals the url.
    if (
      urls.size > 0 &&
      !isHidden(store, principal, type, { interaction: 'read', project, codes: ['url'] })
    ) {
      const scope = visibleRows(store, principal, type, {
        interaction: 'read',
        project,
        units: [],
        codes: ['url'],
      })
      if (scope !== undefined) add(scope, urlsPredicate(scope, urls))
    }
  }
  for (const [type, parameters] of holders) {
    if (!isShared(principal, project, type)) continue
    for (const [scope, codes] of holderScopes(store, principal, { project, type, parameters })) {
      const any = codes.flatMap((code) => {
        const p = scope.keys.param(scope.project, type, code)
        const texts = parameters.get(code) ?? []
        return [...texts].map((text) => p ^ scope.keys.target(scope.project, text))
      })
      const keys = (bind: Bind) => bind(arrayLiteral(any), 'bigint[]')
      const isFew = any.length <= CHUNK
      add(
        scope,
        isFew
          ? { kind: 'keys', any, isIdentifying: true }
          : { kind: 'join', keys, check: holdsSql, hasStablePlan: true },
      )
    }
  }
  return queries
}

interface HolderType {
  readonly project: number
  readonly type: string
  readonly parameters: ReadonlyMap<string, unknown>
}

/** Returns one scope for all parameters, or one per visible parameter where a policy hides elements. */
function holderScopes(
  store: StoreContext,
  principal: Principal,
  { project, type, parameters }: HolderType,
): readonly (readonly [SearchScope, readonly string[]])[] {
  const codes = [...parameters.keys()]
  const isOpen = grantsFor(principal, type, 'search')?.every(({ hidden }) => hidden.length === 0)
  const groups = isOpen === false ? codes.map((code) => [code]) : [codes]
  return groups.flatMap((group) => {
    if (isHidden(store, principal, type, { interaction: 'search', project, codes: group }))
      return []
    const scope = visibleRows(store, principal, type, {
      interaction: 'search',
      project,
      units: [],
      codes: group,
    })
    return scope === undefined ? [] : [[scope, group] as const]
  })
}

function idsPredicate({ keys, type }: SearchScope, ids: readonly string[]): Predicate {
  const rowIds = ids.map((id) => keys.rowId(type, id))
  return { kind: 'narrow', sql: (bind) => `r.id = any(${bind(rowIds, 'uuid[]')})`, reach: 'row' }
}

function urlsPredicate({ keys, project, type }: SearchScope, urls: ReadonlySet<string>): Predicate {
  const p = keys.param(project, type, CANONICAL_KEY)
  return { kind: 'keys', any: [...urls].map((url) => p ^ keys.target(project, url)) }
}

function includeCodes({ code }: Include, type: string, own: OwnParameters | undefined) {
  return code === undefined ? referenceParameters(type, own) : [code]
}

// Targets of the includes, from the resources on the page

interface Targets {
  readonly ids: Set<string>
  readonly urls: Set<string>
  /** Version of each id that has versioned references only. */
  readonly versions: Map<string, string | undefined>
}

interface IncludeTargets {
  readonly targets: Map<string, Targets>
  /** Type → reference parameter → possible texts. */
  readonly holders: Map<string, Map<string, Set<string>>>
  readonly isTruncated: boolean
}

/** Collects at most `maxHolders` texts, from the first resources. */
function seekIncludes(
  includes: readonly Include[],
  resources: readonly Resource[],
  maxHolders: number,
  own: OwnParameters | undefined,
): IncludeTargets {
  const targets = new Map<string, Targets>()
  const holders = new Map<string, Map<string, Set<string>>>()
  let count = 0
  for (const resource of resources) {
    for (const include of includes) {
      if (include.kind === 'include') seekTargets(include, resource, own, targets)
      else if (count < maxHolders) count += seekHolders(include, resource, own, holders)
    }
  }
  return { targets, holders, isTruncated: count >= maxHolders }
}

function seekTargets(
  include: Include,
  resource: Resource,
  own: OwnParameters | undefined,
  found: Map<string, Targets>,
): void {
  const { resourceType: type } = resource
  if (include.type !== undefined && include.type !== type) return
  const of = (target: string) =>
    getOrInsert(found, target, () => ({ ids: new Set(), urls: new Set(), versions: new Map() }))
  for (const code of includeCodes(include, type, own)) {
    for (const literal of referenceLiterals(resource, code, own)) {
      const reference = parseReference(literal)
      if (reference !== undefined) {
        const isWanted = include.target === undefined || include.target === reference.type
        if (isWanted && isResourceType(reference.type)) {
          const { ids, versions } = of(reference.type)
          const version = /\/_history\/(.+)$/.exec(literal)?.[1]
          const isFirst = !ids.has(reference.id)
          ids.add(reference.id)
          if (isFirst || versions.get(reference.id) !== version) {
            versions.set(reference.id, isFirst ? version : undefined)
          }
        }
      } else if (isCanonicalParameter(type, code, own)) {
        const { targets = CANONICAL_RESOURCES } = searchParameter(type, code, own) ?? {}
        const wanted = include.target === undefined ? targets : [include.target]
        for (const target of wanted) of(target).urls.add(literal)
      }
    }
  }
}

function seekHolders(
  include: Include,
  resource: Resource,
  own: OwnParameters | undefined,
  found: Map<string, Map<string, Set<string>>>,
): number {
  const { resourceType, url } = resource
  if (include.target !== undefined && include.target !== resourceType) return 0
  let count = 0
  const types = include.type === undefined ? resourceTypes : [include.type]
  for (const type of types) {
    for (const code of includeCodes(include, type, own)) {
      const { targets } = searchParameter(type, code, own) ?? {}
      if (targets !== undefined && !targets.includes(resourceType)) continue
      const byCode = getOrInsert(found, type, () => new Map<string, Set<string>>())
      const texts = getOrInsert(byCode, code, () => new Set<string>())
      const before = texts.size
      texts.add(referenceTo(resource))
      if (typeof url === 'string' && isCanonicalParameter(type, code, own)) texts.add(url)
      count += texts.size - before
    }
  }
  return count
}

/** Possible targets of a canonical: types with their own `url`. */
const CANONICAL_RESOURCES = resourceTypes.filter(
  (type) => searchParameter(type, 'url')?.expression === `${type}.url`,
)
