/** Profiles of resources: StructureDefinitions of the Project, then of linked Projects, then of the standard. */
import { isOverridable, resolvedIn } from '../access/guarded/definitions.ts'
import { type ProjectContext, systemPrincipal } from '../access/principal.ts'
import { Cache, createFreshCache } from '../core/cache.ts'
import type { Logger } from '../core/log.ts'
import { publishedProfile } from '../fhir/definitions.ts'
import { canonicalUrl, canonicalVersion } from '../fhir/resource.ts'
import { escapeValue } from '../search/language/values.ts'
import { find } from '../store/lookups.ts'
import type { Repository } from '../store/repository.ts'
import type { Profile } from '../validation/profile-run.ts'
import { compileProfile, profilesNamedIn } from '../validation/profiles/profiles.ts'
import { isStructureDefinition, type StructureDefinition } from '../validation/profiles/tree.ts'
import type { Principals } from './principals.ts'

export interface Profiles {
  /** Finds by `url` or `url|version`. `repository` reads for the caller, possibly in a transaction. */
  find(
    repository: Repository,
    project: ProjectContext,
    canonical: string,
  ): Promise<Profile | undefined>
  /** Clears the cache after a change of a StructureDefinition. */
}

const TIMES = { freshMs: 5_000, usableMs: 10_000, max: 5_000 }
const COMPILED = 500
/** Limit on the profiles needed by one profile, and on chain length. */
const MAX_NEEDED = 300
const MAX_ROUNDS = 8
/** Definitions read per url. */
const CANDIDATES = 100

export function openProfiles(
  repository: Repository,
  principals: Principals,
  log: Logger,
): Profiles {
  const compiled = new Cache<string, Profile>({ name: 'compiled-profiles', max: COMPILED })
  const unknown = new Cache<string, true>({ name: 'unknown-profiles', max: COMPILED })

  const readFrom = async (from: Repository, key: string): Promise<Profile | undefined> => {
    const projectId = key.split(' ', 1)[0] ?? ''
    const canonical = key.slice(projectId.length + 1)
    const project = await principals.project(projectId)
    if (project === undefined) return undefined
    const places = await withLinked(principals, project, 'StructureDefinition')
    const found = await gather(from, places, canonical)
    const top = found.get(canonical)
    if (top === undefined) {
      if (!unknown.has(key)) log.warn({ project: projectId, profile: canonical }, 'unknown profile')
      unknown.set(key, true)
      return undefined
    }
    const stamp = [canonical, ...[...found.values()].map(definitionStamp)].join(' ')
    const known = compiled.get(stamp)
    if (known !== undefined) return known
    const profile = compileProfile(top, found)
    compiled.set(stamp, profile)
    return profile
  }

  const options = { name: 'profiles', types: ['StructureDefinition'], ...TIMES }
  const cache = createFreshCache<Profile>(options, (key) => readFrom(repository, key))
  return {
    async find(own, project, canonical) {
      const key = `${project.id} ${canonical}`
      try {
        return await cache.get(key, (name) => readFrom(own, name))
      } catch {
        // The shared read may have failed with another caller's transaction.
        return await readFrom(own, key)
      }
    },
  }
}

type Found = Map<string, StructureDefinition>

/** Returns a profile and its dependencies by canonical. */
async function gather(
  repository: Repository,
  places: readonly ProjectContext[],
  canonical: string,
): Promise<Found> {
  const found: Found = new Map()
  let wanted: readonly string[] = [canonical]
  for (let round = 0; round < MAX_ROUNDS && wanted.length > 0; round++) {
    const read = await readAll(repository, places, wanted)
    for (const [name, definition] of read) found.set(name, definition)
    const named = new Set([...read.values()].flatMap(profilesNamedIn))
    wanted = [...named].filter((name) => !found.has(name)).slice(0, MAX_NEEDED - found.size)
  }
  return found
}

async function readAll(
  repository: Repository,
  places: readonly ProjectContext[],
  canonicals: readonly string[],
): Promise<Found> {
  const found: Found = new Map()
  for (const place of places) {
    const missing = canonicals.filter((name) => isOverridable(found.get(name)))
    if (missing.length === 0) break
    for (const [name, definition] of await readIn(repository, place, missing)) {
      if (!found.has(name) || !isOverridable(definition)) found.set(name, definition)
    }
  }
  for (const name of canonicals) {
    const published = publishedProfile(canonicalUrl(name))
    const isMissing = isOverridable(found.get(name))
    if (isMissing && published !== undefined && (canonicalVersion(name) ?? CORE) === CORE) {
      // Its elements are those of a StructureDefinition.
      found.set(name, published as StructureDefinition)
    }
  }
  return found
}

const CORE = '4.0.1'

async function readIn(
  repository: Repository,
  project: ProjectContext,
  canonicals: readonly string[],
): Promise<Found> {
  const reader = { ...systemPrincipal(project), isSuperAdmin: false }
  const values = [...new Set(canonicals.map((name) => escapeValue(canonicalUrl(name))))]
  const condition = { code: 'url', type: 'uri', modifier: undefined, values } as const
  const all = await find(repository, reader, 'StructureDefinition', {
    conditions: [condition],
    // Leaves room for every url, however many definitions one has.
    count: CANDIDATES * values.length,
  })
  const definitions = all.flatMap((item: unknown) => (isStructureDefinition(item) ? [item] : []))
  return new Map(
    canonicals.flatMap((name) => {
      const definition = resolvedIn(definitions, name)
      return definition === undefined ? [] : [[name, definition] as const]
    }),
  )
}

/** Published definitions never change, so the url suffices. */
function definitionStamp({ url, id, meta }: StructureDefinition): string {
  return `${url}/${id ?? ''}/${meta?.versionId ?? ''}`
}

/**
 * Returns the Project and the linked ones that share the type, in order of resolution.
 * https://hl7.org/fhir/R4/references.html#canonical-resolution
 */
export async function withLinked(
  principals: Principals,
  project: ProjectContext,
  type: string,
): Promise<readonly ProjectContext[]> {
  const linked = await Promise.all((project.links ?? []).map((id) => principals.project(id)))
  const shared = linked.flatMap((item) => {
    const { exports = [] } = item ?? {}
    return item !== undefined && (exports.length === 0 || exports.includes(type)) ? [item] : []
  })
  return [project, ...shared]
}
