/** Write rule of Subscriptions, and the write part that records the type they watch. */

import { readDecided } from '../access/decisions/decide.ts'
import { visibleRows } from '../access/decisions/grant-predicates.ts'
import { isSame } from '../access/guarded/elements.ts'
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import { scopedAuthor } from '../access/scopes.ts'
import {
  isExemptFromPreCommit,
  readSubscription,
  requireEffect,
  SUBSCRIPTION,
  type SubscriptionTerms,
} from '../access/subscription.ts'
import { isTopicUrl } from '../access/topic-terms.ts'
import type { Outbound } from '../core/config/outbound.ts'
import { badRequest, businessRule } from '../core/errors.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import { checkTarget } from '../outbound/fetch-outside.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import type { Bind, Connection } from '../postgres/statement.ts'
import type { Admission, StoreContext, WritePart, WriteRule } from '../store/rows/context.ts'
import { makesEvents } from '../store/rows/event-rows.ts'
import type { Listed } from '../store/rows/side-rows.ts'
import { checkGuarded, checkGuardedDeletion } from '../store/write/authorize.ts'
import { codesTested } from './event-match.ts'
import { deliveryTarget } from './events.ts'
import { resolveTopic } from './topics.ts'

const MOST_ACTIVE = 1000

export function subscriptionRule(hookTargets: Outbound): WriteRule {
  return {
    type: SUBSCRIPTION,
    check: async (attempt) => void checkGuarded(attempt),
    checkDeletion: (store, principal, id) =>
      checkGuardedDeletion(store, principal, SUBSCRIPTION, id),
    admit: (admission) => admit(admission, hookTargets),
    // A Subscription acts later, with its author's rights at that time.
    resolveAuthor: scopedAuthor,
  }
}

/**
 * Returns the Subscription as stored: `requested` becomes active. Errors: 400 when it could never fire, 422 above the
 * limit.
 */
async function admit(
  { store, principal, project, before, after, own }: Admission,
  hookTargets: Outbound,
): Promise<Resource> {
  const isService = principal.membershipId === undefined
  const resolved = isService ? after : await resolveTopic(store, principal, after, own)
  const terms = readSubscription(resolved)
  const status = nextStatus(terms, before, resolved, isService)
  const subscription = status === resolved.status ? resolved : { ...resolved, status }
  if (!isService) {
    requireEffect(subscription)
    requireStored(subscription)
    requireEvents(subscription, terms)
  }
  const isOn = subscription.status === 'active' && terms.isPreCommit
  if (isOn && isExemptFromPreCommit(terms.type)) {
    const reason = `Writes of ${terms.type} run no pre-commit bot; choose another type`
    throw badRequest(reason, `${SUBSCRIPTION}.criteria`)
  }
  requireVisibleCriteria(store, principal, { project, terms, own })
  await checkEndpoint(store, principal, terms, hookTargets)
  if (isBegun(subscription) && !isBegun(before)) {
    await requirePlaces(store.connection, project, 1)
  }
  return subscription
}

/** Errors: 400 for an active Subscription of a web socket: only unstored ones notify. */
function requireStored(subscription: Resource): void {
  const { channel } = subscription
  if (!isBegun(subscription) || !isObject(channel) || channel.type !== 'websocket') return
  const reason = 'Create a web-socket Subscription by POST without If-None-Exist'
  throw badRequest(reason, `${SUBSCRIPTION}.channel.type`)
}

/** Errors: 400 for an active Subscription to a type without events, unless its bot runs before the writes. */
export function requireEvents(
  subscription: Resource,
  { type, isPreCommit }: SubscriptionTerms,
): void {
  if (!isBegun(subscription) || isPreCommit || makesEvents(type)) return
  throw badRequest(`Changes of ${type} do not create events`, `${SUBSCRIPTION}.criteria`)
}

const isBegun = (item: Resource | undefined) =>
  item?.status === 'active' || item?.status === 'requested'

/** A Subscription to a topic is `requested` until its receiver, if it is a new one, has answered a handshake. */
function nextStatus(
  { topic }: SubscriptionTerms,
  before: Resource | undefined,
  { status, channel }: Resource,
  isService: boolean,
): unknown {
  if (isService || (status !== 'requested' && status !== 'active')) return status
  if (topic === undefined) return 'active'
  const wasTopic = before?.status === 'active' && isTopicUrl(before.criteria)
  const isKnown = wasTopic && isSame(toReceiver(before.channel), toReceiver(channel))
  return isKnown ? 'active' : 'requested'
}

function toReceiver(channel: unknown) {
  return isObject(channel) ? [channel.type, channel.endpoint] : []
}

interface ShownTerms {
  readonly project: number
  readonly terms: SubscriptionTerms
  readonly own: OwnParameters | undefined
}

/** Errors: 400 for unsupported criteria, 403 for criteria on elements hidden from the caller. */
export function requireVisibleCriteria(
  store: StoreContext,
  principal: Principal,
  { project, terms, own }: ShownTerms,
): void {
  const { type } = terms
  const codes = codesTested(terms, own)
  visibleRows(store, principal, type, { interaction: 'read', project, units: [], codes })
}

