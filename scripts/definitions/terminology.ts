/** Converts published CodeSystems, ValueSets and ConceptMaps to compact lines. */
import type { ValueSetLine } from '../../shared/fhir/definitions-data.ts'
import type {
  CodeSystem,
  Concept,
  ConceptMap,
  Include,
  ValueSet,
} from '../../shared/fhir/terminology.ts'

type Published = Omit<CodeSystem & ValueSet & ConceptMap, 'url'> & {
  readonly resourceType: string
  readonly url?: string
}

interface Terminology {
  readonly codeSystems: ReadonlyMap<string, CodeSystem>
  readonly valueSets: ReadonlyMap<string, ValueSet>
  readonly conceptMaps: ReadonlyMap<string, ConceptMap>
}

/** Returns lines by url, sorted. The later of two resources with one url wins. */
export function describeTerminology(resources: readonly unknown[]): Terminology {
  const codeSystems = new Map<string, CodeSystem>()
  const valueSets = new Map<string, ValueSet>()
  const conceptMaps = new Map<string, ConceptMap>()
  for (const item of resources as readonly Published[]) {
    const { url, version, name, title } = item
    if (url === undefined) continue
    const head = { url, version, name, title }
    if (item.resourceType === 'CodeSystem') {
      const { content, caseSensitive, hierarchyMeaning } = item
      // A few example codes of a large external system (LOINC, ICD-10) are left out.
      const isSample = content === 'example' && !url.startsWith('http://terminology.hl7.org/')
      const concept = isSample ? [] : (item.concept ?? []).map(describeConcept)
      const property = item.property?.map(({ code, type }) => ({ code, type }))
      codeSystems.set(url, { ...head, content, caseSensitive, hierarchyMeaning, property, concept })
    }
    if (item.resourceType === 'ValueSet') valueSets.set(url, { ...head, compose: item.compose })
    if (item.resourceType === 'ConceptMap') {
      const { sourceUri, sourceCanonical, targetUri, targetCanonical, group } = item
      const ends = { sourceUri, sourceCanonical, targetUri, targetCanonical }
      conceptMaps.set(url, { ...head, ...ends, group })
    }
  }
  return {
    codeSystems: sortedByKey(codeSystems),
    valueSets: sortedByKey(valueSets),
    conceptMaps: sortedByKey(conceptMaps),
  }
}

function describeConcept(concept: Concept): Concept {
  const { code, display, definition, designation, property } = concept
  const children = concept.concept?.map(describeConcept)
  return { code, display, definition, designation, property, concept: children } as Concept
}

function sortedByKey<T>(items: ReadonlyMap<string, T>): Map<string, T> {
  return new Map([...items].sort(([a], [b]) => (a < b ? -1 : 1)))
}

/** System → codes. */
type Codes = Map<string, Set<string>>

/** Lists the codes of a value set; undefined if a filter, system or import of it cannot be listed. */
export function enumerateValueSet(url: string, terminology: Terminology): ValueSetLine | undefined {
  const codes = expand(url, terminology)
  if (codes === undefined) return undefined
  const systems = [...codes].sort().map(([system, set]) => [system, [...set].sort()])
  return { url, systems: Object.fromEntries(systems) }
}

function expand(url: string, terminology: Terminology): Codes | undefined {
  const compose = terminology.valueSets.get(url)?.compose
  if (compose === undefined) return undefined
  const included = compose.include?.map((one) => listCodes(one, terminology)) ?? []
  const excluded = compose.exclude?.map((one) => listCodes(one, terminology)) ?? []
  const codes: Codes = new Map()
  for (const part of included) {
    if (part === undefined) return undefined
    for (const [system, set] of part) codes.set(system, set.union(codes.get(system) ?? new Set()))
  }
  for (const part of excluded) {
    if (part === undefined) return undefined
    for (const [system, set] of part) codes.set(system, (codes.get(system) ?? set).difference(set))
  }
  return codes
}

function listCodes(include: Include, terminology: Terminology): Codes | undefined {
  const { system, concept, valueSet, filter = [] } = include
  if (valueSet !== undefined) {
    const [only = '', ...more] = valueSet
    if (more.length > 0 || system !== undefined) return undefined
    return expand(only.replace(/\|.*$/, ''), terminology)
  }
  if (system === undefined) return undefined
  if (concept !== undefined) return new Map([[system, new Set(concept.map(({ code }) => code))]])
  const codeSystem = terminology.codeSystems.get(system)
  if (codeSystem?.content !== 'complete') return undefined
  const all = codeSystem.concept ?? []
  const [rule, ...rules] = filter
  if (rule === undefined) return new Map([[system, new Set(flatten(all))]])
  if (rule.property !== 'concept' || rule.op !== 'is-a' || rules.length > 0) return undefined
  return new Map([[system, descendants(all, rule.value)]])
}

function flatten(concepts: readonly Concept[]): string[] {
  return concepts.flatMap(({ code, concept = [] }) => [code, ...flatten(concept)])
}

/** Children are nested or, in v3 code systems, name their parent as `subsumedBy`. */
function descendants(concepts: readonly Concept[], root: string): Set<string> {
  const found = new Set([root])
  for (let size = 0; size !== found.size; ) {
    size = found.size
    collect(concepts, false, found)
  }
  return found
}

function collect(concepts: readonly Concept[], inside: boolean, found: Set<string>): void {
  for (const { code, concept = [], property = [] } of concepts) {
    const isChild = property.some(
      (item) => item.code === 'subsumedBy' && found.has(String(item.valueCode)),
    )
    if (inside || isChild) found.add(code)
    collect(concept, found.has(code), found)
  }
}
