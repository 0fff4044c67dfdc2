/** Search requests as plain data, from queries, policy criteria and conditional writes. */
import { COMPARTMENTS, compartmentParams } from '../../fhir/definitions.ts'
import type { OwnParameters, SearchParamType } from '../../fhir/definitions-data.ts'
import { unescapeValue } from './values.ts'

/** Longer chains of references are 400. */
export const MAX_LINKS = 3

/** Why a parameter cannot be used; `handling=lenient` then ignores it. */
export interface Refusal {
  readonly reason: Error
}

export interface CriteriaScope {
  readonly fhirUrls: readonly string[]
  readonly own: OwnParameters | undefined
  /** Number of join ends so far: a chain over an untyped reference has one per type. */
  joins: number
  /** Number of types that were tried as ends of chains so far. */
  tried: number
}

/**
 * The modifiers of each parameter type; a reference has resource types as well. The compiler reports the functions that
 * must handle a new one, except `TEXT_MODIFIERS` and `checkModifier` (criteria.ts), `FILTER_OPERATORS` (filter.ts),
 * `CODE_LIST_MODIFIERS` (below), `FROM_VALUE_SETS` (rest/codes.ts), `negated` (predicates/compile.ts) and `keysMatcher`
 * (access/decisions/match-row.ts).
 */
export const MODIFIERS = {
  token: ['not', 'missing', 'text', 'of-type', 'contains', 'in', 'not-in', 'above', 'below'],
  reference: ['identifier', 'not', 'missing', 'above', 'below'],
  string: ['exact', 'contains', 'text', 'not', 'missing'],
  date: ['missing'],
  number: ['missing'],
  quantity: ['missing'],
  uri: ['above', 'below', 'contains', 'missing'],
  composite: [],
  special: [],
} as const satisfies Readonly<Record<SearchParamType, readonly string[]>>

/** Modifiers without a name in queries: `ew` (ends with) and `po` (periods overlap) of a `_filter`. */
interface OtherModifiers extends Readonly<Record<SearchParamType, string>> {
  readonly token: never
  readonly reference: ResourceTypeModifier
  readonly string: 'ew'
  readonly date: 'po'
  readonly number: never
  readonly quantity: never
  readonly uri: never
  readonly composite: never
  readonly special: never
}

type Capital =
  | Uppercase<'a' | 'b' | 'c' | 'd' | 'e' | 'f' | 'g' | 'h' | 'i' | 'j' | 'k' | 'l' | 'm'>
  | Uppercase<'n' | 'o' | 'p' | 'q' | 'r' | 's' | 't' | 'u' | 'v' | 'w' | 'x' | 'y' | 'z'>
export type ResourceTypeModifier = `${Capital}${string}`

/** One `name:modifier=a,b` of a query; values are OR-ed. */
export type Condition = { readonly [T in SearchParamType]: ConditionOf<T> }[SearchParamType]

/** Its modifier is a union, so that no function that compiles one can forget a modifier. */
export interface ConditionOf<T extends SearchParamType> {
  readonly code: string
  readonly type: T
  readonly modifier: (typeof MODIFIERS)[T][number] | OtherModifiers[T] | undefined
  /** Not empty, without duplicates, still escaped; parse with values.ts. */
  readonly values: readonly string[]
  /** Expanded codes of `:in`, `:not-in`, `:above` and `:below` of a token. */
  readonly codes?: readonly ListedCode[]
}

export interface ListedCode {
  readonly system: string
  readonly code: string
}

/** A criterion on resources at the other end of a reference. https://hl7.org/fhir/R4/search.html#chaining */
export interface Join {
  /** `chain`: `code` of the searched resource refers to them; `has`: their `code` refers to the searched resource. */
  readonly kind: 'chain' | 'has'
  readonly code: string
  readonly ends: readonly JoinEnd[]
  /** For `_list`: excludes items marked as deleted. */
  readonly isList?: true
}

export interface JoinEnd {
  readonly type: string
  readonly criterion: Criterion
}

/** Membership in a standard compartment. https://hl7.org/fhir/R4/compartmentdefinition.html */
interface Membership {
  readonly kind: 'compartment'
  readonly reference: string
}

interface Group {
  readonly kind: 'and' | 'or'
  readonly criteria: readonly Criterion[]
}

interface Negation {
  readonly kind: 'not'
  readonly criterion: Criterion
}

