/**
 * Web socket Subscriptions, held in Redis, are built and authorized here like stored ones. The store keeps only a row
 * while a socket is bound.
 */

import { randomUUIDv7 } from 'node:crypto'
import { decideContents, hiddenBy, needsSql } from '../access/decisions/decide.ts'
import { decideCreate } from '../access/decisions/decide-write.ts'
import { fieldsNotCreated, keep } from '../access/fields/fields.ts'
import type { Interaction } from '../access/grant.ts'
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import {
  readSubscription,
  requireEffect,
  SUBSCRIPTION,
  type SubscriptionTerms,
} from '../access/subscription.ts'
import { badRequest, forbidden } from '../core/errors.ts'
import { typeName, typeNumber } from '../fhir/definitions.ts'
import type { Resource } from '../fhir/resource.ts'
import { dialect } from '../postgres/chosen-dialect.ts'
import type { Connection } from '../postgres/statement.ts'
import type { Redis } from '../redis/redis.ts'
import { NOW, PREFIX, runScript, script } from '../redis/script.ts'
import { redactFor } from '../store/read/read.ts'
import { requireAllowed, type StoreContext } from '../store/rows/context.ts'
import { readOwnParameters } from '../store/rows/custom-parameters.ts'
import { toVersion, type VersionRow } from '../store/rows/rows.ts'
import type { Version } from '../store/rows/version.ts'
import type { WritePlace } from '../store/rows/write-rows.ts'
import { accountsGiven } from '../store/write/authorize.ts'
import { prepare, writtenRow } from '../store/write/prepare.ts'
import { requireEvents, requireVisibleCriteria } from './write-rule.ts'

export interface SocketWatch {
  readonly project: number
  readonly id: string
  readonly watched: string
}

/** Returns the version as visible to a Principal with all `interactions` on it, otherwise undefined. */
export async function visibleSubscription(
  store: StoreContext,
  principal: Principal,
  row: VersionRow,
  interactions: readonly Interaction[],
): Promise<Version | undefined> {
  const type = typeName(row.type)
  const isNear = principal.isSuperAdmin || principal.project.number === row.project
  if (!isNear || !interactions.every((item) => may(principal, type, item))) return undefined
  const [decisions] = await decideContents(store, principal, interactions, [row])
  if (!interactions.every((item) => decisions?.[item] !== undefined)) return undefined
  return redactFor(principal, toVersion(row), hiddenBy(decisions?.read))
}

export async function unwatch(connection: Connection, ids: readonly string[]): Promise<void> {
  if (ids.length === 0) return
  await connection.query({
    name: 'socket-unwatch',
    text: 'delete from active_subscription where id = any($1) and until is not null',
    values: [ids],
  })
}

/** Returns the row of a version that is never stored. Errors: 400, 403. */
export async function compose(
  store: StoreContext,
  principal: Principal,
  subscription: Resource,
  id: string = randomUUIDv7(),
): Promise<VersionRow> {
  const { resourceType: type } = subscription
  const { project } = principal
  requireAllowed(principal, type, 'create')
  if (needsSql(store, principal, type, 'create')) throw forbidden('criteria that take PostgreSQL')
  const kept = keep(subscription, undefined, fieldsNotCreated(principal, type))
  const active = kept.status === 'requested' ? { ...kept, status: 'active' } : kept
  const terms = readSubscription(active)
  requireSocketEffect(active, terms)
  const own = await readOwnParameters(
    store.ownParameters,
    store.connection,
    principal,
    project.number,
  )
  requireVisibleCriteria(store, principal, { project: project.number, terms, own })
  const place: WritePlace = {
    kind: 'insert',
    project: project.number,
    projectId: project.id,
    id,
    ver: 1,
    after: undefined,
    accounts: accountsGiven(principal, type),
    own,
  }
  const { prepared } = decideCreate(store, principal, active, (next) =>
    prepare({ store, principal, resource: next, place, stored: undefined, options: {} }),
  )
  return writtenRow(prepared, new Date())
}

/** Errors: 400 for a Subscription that would never notify; no update can repair it. */
function requireSocketEffect(subscription: Resource, terms: SubscriptionTerms): void {
  const { ends } = terms
  requireEffect(subscription)
  requireEvents(subscription, terms)
  if (subscription.status !== 'active') {
    throw badRequest('A web-socket Subscription must be active', `${SUBSCRIPTION}.status`)
  }
  if (ends !== undefined && ends <= new Date()) {
    throw badRequest('end must be in the future', `${SUBSCRIPTION}.end`)
  }
}

