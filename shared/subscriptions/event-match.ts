/**
 * Matches Subscriptions with changes. Criteria use the stored index keys and ranges, as policies do, so that searches
 * and Subscriptions agree. Expressions see the resource with the access of the author or the web socket's holder.
 */

import { decideContents, filterByCriteria, hiddenBy } from '../access/decisions/decide.ts'
import type { AccessDecision } from '../access/decisions/decide-in-sql.ts'
import { compileGrant } from '../access/decisions/grant-predicates.ts'
import { type IndexedRow, toIndexedRow } from '../access/decisions/match-row.ts'
import { withoutSecrets } from '../access/fields/fields.ts'
import type { Grant } from '../access/grant.ts'
import { hidesAny } from '../access/hidden.ts'
import { grantsFor, may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import {
  type ChangeKind,
  criteriaGrant,
  previousTerms,
  type SubscriptionTerms,
} from '../access/subscription.ts'
import { type OwnParameters, openOnce } from '../fhir/definitions-data.ts'
import type { Resource } from '../fhir/resource.ts'
import { withinLimits } from '../fhirpath/custom.ts'
import { testedCodes } from '../search/language/search-request.ts'
import { redactFor } from '../store/read/read.ts'
import { indexRows, metaAccounts, type StoreContext } from '../store/rows/context.ts'
import type { ChangeEvent } from '../store/rows/event-rows.ts'
import { parseVersion, toVersion, type VersionRow } from '../store/rows/rows.ts'
import type { Watcher } from '../store/rows/subscribers.ts'

/** The matched parts of a change, stored or not. */
type MatchedChange = Pick<ChangeEvent, 'change' | 'type' | 'subject' | 'previous' | 'at'>

export interface Candidate {
  readonly event: MatchedChange
  readonly own: OwnParameters | undefined
  /** Includes platform meta. */
  readonly resource: () => Resource
  readonly held: () => IndexedRow
}

const EXPRESSION_MS = 50

export function toCandidate(
  store: StoreContext,
  event: MatchedChange,
  own: OwnParameters | undefined,
): Candidate {
  const { subject } = event
  const resource = openOnce(() => parseVersion(toVersion(subject)))
  return {
    event,
    own,
    resource,
    held: openOnce(() => {
      const rows = indexRows(store, subject.project, resource(), { parameters: own })
      return toIndexedRow(subject.id, rows)
    }),
  }
}

/** True when a change matches type, interaction, accounts and criteria. Errors: those of PostgreSQL. */
export async function matchesCriteria(
  store: StoreContext,
  candidate: Candidate,
  { terms, grant }: Watcher,
): Promise<boolean> {
  const { event, own, resource } = candidate
  const { change, type } = event
  if (terms.type !== type || !terms.changes.has(change)) return false
  if (!sharesAccount(resource, terms.accounts)) return false
  if (!(await meets(store, candidate, grant))) return false
  const before = previousTerms(terms)
  if (before === undefined || change === 'create') return true
  const subject = change === 'delete' ? event.subject : event.previous
  if (subject === undefined) return false
  return await meets(
    store,
    toCandidate(store, { ...event, subject }, own),
    criteriaGrant(before, own),
  )
}

async function meets(
  store: StoreContext,
  { event, own, held }: Candidate,
  grant: Grant,
): Promise<boolean> {
  if (grant.criteria.length === 0) return true
  const { type, subject } = event
  const { project } = subject
  const scope = { keys: store.keys, project, type, own, units: [] }
  const { matches } = compileGrant(scope, grant)
  if (matches !== undefined) return matches(held())
  const met = await filterByCriteria(store, [grant], { project, parameters: own, rows: [subject] })
  return met.length > 0
}

function sharesAccount(resource: () => Resource, accounts: readonly string[]): boolean {
  if (accounts.length === 0) return true
  const own = metaAccounts(resource().meta) ?? []
  return own.some(({ reference }) => reference !== undefined && accounts.includes(reference))
}

/** A change as version rows; `previous` for an update only. */
interface ChangedRows {
  readonly change: ChangeKind
  readonly row: VersionRow
  readonly previous: VersionRow | undefined
}

/**
 * True when the viewer sees the resource, the criteria read nothing hidden from the viewer, and the expression holds
 * for the version as shown. So neither firing nor silence leaks anything. Errors: an invalid expression.
 */
export async function matchesForViewer(
  store: StoreContext,
  viewer: Principal,
  { change, row, previous }: ChangedRows,
  terms: SubscriptionTerms,
): Promise<boolean> {
  const { type, expression } = terms
  if (!may(viewer, type, 'read')) return false
  const hidesNothing = grantsFor(viewer, type, 'read')?.every((grant) => grant.hidden.length === 0)
  if (terms.topic === undefined && expression === undefined && (hidesNothing ?? true)) return true
  const rows = previous === undefined ? [row] : [row, previous]
  const [now, before] = await decideContents(store, viewer, ['read'], rows)
  if (now?.read === undefined) return false
  if (await readsHidden(store, row, hiddenBy(now.read), terms)) return false
  if (terms.topic?.previous !== undefined && previous !== undefined) {
    if (before?.read === undefined) return false
    if (await readsHidden(store, previous, hiddenBy(before.read), terms)) return false
  }
  if (expression === undefined) return true
  const shown = (version: VersionRow, decision: AccessDecision) =>
    withoutSecrets(parseVersion(redactFor(viewer, toVersion(version), hiddenBy(decision))))
  const current = shown(row, now.read)
  const earlier = previous && before?.read && shown(previous, before.read)
  const variables = { current, previous: change === 'delete' ? current : earlier }
  const values = withinLimits(() => expression(current, variables), EXPRESSION_MS)
  return values.length === 1 && values[0] === true
}

async function readsHidden(
  store: StoreContext,
  { project }: VersionRow,
  hidden: readonly string[],
  terms: SubscriptionTerms,
): Promise<boolean> {
  if (hidden.length === 0) return false
  const own = await store.ownParameters.of(store.connection, project)
  return hidesAny({ hidden }, terms.type, codesTested(terms, own), own)
}

/** Returns the search parameters that the criteria read, also of the version before a change. */
export function codesTested(
  terms: SubscriptionTerms,
  own: OwnParameters | undefined,
): readonly string[] {
  const all = [terms, previousTerms(terms)].filter((item) => item !== undefined)
  return all.flatMap((item) =>
    criteriaGrant(item, own).criteria.flatMap((criterion) => testedCodes(item.type, criterion)),
  )
}
