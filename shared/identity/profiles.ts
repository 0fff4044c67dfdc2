/** Profiles of resources: StructureDefinitions of the Project, then of linked Projects, then of the standard. */
import { isOverridable, resolvedIn } from '../access/guarded/definitions.ts'
import { type Principal, type ProjectContext, systemPrincipal } from '../access/principal.ts'
import { Cache, FreshCache, getOrInsert } from '../core/cache.ts'
import type { Logger } from '../core/log.ts'
import { publishedProfile } from '../fhir/definitions.ts'
import { canonicalUrl, canonicalVersion } from '../fhir/resource.ts'
import { escapeValue } from '../search/language/values.ts'
import { equals, findVersions } from '../store/lookups.ts'
import type { Repository } from '../store/repository.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { Version } from '../store/rows/version.ts'
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
}

const TIMES = { freshMs: 5_000, usableMs: 10_000, max: 5_000 }
const COMPILED = 500
/** Limit on the profiles needed by one profile, and on chain length. */
const MAX_NEEDED = 300
const MAX_ROUNDS = 10
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
    const source: ProfileSource<Definition> = {
      readers: places.map((place) => systemPrincipal(place, 'project')),
      stored: (_version, definition) => ({ definition }),
      published: publishedDefinition,
    }
    const gathered = await gatherProfiles(from, source, canonical)
    const found = new Map([...gathered].map(([name, { definition }]) => [name, definition]))
    const top = found.get(canonical)
    if (top === undefined) {
      if (!unknown.has(key)) log.warn({ project: projectId, profile: canonical }, 'unknown profile')
      unknown.set(key, true)
      return undefined
    }
    const stamp = [canonical, ...[...found.values()].map(definitionStamp)].join(' ')
    return getOrInsert(compiled, stamp, () => compileProfile(top, found))
  }

  const options = { name: 'profiles', types: ['StructureDefinition'] as const, ...TIMES }
  const cache = new FreshCache<Profile>(options, (key) => readFrom(repository, key))
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

interface Definition {
  readonly definition: StructureDefinition
}

export interface ProfileSource<T extends Definition> {
  /** In order of resolution. */
  readonly readers: readonly Principal[]
  /** Makes an item of a stored definition. */
  stored(version: Version, definition: StructureDefinition): T
  /** Returns the standard's definition of a canonical. */
  published(canonical: string): T | undefined
}

/** Returns a profile and its dependencies by canonical. */
export async function gatherProfiles<T extends Definition>(
  repository: Repository,
  source: ProfileSource<T>,
  canonical: string,
): Promise<ReadonlyMap<string, T>> {
  const found = new Map<string, T>()
  let wanted: readonly string[] = [canonical]
  for (let round = 0; round < MAX_ROUNDS && wanted.length > 0; round++) {
    const read = await readAll(repository, source, wanted)
    for (const [name, item] of read) found.set(name, item)
    const named = new Set([...read.values()].flatMap((item) => profilesNamedIn(item.definition)))
    wanted = [...named].filter((name) => !found.has(name)).slice(0, MAX_NEEDED - found.size)
  }
  return found
}

async function readAll<T extends Definition>(
  repository: Repository,
  source: ProfileSource<T>,
  canonicals: readonly string[],
): Promise<ReadonlyMap<string, T>> {
  const found = new Map<string, T>()
  const isMissing = (name: string) => isOverridable(found.get(name)?.definition)
  for (const reader of source.readers) {
    const missing = canonicals.filter(isMissing)
    if (missing.length === 0) break
    const items = await readStored(repository, source, reader, missing)
    const definitions = items.map(({ definition }) => definition)
    for (const name of missing) {
      const definition = resolvedIn(definitions, name)
      const item = items.find((candidate) => candidate.definition === definition)
      if (item === undefined || (found.has(name) && isOverridable(definition))) continue
      found.set(name, item)
    }
  }
  for (const name of canonicals.filter(isMissing)) {
    const item = source.published(name)
    if (item !== undefined) found.set(name, item)
  }
  return found
}

async function readStored<T extends Definition>(
  repository: Repository,
  { stored }: ProfileSource<T>,
  reader: Principal,
  canonicals: readonly string[],
): Promise<readonly T[]> {
  const values = [...new Set(canonicals.map((name) => escapeValue(canonicalUrl(name))))]
  const versions = await findVersions(repository, reader, 'StructureDefinition', {
    conditions: [equals('url', 'uri', ...values)],
    // Leaves room for every url, however many definitions one has.
    count: CANDIDATES * values.length,
  })
  return versions.flatMap((version) => {
    const definition: unknown = parseVersion(version)
    return isStructureDefinition(definition) ? [stored(version, definition)] : []
  })
}

const CORE = '4.0.1'

function publishedDefinition(canonical: string): Definition | undefined {
  const published = publishedProfile(canonicalUrl(canonical))
  const isCore = (canonicalVersion(canonical) ?? CORE) === CORE
  // Its elements are those of a StructureDefinition.
  return published && isCore ? { definition: published as StructureDefinition } : undefined
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
