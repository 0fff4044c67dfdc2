/** The targets of a search's includes, from the resources at hand, before any statement. */
import { isResourceType, resourceTypes, searchParameter } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import { parseReference, type Resource, referenceTo } from '../../fhir/resource.ts'
import { literalsOf, referenceParameters } from '../../query/parameter-paths.ts'
import type { Include } from '../../query/search-request.ts'
import { isCanonicalParameter } from '../index/index-plan.ts'

export interface Targets {
  readonly ids: Set<string>
  /** The values of canonical references. */
  readonly urls: Set<string>
}

export interface Sought {
  /** By type. */
  readonly targets: Map<string, Targets>
  /** Type → reference parameter → texts that it may hold. */
  readonly holders: Map<string, Map<string, Set<string>>>
  /** `holders` would have had more texts than allowed. */
  readonly isCut: boolean
}

/** At most `maxHolders` texts are looked for, those of the first resources. */
export function seekIncludes(
  includes: readonly Include[],
  resources: readonly Resource[],
  maxHolders: number,
  own: OwnParameters | undefined,
): Sought {
  const targets = new Map<string, Targets>()
  const holders = new Map<string, Map<string, Set<string>>>()
  let count = 0
  for (const resource of resources) {
    for (const include of includes) {
      if (include.kind === 'include') seekTargets(include, resource, own, targets)
      else if (count < maxHolders) count += seekHolders(include, resource, own, holders)
    }
  }
  return { targets, holders, isCut: count >= maxHolders }
}

function seekTargets(
  include: Include,
  resource: Resource,
  own: OwnParameters | undefined,
  found: Map<string, Targets>,
): void {
  const { resourceType: type } = resource
  if (include.type !== undefined && include.type !== type) return
  const of = (target: string) => entry(found, target, () => ({ ids: new Set(), urls: new Set() }))
  const codes = include.code === undefined ? referenceParameters(type, own) : [include.code]
  for (const code of codes) {
    for (const literal of literalsOf(resource, code, own)) {
      const reference = parseReference(literal)
      if (reference !== undefined) {
        const isWanted = include.target === undefined || include.target === reference.type
        if (isWanted && isResourceType(reference.type)) of(reference.type).ids.add(reference.id)
      } else if (isCanonicalParameter(type, code, own)) {
        const { targets = CANONICAL_RESOURCES } = searchParameter(type, code, own) ?? {}
        const wanted = include.target === undefined ? targets : [include.target]
        for (const target of wanted) of(target).urls.add(literal)
      }
    }
  }
}

/** Answers how many texts it added. */
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
    const codes = include.code === undefined ? referenceParameters(type, own) : [include.code]
    for (const code of codes) {
      const { targets } = searchParameter(type, code, own) ?? {}
      if (targets !== undefined && !targets.includes(resourceType)) continue
      const byCode = entry(found, type, () => new Map<string, Set<string>>())
      const texts = entry(byCode, code, () => new Set<string>())
      const before = texts.size
      texts.add(referenceTo(resource))
      if (typeof url === 'string' && isCanonicalParameter(type, code, own)) texts.add(url)
      count += texts.size - before
    }
  }
  return count
}

/** Types that a canonical may point at: those whose `url` is their own. */
const CANONICAL_RESOURCES = resourceTypes.filter(
  (type) => searchParameter(type, 'url')?.expression === `${type}.url`,
)

function entry<K, V>(map: Map<K, V>, key: K, make: () => V): V {
  const known = map.get(key)
  if (known !== undefined) return known
  const made = make()
  map.set(key, made)
  return made
}
