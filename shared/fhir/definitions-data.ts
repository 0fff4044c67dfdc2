/** Shapes of the lines in data/, with the default of each absent member. */
import { readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import { Cache } from '../core/cache.ts'

export interface Constraint {
  readonly key: string
  readonly severity: 'error' | 'warning'
  readonly human: string
  readonly expression: string
}

export interface ElementType {
  readonly code: string
  /** Allowed target types of a Reference or canonical; absent: any. */
  readonly targets?: readonly string[]
}

export interface ElementDefinition {
  /** Path below the type, without `[x]`: `component.value`. */
  readonly path: string
  /** `value[x]`: the property is the path plus the capitalised type. */
  readonly choice?: true
  readonly min?: number
  readonly max?: string
  readonly types: readonly ElementType[]
  /** Path of the element whose children this one reuses (`Observation.referenceRange`). */
  readonly content?: string
  /** Value set of a required binding, without version. */
  readonly binding?: string
  readonly summary?: true
  readonly modifier?: true
  readonly constraints?: readonly Constraint[]
}

export interface TypeDefinition {
  readonly name: string
  readonly kind: 'resource' | 'complex-type' | 'primitive-type'
  readonly abstract?: true
  readonly platform?: true
  readonly base?: string
  readonly constraints?: readonly Constraint[]
  readonly elements: readonly ElementDefinition[]
}

/** Short descriptions by path; the type itself has the empty path. */
export interface ShortsLine {
  readonly name: string
  readonly texts: Readonly<Record<string, string>>
}

export interface SearchParameter {
  readonly code: string
  readonly type: SearchParamType
  readonly url: string
  /** Absent for parameters that the server computes (`_text`, `_content`, `_query`). */
  readonly expression?: string
  readonly targets?: readonly string[]
  readonly components?: readonly { readonly type: SearchParamType; readonly expression: string }[]
}

export interface SearchLine {
  readonly name: string
  readonly parameters: readonly SearchParameter[]
}

export interface CompartmentLine {
  readonly name: 'compartments'
  /** Compartment → type → parameters that put a resource into it (`{def}`: the resource itself). */
  readonly compartments: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>>
}

export interface ValueSetLine {
  readonly url: string
  readonly systems: Readonly<Record<string, readonly string[]>>
}

export interface ProfileLine {
  readonly url: string
  readonly type: string
  readonly baseDefinition?: string | undefined
  readonly differential: { readonly element: readonly object[] }
}

/** A published profile with its full snapshot. */
export interface SnapshotLine {
  readonly url: string
  readonly version?: string | undefined
  readonly type: string
  readonly snapshot: { readonly element: readonly object[] }
}

export type SearchParamType =
  | 'token'
  | 'reference'
  | 'string'
  | 'date'
  | 'number'
  | 'quantity'
  | 'uri'
  | 'composite'
  | 'special'

export interface OwnParameter extends SearchParameter {
  /** A SearchParameter with several bases is split into one of these per base. */
  readonly base: string
  readonly expression: string
  /** Identifies the version of the SearchParameter; rows with another stamp are reindexed. */
  readonly stamp: string
  /** True when every resource of the Project is indexed. */
  readonly isReady: boolean
  /** True when the expression needs the FHIRPath engine. */
  readonly isGeneral: boolean
}

export interface OwnParameters {
  /** Changes when any parameter changes. */
  readonly stamp: string
  /** Type → code → parameter. */
  readonly types: ReadonlyMap<string, ReadonlyMap<string, OwnParameter>>
  /** State of the `_text` and `_content` index; absent when it is off. */
  readonly fullText?: 'indexing' | 'ready' | undefined
}

/** A FHIR operation; inputs nested in parts are `dependency.element`. */
export interface OperationLine {
  readonly name: string
  readonly parameters: readonly string[]
}

// A gzipped file of JSON lines: unpacked once, lines parsed on demand.

interface Lines<T> {
  get(name: string): T | undefined
  names(): readonly string[]
}

/** Opens `data/<file>.json.gz`, whose lines begin with `nameMember`; keeps at most `maxParsed` parsed lines. */
export function openLines<T extends object>(
  file: string,
  nameMember: string,
  maxParsed?: number,
): Lines<T> {
  const packed = readFileSync(new URL(`data/${file}.json.gz`, import.meta.url))
  const start = `{"${nameMember}":"`
  const texts = new Map<string, string>()
  for (const line of gunzipSync(packed).toString().split('\n')) {
    texts.set(line.slice(start.length, line.indexOf('"', start.length)), line)
  }
  const parsed =
    maxParsed === undefined
      ? new Map<string, T>()
      : new Cache<string, T>({ name: 'definitions', max: maxParsed })
  return {
    get(name) {
      const known = parsed.get(name)
      const text = texts.get(name)
      if (known !== undefined || text === undefined) return known
      const line: T = JSON.parse(text)
      parsed.set(name, line)
      return line
    },
    names: () => [...texts.keys()],
  }
}

export function openOnce<T>(open: () => T): () => T {
  let opened: { readonly value: T } | undefined
  return () => {
    opened ??= { value: open() }
    return opened.value
  }
}
