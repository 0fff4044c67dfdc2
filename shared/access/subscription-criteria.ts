/** The criteria of a Subscription as those of a policy, so that both are judged by the same keys. */
import { badRequest, HttpError } from '../errors.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isCondition } from '../query/search-request.ts'
import { plainGrant } from './compile.ts'
import { parseCriteria } from './criteria.ts'
import type { Grant } from './grant.ts'
import type { SubscriptionTerms } from './subscription.ts'

const PATH = 'Subscription.criteria'
/** They shape the answer of a search, and there is none. */
const IGNORED = /^(_count|_offset|_sort|_total|_summary|_elements|_fields|_format|_pretty)=/

/** A grant that lets through what the criteria mean. Errors: 400, also for what one resource cannot tell. */
export function criteriaGrant(
  { type, query }: Pick<SubscriptionTerms, 'type' | 'query'>,
  own: OwnParameters | undefined,
): Grant {
  const pairs = query.split('&').filter((pair) => pair !== '' && !IGNORED.test(pair))
  const plain = plainGrant(type, ['read'], 'criteria')
  if (pairs.length === 0) return plain
  const criteria = readPairs(type, pairs, own)
  for (const criterion of criteria) {
    const isSingle = isCondition(criterion) || criterion.kind === 'compartment'
    const isOwnGroup = !isCondition(criterion) && criterion.kind === 'or'
    if (!isSingle && !isOwnGroup) {
      throw badRequest('criteria may not look at other resources', PATH)
    }
  }
  return { ...plain, criteria }
}

function readPairs(type: string, pairs: readonly string[], own: OwnParameters | undefined) {
  if (pairs.some((pair) => pair.startsWith('_filter'))) {
    throw badRequest('criteria may not use _filter', PATH)
  }
  try {
    const variables = { projectId: undefined, own, values: { get: () => undefined } }
    return parseCriteria(type, `${type}?${pairs.join('&')}`, variables)
  } catch (error) {
    if (error instanceof HttpError && error.status !== 400) throw error
    throw badRequest(error instanceof Error ? error.message : 'criteria cannot be read', PATH)
  }
}
