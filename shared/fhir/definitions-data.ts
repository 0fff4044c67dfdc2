/** Shapes of the lines in data/; absent members have the default given here. */

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
  /** Resource types a Reference or canonical may point at; absent: any. */
  readonly targets?: readonly string[]
}

export interface ElementDefinition {
  /** Below the type, without `[x]`: `component.value`. */
  readonly path: string
  /** `value[x]`: the property is the path plus the capitalised type. */
  readonly choice?: true
  /** Absent: 0. */
  readonly min?: number
  /** Absent: `1`. */
  readonly max?: string
  readonly types: readonly ElementType[]
  /** Path with its type (`Observation.referenceRange`) whose children this element has. */
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
  /** Not a type of the standard but of the platform. */
  readonly platform?: true
  readonly base?: string
  readonly constraints?: readonly Constraint[]
  readonly elements: readonly ElementDefinition[]
}

/** Short descriptions of a type and its elements, by path; the type's own path is empty. */
export interface ShortsLine {
  readonly name: string
  readonly texts: Readonly<Record<string, string>>
}

export interface SearchParameter {
  readonly code: string
  readonly type: SearchParamType
  readonly url: string
  /** Absent: the server answers it by itself (`_text`, `_content`, `_query`). */
  readonly expression?: string
  /** Absent: any. */
  readonly targets?: readonly string[]
  readonly components?: readonly { readonly type: SearchParamType; readonly expression: string }[]
}

export interface SearchLine {
  readonly name: string
  readonly parameters: readonly SearchParameter[]
}

export interface CompartmentLine {
  readonly name: 'compartments'
  /** compartment → type → parameters that put a resource into it (`{def}`: the resource itself). */
  readonly compartments: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>>
}

export interface ValueSetLine {
  readonly url: string
  readonly systems: Readonly<Record<string, readonly string[]>>
}

/** A published profile or extension, as StructureDefinition. */
export interface ProfileLine {
  readonly url: string
  readonly type: string
  readonly baseDefinition?: string | undefined
  readonly differential: { readonly element: readonly object[] }
}

/** The same with all its elements, as StructureDefinition. */
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
  /** The type it belongs to; a SearchParameter of several types is several of these. */
  readonly base: string
  readonly expression: string
  /** Names the version of the resource: rows made by another one are to be made anew. */
  readonly stamp: string
  /** Every resource of the Project has its rows. */
  readonly isReady: boolean
  /** The expression is more than a path and belongs to the FHIRPath engine. */
  readonly isGeneral: boolean
}

export interface OwnParameters {
  /** Changes with any of them. */
  readonly stamp: string
  /** Type → code → parameter. */
  readonly types: ReadonlyMap<string, ReadonlyMap<string, OwnParameter>>
  /** Whether the words of resources are kept for `_text` and `_content`, and of all of them yet. */
  readonly fullText?: 'indexing' | 'ready' | undefined
}

/** An operation of the standard, by type and code, with the names of its inputs; parts as `dependency.element`. */
export interface OperationLine {
  readonly name: string
  readonly parameters: readonly string[]
}

// A gzipped file of one JSON object a line, unpacked once and parsed line by line when asked.

interface Lines<T> {
  get(name: string): T | undefined
  names(): readonly string[]
}

/**
 * Opens `data/<file>.json.gz`, whose lines all begin with their `nameMember`. At most `maxParsed` of
 * them are kept as values; absent: all that were asked for.
 */
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

/** Calls `open` at the first use and keeps what it gave. */
export function openOnce<T>(open: () => T): () => T {
  let opened: { readonly value: T } | undefined
  return () => {
    opened ??= { value: open() }
    return opened.value
  }
}
