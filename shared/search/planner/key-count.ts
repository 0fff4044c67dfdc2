/** Limits the keys of searches before they are made: a short value may stand for a resource of every type. */
import { tooCostly } from '../../core/errors.ts'
import { resourceTypes, searchParameter } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import {
  type Condition,
  type Criterion,
  isCondition,
  listLeaves,
  type SearchRequest,
} from '../language/search-request.ts'

/** So many take 5 MB, and PostgreSQL seconds to look up. */
const MAX_KEYS = 100_000

const tooMany = () =>
  tooCostly('The search has too many values; a reference without a type counts once for each type')

/** Errors: 400 too-costly for a query of several types that would take long to read for each of them. */
export function requireFewValues(types: readonly string[], query: URLSearchParams): void {
  const values = sum([...query.values()], (value) => value.split(',').length)
  if (values * types.length > MAX_KEYS) throw tooMany()
}

/** Returns a check of searches that are made together. Errors: 400 too-costly for one whose keys exceed those left. */
export function createKeyLimit(own: OwnParameters | undefined): (request: SearchRequest) => void {
  let left = MAX_KEYS
  return ({ type, conditions }) => {
    const keys = sum(conditions, (criterion) => countKeys(type, criterion, own))
    if (keys > left) throw tooMany()
    left -= keys
  }
}

function countKeys(type: string, criterion: Criterion, own: OwnParameters | undefined): number {
  return sum(listLeaves(criterion), (leaf) => {
    if (isCondition(leaf)) return conditionKeys(type, leaf, own)
    return 'ends' in leaf ? sum(leaf.ends, (end) => countKeys(end.type, end.criterion, own)) : 1
  })
}

function conditionKeys(type: string, condition: Condition, own: OwnParameters | undefined): number {
  const { code, values, codes = values } = condition
  const { targets = resourceTypes, components = [] } = searchParameter(type, code, own) ?? {}
  const kinds = [condition, ...components].map((part) => part.type)
  if (!kinds.includes('reference')) return codes.length
  // A bare id may be that of a resource of each target type.
  return sum(values, (value) => (value.includes('/') ? 1 : targets.length))
}

function sum<T>(items: readonly T[], count: (item: T) => number): number {
  return items.reduce((total, item) => total + count(item), 0)
}
