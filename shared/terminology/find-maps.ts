/** Finds ConceptMaps for a `$translate` without one. */
import { tooCostly } from '../core/errors.ts'
import { coreConceptMaps } from '../fhir/terminology.ts'
import type { OperationCall } from '../request/request.ts'
import type { Condition } from '../search/language/search-request.ts'
import { escapeValue } from '../search/language/values.ts'
import { findVersions } from '../store/lookups.ts'
import type { GivenCode } from './codes.ts'
import { type FoundMap, foundMap, linkedReaders, parsedOnce } from './find.ts'
import { mapsWithImported } from './store-mappings.ts'

const MOST_MAPS = 100

interface MapSearch {
  readonly codes: readonly GivenCode[]
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
  const isFrom = source === undefined || [sourceUri, sourceCanonical].includes(source)
  return isFrom && (target === undefined || [targetUri, targetCanonical].includes(target))
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
