/** A search as plain values: what a query string, a policy's criteria and a conditional write become. */
import { COMPARTMENTS, compartmentParams } from '../../fhir/definitions.ts'
import type { OwnParameters, SearchParamType } from '../../fhir/definitions-data.ts'
import { unescapeValue } from './values.ts'

/** Why a parameter cannot be answered; `handling=lenient` ignores it then. */
export interface Refusal {
  readonly reason: Error
}

/** The context that the parameters of one search share. */
export interface CriteriaScope {
  readonly fhirUrl: string | undefined
  /** Search parameters of the caller's Project. */
  readonly own: OwnParameters | undefined
  /** Ends of joins so far: a chain over a reference to anything has one a type. */
  joins: number
}

/** One `name:modifier=a,b` of a query; values are OR-ed. */
export interface Condition {
  readonly code: string
  readonly type: SearchParamType
  /**
   * `missing`, `not`, `exact`, `contains`, `in`, `identifier` … or a resource type; from a `_filter` also
   * `ew` (ends with) and `po` (periods overlap).
   */
  readonly modifier: string | undefined
  /** Not empty, without repeats; still escaped, to be read with values.ts. */
  readonly values: readonly string[]
  /** The codes behind `:in`, `:not-in`, `:above` and `:below` of a token, once the terminology has listed them. */
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
  /** For `_list`: items that a List has marked as deleted are no members. */
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

interface Negation {
  readonly kind: 'not'
  readonly criterion: Criterion
}

export type Criterion = Condition | Join | Membership | Group | Negation

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
  /** False where nobody asks for another page. */
  readonly hasNext?: boolean
  readonly offset: number
  readonly cursor: string | undefined
  readonly total: 'none' | 'estimate' | 'accurate'
  readonly summary: string | undefined
  readonly elements: readonly string[] | undefined
  /** The parameters that `handling=lenient` ignored. */
  readonly ignored: readonly Ignored[]
}

export interface Ignored {
  /** As they stand in the query. */
  readonly name: string
  readonly value: string
  /** Why, as strict handling would say. */
  readonly text: string
}

export function isCondition(criterion: Criterion): criterion is Condition {
  return !('kind' in criterion)
}

type Leaf = Exclude<Criterion, Group | Negation>

/** The parts of a criterion that groups and negations are made of. */
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

/** True when a part of the criterion passes the test, at the ends of joins too; `type` is the type it is about. */
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

/** The criterion with each of its parts replaced; the ends of a join are left to `change`. */
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

/** True for a condition whose codes the terminology has to list. */
export function asksForCodes(leaf: Criterion): boolean {
  return isCondition(leaf) && leaf.type === 'token' && LISTING.has(leaf.modifier)
}

const LISTING: ReadonlySet<string | undefined> = new Set(['in', 'not-in', 'above', 'below'])

/** The parameters of `type` itself that a criterion distinguishes resources by. */
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

/** The parameters that put a resource of the type into a compartment; a bare id may be that of any. */
export function compartmentCodes(type: string, reference: string): readonly string[] {
  const isBare = !reference.includes('/')
  const meant = COMPARTMENTS.filter((name) => isBare || reference.startsWith(`${name}/`))
  const codes = meant.flatMap((name) => compartmentParams(name, type))
  return codes.filter((code) => code !== '{def}')
}
