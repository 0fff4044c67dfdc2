/** Which search parameters the criteria of a Principal's policies name: nothing else of a content matters to them. */
import type { Rules } from '../../access/grant.ts'
import { storedParameters } from '../../fhir/definitions.ts'
import { type Criterion, isCondition } from '../../query/search-request.ts'
import type { Only } from '../index/index-plan.ts'

/** The codes in criteria that a content decides by itself. */
export function codesNamed(rules: Rules, type: string): Only {
  const known = named.get(rules) ?? new Map<string, Only>()
  named.set(rules, known)
  const found = known.get(type)
  if (found !== undefined) return found
  const codes = rules.grants
    .filter((grant) => grant.type === type || grant.type === '*')
    .flatMap(({ criteria }) => criteria.flatMap((criterion) => codesOf(type, criterion)))
  const sorted = [...new Set(codes)].sort()
  const made = { stamp: sorted.join(), codes: new Set(sorted) }
  known.set(type, made)
  return made
}

const named = new WeakMap<Rules, Map<string, Only>>()

function codesOf(type: string, criterion: Criterion): readonly string[] {
  if (isCondition(criterion)) {
    const { code } = criterion
    return code === '_compartment' ? [code] : storedParameters(type, code)
  }
  switch (criterion.kind) {
    case 'compartment':
      return ['_compartment']
    case 'not':
      return codesOf(type, criterion.criterion)
    case 'and':
    case 'or':
      return criterion.criteria.flatMap((item) => codesOf(type, item))
    case 'chain':
    case 'has':
      return []
    default:
      return criterion satisfies never
  }
}
