/** The rules of a Subscription, whatever path its write takes. */
import { may } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import {
  criteriaGrant,
  readSubscription,
  SUBSCRIPTION,
  type SubscriptionTerms,
} from '../../access/subscription.ts'
import type { Outbound } from '../../config/outbound.ts'
import { badRequest, businessRule } from '../../errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Resource } from '../../fhir/resource.ts'
import { checkTarget } from '../../platform/outbound/fetch-outside.ts'
import type { Connection } from '../../platform/postgres/statement.ts'
import { testedCodes } from '../../query/parameter-paths.ts'
import type { Store } from '../rows/context.ts'
import { readJudged } from '../rulings/rulings.ts'
import { sightOf } from '../search/tests/visible-rows.ts'
import { makesEvents, type Watch } from './rows.ts'

const MOST_ACTIVE = 1000

/**
 * The Subscription as it is stored: what is requested becomes active. Errors: 400 for what could never
 * fire as it says, 422 for one too many.
 */
export async function admitSubscription(
  store: Store,
  principal: Principal,
  project: number,
  before: Resource | undefined,
  after: Resource,
  own: OwnParameters | undefined,
): Promise<Resource> {
  const subscription = after.status === 'requested' ? { ...after, status: 'active' } : after
  const terms = readSubscription(subscription)
  requireShown(store, principal, project, terms, own)
  await checkEndpoint(store, principal, terms)
  if (subscription.status === 'active' && before?.status !== 'active') {
    await requirePlaces(store.connection, project, 1)
  }
  return subscription
}

/** Errors: 400 for criteria that nothing can be judged by, 403 for those that read what is hidden from who asks. */
export function requireShown(
  store: Store,
  principal: Principal,
  project: number,
  terms: SubscriptionTerms,
  own: OwnParameters | undefined,
): void {
  const { type } = terms
  const { criteria } = criteriaGrant(terms, own)
  const codes = criteria.flatMap((criterion) => testedCodes(type, criterion))
  sightOf(store, principal, type, 'read', project, [], codes)
}

/** Returns what the stored Subscription waits for. */
export function watchOf(subscription: Resource): Watch {
  const { type, hook, ends } = readSubscription(subscription)
  const isWaiting = subscription.status === 'active' && hook !== undefined && makesEvents(type)
  return { type: isWaiting ? typeNumber(type) : null, ends }
}

async function checkEndpoint(
  store: Store,
  principal: Principal,
  { hook }: SubscriptionTerms,
): Promise<void> {
  if (hook === undefined || principal.membershipId === undefined) return
  const path = `${SUBSCRIPTION}.channel.endpoint`
  if (hook.bot === undefined) return requireTarget(hook.endpoint, store.hookTargets, path)
  const isSeen =
    may(principal, 'Bot', 'read') &&
    (await readJudged(store, principal, 'Bot', hook.bot, ['read']).then(
      (found) => found?.rulings.read !== undefined && found.row.content !== null,
    ))
  if (!isSeen) throw badRequest(`No Bot/${hook.bot} is in sight`, path)
}

function requireTarget(endpoint: string, rules: Outbound, path: string): void {
  try {
    checkTarget(endpoint, rules)
  } catch (error) {
    throw badRequest(error instanceof Error ? error.message : 'Invalid endpoint', path)
  }
  if (rules.reach !== 'all' && !/^https:/i.test(endpoint)) {
    throw badRequest('An endpoint must be https', path)
  }
}

/** For those that are active, and so many `more`. Errors: 422. */
export async function requirePlaces(
  connection: Connection,
  project: number,
  more = 0,
): Promise<void> {
  const [row] = await connection.query<{ count: number }>({
    name: 'active-subscriptions',
    text: `select count(*)::int as count from active_subscription
      where project = $1 and until is null`,
    values: [project],
  })
  if ((row?.count ?? 0) + more > MOST_ACTIVE) {
    throw businessRule(
      `A project has at most ${MOST_ACTIVE} active Subscriptions`,
      `${SUBSCRIPTION}.status`,
    )
  }
}
