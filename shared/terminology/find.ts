/**
 * Resolves terminology in the caller's Project, then linked Projects, then the standard. Definitions that the caller
 * may not search are treated as absent.
 */

import { hash } from 'node:crypto'
import { isOverridable, ownedDefinitions } from '../access/guarded/definitions.ts'
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { Cache, getOrInsert } from '../core/cache.ts'
import { tooCostly } from '../core/errors.ts'
import { canonicalUrl, canonicalVersion, chosen, type Resource } from '../fhir/resource.ts'
import {
  type CodeSystem,
  type ConceptMap,
  coreCodeSystem,
  coreConceptMap,
  coreConceptMaps,
  coreValueSet,
  type ValueSet,
} from '../fhir/terminology.ts'
import { withLinked } from '../identity/profiles.ts'
import type { OperationCall } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import type { Condition } from '../search/language/search-request.ts'
import { escapeValue } from '../search/language/values.ts'
import { equals, findVersions } from '../store/lookups.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { Version } from '../store/rows/version.ts'
import { type ConceptIndex, indexConcepts } from './concept-index.ts'
import { type ConceptList, type ConceptQuery, listConcepts } from './concepts.ts'
import { conceptOwner, listImported } from './store-concepts.ts'
import { type CodeOfSystem, mapsWithImported } from './store-imports.ts'

export interface CodeSource {
  readonly codeSystem: CodeSystem
  /** False for an external system without imported concepts. */
  readonly hasConcepts: boolean
  /** A snapshot of the published codes: later versions and grammars (UCUM, languages) have more. */
  readonly isPublished?: boolean
  size(): Promise<number>
  list(query: ConceptQuery): Promise<ConceptList>
}

export interface FoundMap {
  readonly conceptMap: ConceptMap
  readonly owner: number | undefined
}

/** Caches its lookups, so it lives for one request. */
export interface Terminology {
  codeSystem(canonical: string): Promise<CodeSource | undefined>
  valueSet(canonical: string): Promise<ValueSet | undefined>
  conceptMap(canonical: string): Promise<FoundMap | undefined>
  toCodeSource(codeSystem: Resource): Promise<CodeSource>
}

type Kind = 'CodeSystem' | 'ValueSet' | 'ConceptMap'

const CANDIDATES = 50

export function openTerminology(services: Services, principal: Principal): Terminology {
  const found = new Map<string, Promise<Resource | undefined>>()
  const sources = new Map<string, Promise<CodeSource | undefined>>()

  const stored = (kind: Kind, canonical: string) =>
    getOrInsert(found, `${kind} ${canonical}`, () =>
      findStored(services, principal, kind, canonical),
    )

  const publishedSource = (canonical: string): CodeSource | undefined => {
    const core = ofVersion(coreCodeSystem(canonicalUrl(canonical)), canonical)
    return core && { ...sourceFrom(services, core, undefined), isPublished: true }
  }

  const toCodeSource = async (resource: Resource): Promise<CodeSource> => {
    const codeSystem = resource as unknown as CodeSystem
    const { meta } = resource
    // A stored one names its Project; a sent one has no meta.
    const isPublished = meta !== undefined && meta.project === undefined
    const published = isPublished ? publishedSource(codeSystem.url) : undefined
    if (published !== undefined) return published
    const owner = await importOwner(services, resource)
    return sourceFrom(services, codeSystem, owner)
  }

  const codeSystem = async (canonical: string): Promise<CodeSource | undefined> => {
    const resource = await stored('CodeSystem', canonical)
    const published = isOverridable(resource) ? publishedSource(canonical) : undefined
    return published ?? (resource && toCodeSource(resource))
  }

  return {
    toCodeSource,
    codeSystem: (canonical) => getOrInsert(sources, canonical, () => codeSystem(canonical)),
    async valueSet(canonical) {
      const resource = await stored('ValueSet', canonical)
      const core = ofVersion(coreValueSet(canonicalUrl(canonical)), canonical)
      return (isOverridable(resource) ? core : undefined) ?? (resource as ValueSet | undefined)
    },
    async conceptMap(canonical) {
      const resource = await stored('ConceptMap', canonical)
      const core = ofVersion(coreConceptMap(canonicalUrl(canonical)), canonical)
      if (core !== undefined && isOverridable(resource))
        return { conceptMap: core, owner: undefined }
      return resource && (await foundMap(services, resource))
    },
  }
}