export type Criterion = Condition | Join | Membership | Group | Negation

/** One `_include` or `_revinclude`. https://hl7.org/fhir/R4/search.html#revinclude */
export interface Include {
  readonly kind: 'include' | 'revinclude'
  /** Also follows included resources. */
  readonly iterate: boolean
  /** Type of the referring resource; any when undefined. */
  readonly type: string | undefined
  /** Every reference parameter when undefined. */
  readonly code: string | undefined
  /** Target type; any when undefined. */
  readonly target: string | undefined
}

export interface SortRule {
  readonly code: string
  readonly descending: boolean
}

export interface SearchRequest {
  readonly type: string
  readonly conditions: readonly Criterion[]
  readonly includes: readonly Include[]
  readonly sort: readonly SortRule[]
  readonly count: number
  /** False when no next page is needed. */
  readonly hasNext?: boolean
  readonly offset: number
  readonly cursor: string | undefined
  readonly total: 'none' | 'estimate' | 'accurate'
  readonly summary: string | undefined
  readonly elements: readonly string[] | undefined
  readonly ignored: readonly Ignored[]
}

export interface Ignored {
  readonly name: string
  readonly value: string
  readonly text: string
}

export function isCondition(criterion: Criterion): criterion is Condition {
  return !('kind' in criterion)
}

type Leaf = Exclude<Criterion, Group | Negation>

export function listLeaves(criterion: Criterion): readonly Leaf[] {
  if (isCondition(criterion)) return [criterion]
  switch (criterion.kind) {
    case 'not':
      return listLeaves(criterion.criterion)
    case 'and':
    case 'or':
      return criterion.criteria.flatMap(listLeaves)
    default:
      return [criterion]
  }
}

/** True when a leaf passes the test, including leaves at the ends of joins; `type` is the leaf's resource type. */
export function someLeaf(
  type: string,
  criterion: Criterion,
  test: (leaf: Leaf, type: string) => boolean,
): boolean {
  return listLeaves(criterion).some(
    (leaf) =>
      test(leaf, type) ||
      ('ends' in leaf && leaf.ends.some((end) => someLeaf(end.type, end.criterion, test))),
  )
}

/** Replaces each leaf; `change` handles the ends of joins. */
export async function mapLeaves(
  criterion: Criterion,
  change: (leaf: Leaf) => Promise<Criterion>,
): Promise<Criterion> {
  if (isCondition(criterion)) return change(criterion)
  switch (criterion.kind) {
    case 'not':
      return { ...criterion, criterion: await mapLeaves(criterion.criterion, change) }
    case 'and':
    case 'or': {
      const criteria = criterion.criteria.map((item) => mapLeaves(item, change))
      return { ...criterion, criteria: await Promise.all(criteria) }
    }
    default:
      return change(criterion)
  }
}

/** True for a condition whose codes must be expanded by the terminology service. */
export function asksForCodes(leaf: Criterion): boolean {
  return isCondition(leaf) && leaf.type === 'token' && CODE_LIST_MODIFIERS.has(leaf.modifier)
}

export const CODE_LIST_MODIFIERS: ReadonlySet<string | undefined> = new Set([
  'in',
  'not-in',
  'above',
  'below',
])

export function testedCodes(type: string, criterion: Criterion): readonly string[] {
  return listLeaves(criterion).flatMap((leaf) => {
    if (isCondition(leaf)) {
      if (leaf.code !== '_compartment') return [leaf.code]
      return leaf.values.flatMap((value) => compartmentCodes(type, unescapeValue(value)))
    }
    if (leaf.kind === 'compartment') return compartmentCodes(type, leaf.reference)
    return leaf.kind === 'chain' ? [leaf.code] : []
  })
}

/** Parameters that put a resource of the type into a compartment; a bare id may belong to any. */
export function compartmentCodes(type: string, reference: string): readonly string[] {
  const isBare = !reference.includes('/')
  const meant = COMPARTMENTS.filter((name) => isBare || reference.startsWith(`${name}/`))
  const codes = meant.flatMap((name) => compartmentParams(name, type))
  return codes.filter((code) => code !== '{def}')
}

/** Parameters available in Projects with the setting `fullTextSearch`. */
export const WORDS: readonly string[] = ['_content', '_text']

export const isOfWords = (code: string): boolean => WORDS.includes(code)
