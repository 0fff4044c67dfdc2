/** Query string → SearchRequest, as plain data. https://hl7.org/fhir/R4/search.html */
import { badRequest, located, tooCostly } from '../errors.ts'
import { isResourceType } from './definitions.ts'
import type { OwnParameters } from './own-parameters.ts'
import type { Refusal } from './search-conditions.ts'
import { readCriterion } from './search-criteria.ts'
import { readInclude } from './search-includes.ts'
import { readPaging } from './search-paging.ts'

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

/** One `name:modifier=a,b` of a query; values are OR-ed. */
export interface Condition {
  readonly code: string
  readonly type: SearchParamType
  /**
   * `missing`, `not`, `exact`, `contains`, `in`, `identifier` … or a resource type; from a `_filter` also
   * `ew` (ends with) and `po` (periods overlap).
   */
  readonly modifier: string | undefined
  /** Not empty, without repeats; still escaped, to be read with search-values.ts. */
  readonly values: readonly string[]
  /** What `:in`, `:not-in`, `:above` and `:below` of a token mean, once the terminology was asked. */
  readonly codes?: readonly ListedCode[]
}

export interface ListedCode {
  readonly system: string
  readonly code: string
}

/** Resources at the other end of a reference fulfil a criterion. https://hl7.org/fhir/R4/search.html#chaining */
export interface Join {
  /** `chain`: they are what `code` refers to; `has`: their `code` refers to what is searched. */
  readonly kind: 'chain' | 'has'
  readonly code: string
  /** Alternatives, one a type. */
  readonly ends: readonly JoinEnd[]
  /** Of `_list`: what a List refers to and has marked as deleted is none of its members. */
  readonly isList?: true
}

export interface JoinEnd {
  readonly type: string
  readonly criterion: Criterion
}

/** It is in a compartment of the standard. https://hl7.org/fhir/R4/compartmentdefinition.html */
export interface Membership {
  readonly kind: 'compartment'
  /** `Patient/id`. */
  readonly reference: string
}

/** Part of a `_filter`. */
export interface Group {
  readonly kind: 'and' | 'or'
  readonly criteria: readonly Criterion[]
}

export interface Negation {
  readonly kind: 'not'
  readonly criterion: Criterion
}

export type Criterion = Condition | Join | Membership | Group | Negation

export function isCondition(criterion: Criterion): criterion is Condition {
  return !('kind' in criterion)
}

/** One `_include` or `_revinclude`. https://hl7.org/fhir/R4/search.html#revinclude */
export interface Include {
  readonly kind: 'include' | 'revinclude'
  /** Follows what was included, too. */
  readonly iterate: boolean
  /** The type that holds the reference; undefined: any. */
  readonly type: string | undefined
  /** Undefined: every reference parameter. */
  readonly code: string | undefined
  /** The type referred to; undefined: any. */
  readonly target: string | undefined
}

export interface SortRule {
  readonly code: string
  readonly descending: boolean
}

export interface SearchRequest {
  readonly type: string
  /** AND-ed. */
  readonly conditions: readonly Criterion[]
  readonly includes: readonly Include[]
  readonly sort: readonly SortRule[]
  readonly count: number
  readonly offset: number
  readonly cursor: string | undefined
  readonly total: 'none' | 'estimate' | 'accurate'
  readonly summary: string | undefined
  readonly elements: readonly string[] | undefined
  /** What `handling=lenient` has ignored. */
  readonly ignored: readonly Ignored[]
}

export interface Ignored {
  /** As they stand in the query. */
  readonly name: string
  readonly value: string
  /** Why, as strict handling would say. */
  readonly text: string
}

export interface SearchOptions {
  /** `Prefer: handling=`; strict refuses unknown parameters. Absent: strict. */
  readonly handling?: 'strict' | 'lenient'
  /** Base of our own absolute references, `https://host/fhir/R4/`. */
  readonly fhirUrl?: string
  /** Search parameters of the caller's Project. */
  readonly own?: OwnParameters | undefined
}

const MAX_CONDITIONS = 200
const MAX_INCLUDES = 100

/** Steer the answer and are read elsewhere; not part of what is searched. */
const CONTROL = new Set([
  '_count',
  '_offset',
  '_cursor',
  '_sort',
  '_total',
  '_summary',
  '_elements',
  '_explain',
  '_fields',
  '_format',
  '_pretty',
  '_',
])

/** Errors: 400 as search.html and the contract say; 400 not-supported for what is not answered. */
export function parseSearch(
  type: string,
  query: URLSearchParams | string,
  options: SearchOptions = {},
): SearchRequest {
  if (!isResourceType(type)) throw badRequest(`Unknown resource type: ${type}`)
  const pairs = typeof query === 'string' ? new URLSearchParams(query) : query
  const isLenient = options.handling === 'lenient'
  const conditions = new Map<string, Criterion>()
  const includes = new Map<string, Include>()
  const ignored: Ignored[] = []
  const { own } = options
  const scope = { fhirUrl: options.fhirUrl, own, joins: 0 }
  const refuse = ({ reason }: Refusal, name: string, value: string) => {
    if (!isLenient) throw reason
    ignored.push({ name, value, text: reason.message })
  }
  const read = (name: string, value: string) => {
    if (/^_(rev)?include(:|$)/.test(name)) {
      const include = readInclude(name, value, own)
      if ('reason' in include) return refuse(include, name, value)
      includes.set(JSON.stringify(include), include)
      return
    }
    const criterion = readCriterion(type, name, value, scope)
    if (criterion === undefined) return
    if ('reason' in criterion) return refuse(criterion, name, value)
    conditions.set(JSON.stringify([name, criterion]), criterion)
    if (conditions.size > MAX_CONDITIONS) {
      throw tooCostly(`A search may have ${MAX_CONDITIONS} conditions`)
    }
  }
  for (const [name, value] of pairs) {
    if (CONTROL.has(name) || value === '' || (name === '_contained' && value === 'false')) continue
    try {
      read(name, value)
    } catch (error) {
      throw located(error, name)
    }
  }
  if (includes.size > MAX_INCLUDES) throw tooCostly(`A search may have ${MAX_INCLUDES} includes`)
  return {
    type,
    conditions: [...conditions.values()],
    includes: [...includes.values()],
    ...readPaging(type, pairs, own),
    ignored,
  }
}