export async function foundMap(services: Services, resource: Resource): Promise<FoundMap> {
  const conceptMap = resource as unknown as ConceptMap
  return { conceptMap, owner: await importOwner(services, resource) }
}

/** Returns readers with the caller's rights on its Project and the linked ones. */
export async function linkedReaders(
  { principals }: Services,
  principal: Principal,
  type: string,
): Promise<readonly Principal[]> {
  const [, ...linked] = await withLinked(principals, principal.project, type)
  const readers = linked.map((project) => {
    return { ...principal, project, isSuperAdmin: false, isProjectAdmin: false }
  })
  return [principal, ...readers].filter((reader) => may(reader, type, 'search'))
}

async function findStored(
  services: Services,
  principal: Principal,
  kind: Kind,
  canonical: string,
): Promise<Resource | undefined> {
  const conditions = [equals('url', 'uri', escapeValue(canonicalUrl(canonical)))]
  let own: Resource | undefined
  for (const reader of await linkedReaders(services, principal, kind)) {
    const { repository } = services
    const all = await findVersions(repository, reader, kind, { conditions, count: CANDIDATES })
    const resources = all.map(parsedOnce)
    const found =
      ofPattern(ownedDefinitions(resources), canonical) ?? ofPattern(resources, canonical)
    if (!isOverridable(found)) return found
    own ??= found
  }
  return own
}

function ofPattern(resources: readonly Resource[], canonical: string): Resource | undefined {
  const pattern = canonicalVersion(canonical)
  if (pattern === undefined || !hasWildcard(pattern)) return chosen(resources, canonical)
  const fitting = resources.filter(({ version }) => fitsVersion(String(version ?? ''), pattern))
  return chosen(fitting, canonicalUrl(canonical))
}

/** True for a version matching a pattern: `1.x.x` for 1.2.0. */
export function fitsVersion(version: string, pattern: string): boolean {
  if (!hasWildcard(pattern)) return version === pattern
  const parts = version.split('.')
  const wanted = pattern.split('.')
  return parts.length === wanted.length && wanted.every((one, i) => one === 'x' || one === parts[i])
}

function hasWildcard(pattern: string): boolean {
  return pattern.split('.').includes('x')
}

function ofVersion<T extends { readonly version?: string | undefined }>(
  core: T | undefined,
  canonical: string,
): T | undefined {
  const version = canonicalVersion(canonical)
  return version === undefined || core?.version === version ? core : undefined
}

/** Returns undefined for an unstored resource or one without imports. */
async function importOwner(
  { repository }: Services,
  resource: Resource,
): Promise<number | undefined> {
  const { resourceType, id, meta } = resource
  const { project } = meta ?? {}
  if (project === undefined || id === undefined) return undefined
  const type = resourceType === 'ConceptMap' ? 'ConceptMap' : 'CodeSystem'
  return repository.withStore(({ connection }) => conceptOwner(connection, project, type, id))
}

/** By the parsed CodeSystem: a policy may hide parts of it from one caller, so callers do not share an index. */
const indexes = new WeakMap<CodeSystem, Promise<ConceptIndex>>()

function sourceFrom(
  { repository }: Services,
  codeSystem: CodeSystem,
  owner: number | undefined,
): CodeSource {
  const ignoresCase = codeSystem.caseSensitive === false
  const index = () => getOrInsert(indexes, codeSystem, () => indexConcepts(codeSystem))
  return {
    codeSystem,
    hasConcepts: owner !== undefined || (codeSystem.concept ?? []).length > 0,
    size: async () => (await index()).nodes.size,
    async list(query) {
      const inside = await listConcepts(await index(), query)
      if (owner === undefined) return inside
      const imported = await repository.withStore(({ connection }) =>
        listImported(connection, owner, { ...query, ignoresCase }),
      )
      // The resource's own definition of a code counts.
      const { fold, nodes } = await index()
      const others = imported.concepts.filter(({ code }) => !nodes.has(fold(code)))
      return {
        concepts: [...inside.concepts, ...others],
        isCut: inside.isCut || imported.isCut,
      }
    },
  }
}

/** In characters; smaller texts are cheap to parse. */
const SMALLEST_KEPT = 50_000
const MOST_KEPT = 20_000_000

const kept = new Cache<string, Resource>({ name: 'terminology-resources', max: MOST_KEPT })

