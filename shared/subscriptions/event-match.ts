/**
 * Does a Subscription wait for this change? Its criteria are matched as those of a policy, by the keys
 * and ranges that the row of the resource holds, so a search and a Subscription never disagree.
 */
import { withoutPaths } from '../access/fields/paths.ts'
import { type Change, criteriaGrant, type SubscriptionTerms } from '../access/subscription.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import type { Resource } from '../fhir/resource.ts'
import { withinLimits } from '../fhirpath/custom.ts'
import { testedCodes } from '../query/parameter-paths.ts'
import type { ChangeEvent } from '../store/events/rows.ts'
import type { Watcher } from '../store/events/subscribers.ts'
import { accountsOf, indexRows } from '../store/index/index-rows.ts'
import type { Store } from '../store/rows/context.ts'
import { parseVersion, toVersion, type VersionRow } from '../store/rows/rows.ts'
import { lastContents, meeting } from '../store/rulings/rulings.ts'
import { decideInMemory, hidesAny } from '../store/search/tests/grant-tests.ts'
import { type HeldRow, heldRow } from '../store/search/tests/row-decisions.ts'

/** The parts of a change that are matched, be it made or not. */
type Matter = Pick<ChangeEvent, 'change' | 'type' | 'subject' | 'previous' | 'at'>

/** A change, read once for all that wait for it. */
export interface Candidate {
  readonly event: Matter
  readonly own: OwnParameters | undefined
  /** The resource with its platform meta. */
  readonly resource: () => Resource
  readonly previous: () => Resource | undefined
  readonly held: () => HeldRow
}

const EXPRESSION_MS = 50

export function candidateOf(
  store: Store,
  event: Matter,
  own: OwnParameters | undefined,
): Candidate {
  const { subject, previous } = event
  const resource = once(() => parseVersion(toVersion(subject)))
  return {
    event,
    own,
    resource,
    // For a deletion both are the last version.
    previous: once(() =>
      event.change === 'delete' ? resource() : previous && parseVersion(toVersion(previous)),
    ),
    held: once(() => {
      const rows = indexRows(store, subject.project, resource(), { parameters: own })
      return heldRow(subject.id, rows)
    }),
  }
}

/** Errors: what is wrong with the expression of the Subscription; what PostgreSQL could not answer. */
export async function isWaitedFor(
  store: Store,
  candidate: Candidate,
  { terms, grant }: Watcher,
): Promise<boolean> {
  const { event } = candidate
  if (terms.type !== event.type || !terms.changes.has(event.change)) return false
  if (!sharesAccount(candidate.resource, terms.accounts)) return false
  if (grant.criteria.length > 0 && !(await fulfils(store, candidate, grant))) return false
  return terms.expression === undefined || isTrue(candidate, terms.expression)
}

function sharesAccount(resource: () => Resource, accounts: readonly string[]): boolean {
  if (accounts.length === 0) return true
  const own = accountsOf(resource().meta) ?? []
  return own.some(({ reference }) => reference !== undefined && accounts.includes(reference))
}

async function fulfils(
  store: Store,
  { event, own, held }: Candidate,
  grant: Watcher['grant'],
): Promise<boolean> {
  const { subject, type } = event
  const place = { keys: store.keys, project: subject.project, type, own, units: [] }
  const decide = decideInMemory(place, grant)
  if (decide !== undefined) return decide(held())
  return (
    (await meeting(store, [grant], { project: subject.project, parameters: own, rows: [subject] }))
      .length > 0
  )
}

function isTrue(
  { resource, previous }: Candidate,
  expression: NonNullable<Watcher['terms']['expression']>,
): boolean {
  const variables = { previous: previous(), current: resource() }
  const values = withinLimits(() => expression(resource(), variables), EXPRESSION_MS)
  return values.length === 1 && values[0] === true
}

function once<T>(make: () => T): () => T {
  let made: { readonly value: T } | undefined
  return () => {
    made ??= { value: make() }
    return made.value
  }
}

/** The change that a Subscription waits for. */
export interface Waited {
  readonly terms: SubscriptionTerms
  readonly change: Change
}

/** True when its criteria read what is hidden, or its expression holds only with that. */
export async function revealsHidden(
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
