/** The terminology published with the standard; a file is unpacked when it is first asked for. */
import { openLines, openOnce } from './definitions-lines.ts'
import type { CodeSystem, ConceptMap, ValueSet } from './terminology-data.ts'

export function coreCodeSystem(url: string): CodeSystem | undefined {
  return codeSystems().get(url)
}

/** Urls of those whose concepts are packaged. */
export function coreCodeSystems(): readonly string[] {
  return codeSystems()
    .names()
    .filter((url) => (coreCodeSystem(url)?.concept ?? []).length > 0)
}

export function coreValueSet(url: string): ValueSet | undefined {
  return valueSets().get(url)
}

export function coreConceptMap(url: string): ConceptMap | undefined {
  return conceptMaps().get(url)
}

/** There are few of them, and small ones. */
export function coreConceptMaps(): readonly ConceptMap[] {
  return conceptMaps()
    .names()
    .flatMap((url) => coreConceptMap(url) ?? [])
}

/** The others stay text. */
const MOST_PARSED = 100

const codeSystems = openOnce(() => openLines<CodeSystem>('codesystems', 'url', MOST_PARSED))
const valueSets = openOnce(() => openLines<ValueSet>('composes', 'url', MOST_PARSED))
const conceptMaps = openOnce(() => openLines<ConceptMap>('conceptmaps', 'url', MOST_PARSED))
