/** Query string → SearchRequest, as plain data. https://hl7.org/fhir/R4/search.html */

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

/** One `name:modifier=a,b` of a query; conditions are AND-ed, values OR-ed. */
export interface Condition {
  readonly code: string
  readonly type: SearchParamType
  readonly modifier: string | undefined
  readonly values: readonly string[]
}

export interface SortRule {
  readonly code: string
  readonly descending: boolean
}

export interface SearchRequest {
  readonly type: string
  readonly conditions: readonly Condition[]
  readonly sort: readonly SortRule[]
  readonly count: number
  readonly offset: number
  readonly cursor: string | undefined
  readonly total: 'none' | 'estimate' | 'accurate'
  readonly summary: string | undefined
  readonly elements: readonly string[] | undefined
  /** Parameters that were ignored under `handling=lenient`. */
  readonly ignored: readonly string[]
}