/** Matches changes from now on for `forMs`. One statement. */
export async function watch(
  connection: Connection,
  watches: readonly SocketWatch[],
  forMs: number,
): Promise<void> {
  if (watches.length === 0) return
  const column = <T>(value: (item: SocketWatch) => T) => watches.map(value)
  await connection.query({
    name: 'socket-watch',
    text: `insert into active_subscription (project, id, watched, ver, since, until)
      select x.*, 1, clock_timestamp(), clock_timestamp() + $4::float8 * interval '1 ms'
      from ${dialect.unnest('$1::int[]', '$2::uuid[]', '$3::smallint[]')} as x(project, id, watched) order by 2
      on conflict (project, id) do update set until = excluded.until`,
    values: [
      column(({ project }) => project),
      column(({ id }) => id),
      column(({ watched }) => typeNumber(watched)),
      forMs,
    ],
  })
}

export async function removeOldWatches(connection: Connection): Promise<void> {
  await connection.query({
    name: 'socket-watch-old',
    text: 'delete from active_subscription where until < now()',
  })
}

// Web socket Subscriptions shared by web processes and workers: Redis texts that expire unless a process with a bound
// socket renews them

const UNBOUND_MS = 300_000
/** Concurrent. */
export const MOST_SOCKET_SUBSCRIPTIONS = { member: 500, project: 10_000 } as const

export interface StoredSocketSubscription {
  readonly id: string
  readonly projectId: string
  readonly membershipId: string
  readonly text: string
}

type Refusal = keyof typeof MOST_SOCKET_SUBSCRIPTIONS

const keys = {
  text: (id: string) => `${PREFIX}:socket-subscription:${id}`,
  /** Sorted sets of ids, scored by expiry. */
  ofMember: (id: string) => `${PREFIX}:socket-subscriptions:member:${id}`,
  ofProject: (id: string) => `${PREFIX}:socket-subscriptions:project:${id}`,
} as const

/**
 * KEYS text, sets of member and Project; ARGV id, text, ms to live, limits of the sets (0 for a renewal). Returns the
 * number of the full set, from 1, or 0.
 */
const HOLD = script(`${NOW}
local expires = now + tonumber(ARGV[3])
for i = 2, 3 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now)
  local limit = tonumber(ARGV[i + 2])
  if limit > 0 and redis.call('ZCARD', KEYS[i]) >= limit then return i - 1 end
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
for i = 2, 3 do
  redis.call('ZADD', KEYS[i], expires, ARGV[1])
  redis.call('PEXPIRE', KEYS[i], ${UNBOUND_MS}, 'GT')
  if redis.call('PTTL', KEYS[i]) < 0 then redis.call('PEXPIRE', KEYS[i], ${UNBOUND_MS}) end
end
return 0`)

/** Returns undefined on success, otherwise the exceeded limit. */
export async function storeSocketSubscription(
  redis: Redis,
  held: StoredSocketSubscription,
): Promise<Refusal | undefined> {
  const { member, project } = MOST_SOCKET_SUBSCRIPTIONS
  const full = await hold(redis, held, UNBOUND_MS, [member, project])
  return full === 0 ? undefined : full === 1 ? 'member' : 'project'
}

/** Restores Subscriptions lost by Redis, too. */
export async function renewSubscriptions(
  redis: Redis,
  held: readonly StoredSocketSubscription[],
  forMs: number,
): Promise<void> {
  await Promise.all(held.map((item) => hold(redis, item, forMs, [0, 0])))
}

async function hold(
  redis: Redis,
  { id, projectId, membershipId, text }: StoredSocketSubscription,
  forMs: number,
  limits: readonly [number, number],
): Promise<number> {
  const names = [keys.text(id), keys.ofMember(membershipId), keys.ofProject(projectId)]
  return Number(await runScript(redis, HOLD, names, [id, text, forMs, ...limits]))
}

/** In the order requested; undefined for missing ones. */
export async function heldTexts(
  redis: Redis,
  ids: readonly string[],
): Promise<readonly (string | undefined)[]> {
  if (ids.length === 0) return []
  const texts = await redis.mget(ids.map(keys.text))
  return texts.map((text) => text ?? undefined)
}

export async function dropSubscriptions(
  redis: Redis,
  held: readonly Omit<StoredSocketSubscription, 'text'>[],
): Promise<void> {
  await Promise.all(
    held.flatMap(({ id, projectId, membershipId }) => [
      redis.unlink(keys.text(id)),
      redis.zrem(keys.ofMember(membershipId), id),
      redis.zrem(keys.ofProject(projectId), id),
    ]),
  )
}