interface Watch {
  readonly type: number | null
  readonly ends: Date | undefined
  readonly beatSeconds: number | undefined
  readonly beatTarget: string | undefined
  /** Target of a handshake to send. */
  readonly handshake: string | undefined
}

export const watchPart: WritePart<Watch> = {
  types: new Set([SUBSCRIPTION]),
  buildRow({ resource }) {
    const { type, hook, ends, topic } = readSubscription(resource)
    const isWaiting = resource.status === 'active' && hook !== undefined && makesEvents(type)
    const isRequested = resource.status === 'requested' && topic !== undefined
    const target = hook && deliveryTarget(hook)
    const beatSeconds = topic?.heartbeatSeconds
    return {
      type: isWaiting ? typeNumber(type) : null,
      ends,
      beatSeconds,
      beatTarget: beatSeconds === undefined ? undefined : target,
      handshake: isRequested ? target : undefined,
    }
  },
  sql: (watches, bind) => ({ name: 'watches', sql: watchSql(watches, bind) }),
  removal: {
    type: SUBSCRIPTION,
    name: 'watch',
    sql: [
      `a as (delete from active_subscription a using d
        where d.type = ${typeNumber(SUBSCRIPTION)} and a.project = d.project and a.id = d.id)`,
    ],
  },
  async beforeCommit(connection, written) {
    const active = written.filter(({ row }) => row.type !== null)
    for (const project of new Set(active.map(({ project }) => project))) {
      await requirePlaces(connection, project)
    }
  },
}

function watchSql(watches: readonly Listed<Watch>[], bind: Bind): readonly string[] {
  const numbers = bind(`{${watches.map(({ n }) => n).join(',')}}`, 'int[]')
  const types = bind(`{${watches.map(({ item }) => item.type ?? 'null').join(',')}}`, 'smallint[]')
  const ends = bind(
    watches.map(({ item }) => item.ends ?? null),
    'timestamptz[]',
  )
  const column = (value: (watch: Watch) => number | string | undefined, type: string) =>
    bind(
      watches.map(({ item }) => value(item) ?? null),
      type,
    )
  const seconds = column(({ beatSeconds }) => beatSeconds, 'int[]')
  const targets = column(({ beatTarget }) => beatTarget, 'text[]')
  const handshakes = column(({ handshake }) => handshake, 'text[]')
  return [
    `a as (insert into active_subscription as a
        (project, id, watched, ver, since, ends, beat_seconds, beat_target)
      select w.project, w.id, x.watched, w.ver, w.lu, x.ends, x.beat_seconds, x.beat_target
      from ${dialect.unnest(numbers, types, ends, seconds, targets)}
        as x(n, watched, ends, beat_seconds, beat_target) join w using (n)
      where x.watched is not null
      on conflict (project, id) do update
        set watched = excluded.watched, ver = excluded.ver, since = excluded.since,
          ends = excluded.ends, beat_seconds = excluded.beat_seconds,
          beat_target = excluded.beat_target)`,
    `ah as (insert into delivery (project, id, subscription, type, resource, ver, op, origin, target)
      select w.project, gen_random_uuid(), w.id, ${typeNumber(SUBSCRIPTION)}, w.id, w.ver, 'h', '{}', x.target
      from ${dialect.unnest(numbers, handshakes)} as x(n, target) join w using (n)
      where x.target is not null)`,
    // A changed Subscription starts with fresh state.
    `an as (update subscription_state s set failures = 0, failing_since = null, orphan_since = null,
        pauses = 0, paused_until = null
      from ${dialect.unnest(numbers, types)} as x(n, watched) join w using (n)
      where x.watched is not null and s.project = w.project and s.subscription = w.id)`,
    `ax as (delete from active_subscription a
      using ${dialect.unnest(numbers, types)} as x(n, watched) join w using (n)
      where x.watched is null and a.project = w.project and a.id = w.id)`,
  ]
}

async function checkEndpoint(
  store: StoreContext,
  principal: Principal,
  { hook }: SubscriptionTerms,
  hookTargets: Outbound,
): Promise<void> {
  if (hook === undefined || principal.membershipId === undefined) return
  const path = `${SUBSCRIPTION}.channel.endpoint`
  if (hook.bot === undefined) {
    const named = principal.declared?.hosts?.rules
    return requireTarget(hook.endpoint, { ...hookTargets, named }, path)
  }
  const isSeen =
    may(principal, 'Bot', 'read') &&
    (await readDecided(store, principal, 'Bot', { id: hook.bot, interactions: ['read'] }).then(
      (found) => found?.decisions.read !== undefined && found.row.content !== null,
    ))
  if (!isSeen) throw badRequest(`No Bot/${hook.bot} is visible`, path)
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

/** Checks the limit for the active ones and `more`. Errors: 422. */
async function requirePlaces(connection: Connection, project: number, more = 0): Promise<void> {
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
