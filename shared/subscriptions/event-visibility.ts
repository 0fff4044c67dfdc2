/** Who is told of a change learns what the Subscription has asked of it, which may be hidden from its author. */
import { withoutPaths } from '../access/fields/paths.ts'
import type { Change, SubscriptionTerms } from '../access/subscription.ts'
import { criteriaGrant } from '../access/subscription-criteria.ts'
import { withinLimits } from '../fhirpath/custom.ts'
import { testedCodes } from '../query/parameter-paths.ts'
import type { Store } from '../store/rows/context.ts'
import { parseVersion, toVersion, type VersionRow } from '../store/rows/rows.ts'
import { lastContents } from '../store/rulings/rulings.ts'
import { hidesAny } from '../store/search/tests/grant-tests.ts'
import { EXPRESSION_MS } from './event-match.ts'

/** What a Subscription has waited for. */
export interface Waited {
  readonly terms: SubscriptionTerms
  readonly change: Change
}

/** True when its criteria read what is hidden, or its expression holds only with that. */
export async function tellsHidden(
  store: Store,
  row: VersionRow,
  hidden: readonly string[],
  { terms, change }: Waited,
): Promise<boolean> {
  if (hidden.length === 0) return false
  const { type, expression } = terms
  const own = await store.ownParameters.of(store.connection, row.project)
  const { criteria } = criteriaGrant(terms, own)
  const codes = criteria.flatMap((criterion) => testedCodes(type, criterion))
  if (hidesAny({ hidden }, type, codes, own)) return true
  if (expression === undefined) return false
  const shownOf = (one: VersionRow) => withoutPaths(parseVersion(toVersion(one)), hidden)
  const [before] = change === 'update' ? await lastContents(store, [row]) : []
  const current = shownOf(row)
  const previous = change === 'delete' ? current : before && shownOf(before)
  const values = withinLimits(() => expression(current, { previous, current }), EXPRESSION_MS)
  return values.length !== 1 || values[0] !== true
}
