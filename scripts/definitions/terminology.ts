/** Converts published CodeSystems, ValueSets and ConceptMaps to compact lines. */
import type { CodeSystem, Concept, ConceptMap, ValueSet } from '../../shared/fhir/terminology.ts'

interface Published extends Omit<CodeSystem & ValueSet & ConceptMap, 'concept'> {
  readonly resourceType: string
  readonly concept?: readonly Concept[]
}

export interface Terminology {
  readonly codeSystems: readonly CodeSystem[]
  readonly valueSets: readonly ValueSet[]
  readonly conceptMaps: readonly ConceptMap[]
}

/** The later of two resources with one url wins. */
export function describeTerminology(resources: readonly unknown[]): Terminology {
  const codeSystems = new Map<string, CodeSystem>()
  const valueSets = new Map<string, ValueSet>()
  const conceptMaps = new Map<string, ConceptMap>()
  for (const item of resources as readonly Published[]) {
    if (item.url === undefined) continue
    const { url, version, name, title } = item
    const head = { url, version, name, title }
    if (item.resourceType === 'CodeSystem') {
      const { content, caseSensitive, hierarchyMeaning, property } = item
      const concept = isSample(item) ? [] : (item.concept ?? [])
      const rest = { content, caseSensitive, hierarchyMeaning, property: property?.map(plain) }
      codeSystems.set(url, { ...head, ...rest, concept: concept.map(describeConcept) })
    }
    if (item.resourceType === 'ValueSet') valueSets.set(url, { ...head, compose: item.compose })
    if (item.resourceType === 'ConceptMap') {
      const { sourceUri, sourceCanonical, targetUri, targetCanonical, group } = item
      const ends = { sourceUri, sourceCanonical, targetUri, targetCanonical }
      conceptMaps.set(url, { ...head, ...ends, group })
    }
  }
  return {
    codeSystems: sorted(codeSystems),
    valueSets: sorted(valueSets),
    conceptMaps: sorted(conceptMaps),
  }
}

/** True for a few example codes of a large external system (LOINC, ICD-10). */
function isSample({ url, content }: Published): boolean {
  return content === 'example' && !url.startsWith('http://terminology.hl7.org/')
}

function plain({ code, type }: { readonly code: string; readonly type?: string | undefined }) {
  return { code, type }
}

function describeConcept({
  code,
  display,
  definition,
  designation,
  property,
  concept,
}: Concept): Concept {
  const rest = { definition, designation, property }
  return { code, display, ...rest, concept: concept?.map(describeConcept) } as Concept
}

function sorted<T extends { readonly url: string }>(items: ReadonlyMap<string, T>): T[] {
  return [...items.values()].sort((a, b) => (a.url < b.url ? -1 : 1))
}
