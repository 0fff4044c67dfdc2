/** Terminology packaged with the standard; files are unpacked on first use. */

import { openLines, openOnce } from './definitions-data.ts'
import type { Meta } from './resource.ts'

export function coreCodeSystem(url: string): CodeSystem | undefined {
  return codeSystems().get(url)
}

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

export function coreUrls(): readonly (readonly [string, readonly string[]])[] {
  return [
    ['CodeSystem', codeSystems().names()],
    ['ConceptMap', conceptMaps().names()],
    ['ValueSet', valueSets().names()],
  ]
}

/** Few and small, so all are parsed. */
export function coreConceptMaps(): readonly ConceptMap[] {
  return conceptMaps()
    .names()
    .flatMap((url) => coreConceptMap(url) ?? [])
}

const MOST_PARSED = 100

const codeSystems = openOnce(() => openLines<CodeSystem>('codesystems', 'url', MOST_PARSED))
const valueSets = openOnce(() => openLines<ValueSet>('composes', 'url', MOST_PARSED))
const conceptMaps = openOnce(() => openLines<ConceptMap>('conceptmaps', 'url', MOST_PARSED))

/** Terminology resources, reduced to the elements in use. https://hl7.org/fhir/R4/terminology-module.html */
export interface Property {
  readonly code: string
  readonly [value: string]: unknown
}

export interface Designation {
  readonly language?: string
  readonly use?: unknown
  readonly value: string
}

export interface Concept {
  readonly code: string
  readonly display?: string
  readonly definition?: string
  readonly designation?: readonly Designation[]
  readonly property?: readonly Property[]
  readonly concept?: readonly Concept[]
}

interface Named {
  readonly meta?: Meta
  readonly url: string
  readonly version?: string | undefined
  readonly name?: string | undefined
  readonly title?: string | undefined
}

export interface CodeSystem extends Named {
  readonly language?: string | undefined
  readonly content?: string | undefined
  /** Canonical of the supplemented CodeSystem. */
  readonly supplements?: string | undefined
  readonly caseSensitive?: boolean | undefined
  readonly hierarchyMeaning?: string | undefined
  readonly property?:
    | readonly { readonly code: string; readonly type?: string | undefined }[]
    | undefined
  readonly concept?: readonly Concept[] | undefined
}

export interface Filter {
  readonly property: string
  readonly op: string
  readonly value: string
}

export interface Include {
  readonly system?: string | undefined
  readonly version?: string | undefined
  readonly concept?: readonly Concept[] | undefined
  readonly filter?: readonly Filter[] | undefined
  readonly valueSet?: readonly string[] | undefined
}

type Extension = Readonly<Record<string, unknown>>

export interface ValueSet extends Named {
  readonly language?: string | undefined
  readonly contained?: readonly unknown[] | undefined
  readonly extension?: readonly Extension[] | undefined
  readonly compose?: Compose | undefined
  readonly expansion?: { readonly contains?: readonly Contained[] } | undefined
}

export interface Contained {
  readonly system?: string
  readonly code?: string
  readonly display?: string
  readonly abstract?: boolean
  readonly contains?: readonly Contained[]
}

export interface Compose {
  readonly extension?: readonly Extension[]
  /** False excludes inactive codes. */
  readonly inactive?: boolean
  readonly include?: readonly Include[]
  readonly exclude?: readonly Include[]
}

interface Mapping {
  readonly code?: string | undefined
  readonly display?: string | undefined
  readonly equivalence?: string | undefined
  readonly comment?: string | undefined
  readonly dependsOn?: readonly Dependency[] | undefined
  readonly product?: readonly Dependency[] | undefined
}

/** Another element that a mapping requires or produces, with its value. */
export interface Dependency {
  readonly property: string
  readonly system?: string | undefined
  readonly value: string
  readonly display?: string | undefined
}

interface MappedElement {
  readonly code?: string | undefined
  readonly display?: string | undefined
  readonly target?: readonly Mapping[] | undefined
}

export interface ConceptMap extends Named {
  readonly sourceUri?: string | undefined
  readonly sourceCanonical?: string | undefined
  readonly targetUri?: string | undefined
  readonly targetCanonical?: string | undefined
  readonly group?: readonly MapGroup[] | undefined
}

interface Unmapped {
  readonly mode?: string
  readonly code?: string
  readonly display?: string
  /** Canonical of the map for `other-map`. */
  readonly url?: string
}

export interface MapGroup {
  readonly source?: string | undefined
  readonly sourceVersion?: string | undefined
  readonly target?: string | undefined
  readonly targetVersion?: string | undefined
  readonly element?: readonly MappedElement[] | undefined
  readonly unmapped?: Unmapped | undefined
}
