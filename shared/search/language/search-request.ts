/** Search requests as plain data, from queries, policy criteria and conditional writes. */
import { COMPARTMENTS, compartmentParams } from '../../fhir/definitions.ts'
import type { OwnParameters, SearchParamType } from '../../fhir/definitions-data.ts'
import { unescapeValue } from './values.ts'

/** Why a parameter cannot be used; `handling=lenient` then ignores it. */
export interface Refusal {
  readonly reason: Error
}

export interface CriteriaScope {
  readonly fhirUrl: string | undefined
  readonly own: OwnParameters | undefined
  /** Number of join ends so far: a chain over an untyped reference has one per type. */
  joins: number
}

/** One `name:modifier=a,b` of a query; values are OR-ed. */
export interface Condition {
  readonly code: string
  readonly type: SearchParamType
  /** A modifier or resource type; in a `_filter` also `ew` (ends with) and `po` (periods overlap). */
  readonly modifier: string | undefined
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
export interface Membership {
  readonly kind: 'compartment'
  readonly reference: string
}

export interface Group {
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

export function leavesOf(criterion: Criterion): readonly Leaf[] {
  if (isCondition(criterion)) return [criterion]
  switch (criterion.kind) {
    case 'not':
      return leavesOf(criterion.criterion)
    case 'and':
    case 'or':
      return criterion.criteria.flatMap(leavesOf)
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
  return leavesOf(criterion).some(
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
  return isCondition(leaf) && leaf.type === 'token' && LISTING.has(leaf.modifier)
}

const LISTING: ReadonlySet<string | undefined> = new Set(['in', 'not-in', 'above', 'below'])

export function testedCodes(type: string, criterion: Criterion): readonly string[] {
  return leavesOf(criterion).flatMap((leaf) => {
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