/** Returns the parsed resource with platform meta, read-only. Cached, as large terminology is slow to parse. */
export function parsedOnce(version: Version): Resource {
  const size = version.content?.length ?? 0
  if (size < SMALLEST_KEPT) return parseVersion(version)
  // The key is the whole content, as a policy may have hidden parts of it.
  const key = `${version.metaExtension} ${hash('sha256', version.content ?? '', 'base64')}`
  const known = kept.get(key)
  if (known !== undefined) return known
  const resource = parseVersion(version)
  kept.set(key, resource, { size })
  return resource
}

const MOST_MAPS = 100

interface MapSearch {
  readonly codes: readonly CodeOfSystem[]
  readonly reverse: boolean
  readonly source: string | undefined
  readonly target: string | undefined
}

/**
 * Returns maps between the value sets or, without those, all maps with one of the codes or its system, from the
 * caller's Project, linked ones and the standard. Errors: 400 for too many maps.
 */
export async function findMaps(
  { services, principal }: OperationCall,
  search: MapSearch,
): Promise<readonly FoundMap[]> {
  const { source, target } = search
  const { repository } = services
  const isByValueSet = source !== undefined || target !== undefined
  const found: FoundMap[] = coreConceptMaps().map((conceptMap) => {
    return { conceptMap, owner: undefined }
  })
  for (const reader of await linkedReaders(services, principal, 'ConceptMap')) {
    const { codes, reverse } = search
    const imported = isByValueSet
      ? []
      : await repository.withStore(({ connection }) =>
          mapsWithImported(connection, reader.project.id, { codes, reverse, limit: MOST_MAPS + 1 }),
        )
    const conditions = isByValueSet ? byValueSets(search) : byCodes(search)
    const all = imported.length === 0 ? conditions : [...conditions, [condition('_id', imported)]]
    const pages = await Promise.all(
      all.map((one) =>
        findVersions(repository, reader, 'ConceptMap', { conditions: one, count: MOST_MAPS + 1 }),
      ),
    )
    const versions = new Map(pages.flat().map((version) => [version.id, version]))
    if (versions.size > MOST_MAPS) {
      throw tooCostly(`More than ${MOST_MAPS} ConceptMaps match; give the url of one`)
    }
    const maps = [...versions.values()].map((version) => foundMap(services, parsedOnce(version)))
    found.push(...(await Promise.all(maps)))
  }
  return isByValueSet ? found.filter((one) => isBetween(one, search)) : found
}

function isBetween({ conceptMap }: FoundMap, { source, target }: MapSearch): boolean {
  const { sourceUri, sourceCanonical, targetUri, targetCanonical } = conceptMap
  const isNamed = (asked: string | undefined, own: readonly (string | undefined)[]) =>
    asked === undefined || own.some((url = '') => url === asked || canonicalUrl(url) === asked)
  const isFrom = isNamed(source, [sourceUri, sourceCanonical])
  return isFrom && isNamed(target, [targetUri, targetCanonical])
}

/** A map names each value set by uri or canonical, which are two search parameters. */
function byValueSets({ source, target }: MapSearch): readonly (readonly Condition[])[] {
  const either = (name: string, url: string | undefined) =>
    url === undefined ? [[]] : [[condition(name, [url])], [condition(`${name}-uri`, [url])]]
  return either('source', source).flatMap((from) =>
    either('target', target).map((to) => [...from, ...to]),
  )
}

/** Searches by a known system, to find rules for unmapped codes too. */
function byCodes({ codes, reverse }: MapSearch): readonly (readonly Condition[])[] {
  const side = reverse ? 'target' : 'source'
  const systems = codes.flatMap(({ system }) => system ?? [])
  const bare = codes.flatMap(({ system, code }) => (system === undefined ? code : []))
  return [
    ...(systems.length === 0 ? [] : [[condition(`${side}-system`, systems)]]),
    ...(bare.length === 0 ? [] : [[condition(`${side}-code`, bare)]]),
  ]
}

const TYPES = {
  _id: 'token',
  'source-code': 'token',
  'target-code': 'token',
  'source-system': 'uri',
  'target-system': 'uri',
} as const

function condition(code: string, values: readonly string[]): Condition {
  const type = Object.hasOwn(TYPES, code) ? TYPES[code as keyof typeof TYPES] : 'reference'
  return { code, type, modifier: undefined, values: [...new Set(values)].map(escapeValue) }
}
