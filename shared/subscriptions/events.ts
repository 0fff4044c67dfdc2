/** Changes → pending deliveries of Subscriptions. */

import { decideContents, hiddenBy, versionsBeforeDeletion } from '../access/decisions/decide.ts'
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import {
  type ChangeKind,
  readSubscription,
  type SubscriptionTarget,
  type SubscriptionTerms,
} from '../access/subscription.ts'
import { HttpError } from '../core/errors.ts'
import { typeName } from '../fhir/definitions.ts'
import type { Resource } from '../fhir/resource.ts'
import { signAttachments } from '../request/binary/attachments.ts'
import { signBinary } from '../request/reply.ts'
import type { Services } from '../request/services.ts'
import { requireVisible } from '../store/binaries.ts'
import { redactFor } from '../store/read/read.ts'
import type { StoreContext } from '../store/rows/context.ts'
import type { ChangeEvent } from '../store/rows/event-rows.ts'
import {
  parseVersion,
  present,
  toVersion,
  type VersionRow,
  versionColumns,
} from '../store/rows/rows.ts'
import {
  type ActiveSubscription,
  readWatches,
  type Watcher,
  type WatchRow,
  watcherFrom,
} from '../store/rows/subscribers.ts'
import type { Version } from '../store/rows/version.ts'
import { type Delivery, leaseDeliveries, TAKE_LOCKS, type WorkerCapacity } from './deliveries.ts'
import { type Candidate, matchesCriteria, matchesForViewer, toCandidate } from './event-match.ts'
import { addDeliveries, type DeliveryPace, type NewDelivery } from './new-deliveries.ts'
import { deleteOutboxEvents, filedIn, lockOutboxEvents } from './outbox.ts'
import { deliveriesReceived, type Receipt } from './state.ts'

export interface MatchOptions {
  /** Returns the author, whose access decides; undefined without an active membership. */
  author(subscription: Resource, project: number): Promise<Principal | undefined>
  /** Returns the key and the debounce of a delivery to the Bot of a Subscription. */
  pace(subscription: Resource, project: number, about: PacedEvent): Promise<DeliveryPace>
  /** Reads unstored Subscriptions by row id, without ended ones; those that are missing are notified of a gap. */
  sockets(ids: readonly string[]): Promise<ReadonlyMap<string, Resource>>
  /** Notifies `sockets` before the changes are removed: a crash in between repeats a notification rather than losing it. */
  publish(notifications: readonly Notification[]): Promise<void>
  /** Called for a Subscription that cannot be matched. */
  skipped(subscription: string, error: unknown): void
  /** Called with the match of a change resent with `verbose`. */
  compared(subscription: string, event: ChangeEvent, isPending: boolean): void
}

export interface PacedEvent {
  readonly bot: string
  readonly terms: SubscriptionTerms
  readonly event: ChangeEvent
}

export interface MatchResult {
  readonly events: readonly ChangeEvent[]
  readonly deliveries: readonly NewDelivery[]
  /** For unstored Subscriptions. */
  readonly notifications: readonly Notification[]
  readonly hasMore: boolean
}

export interface Notification {
  /** Id of the Subscription. */
  readonly subscription: string
  /** Undefined after a loss of Redis: changes may have been missed. */
  readonly event: ChangeEvent | undefined
}

/** A change matched by a Subscription. */
interface AwaitedChange {
  readonly terms: SubscriptionTerms
  readonly change: ChangeKind
}

/** The version of a delivery. */
export type VersionPlace = Pick<Delivery, 'project' | 'type' | 'resource' | 'ver' | 'change'>

const NOTHING: MatchResult = { events: [], deliveries: [], notifications: [], hasMore: false }

/** Matches the next changes of the outbox. One transaction; does nothing when empty. */
export function matchEvents(
  store: StoreContext,
  count: number,
  options: MatchOptions,
): Promise<MatchResult> {
  return store.transact(async (inner) => {
    const { events, taken, hasMore } = await lockOutboxEvents(inner.connection, count)
    if (taken.length === 0) return NOTHING
    const matched = await matchTaken(inner, events, options)
    await Promise.all([
      addDeliveries(inner.connection, matched.deliveries),
      matched.notifications.length > 0 && options.publish(matched.notifications),
      deleteOutboxEvents(inner.connection, taken),
    ])
    return { events, ...matched, hasMore }
  }, [])
}

/** Settles receipts and leases due deliveries within the room. One transaction. */
export function leaseDue(
  store: StoreContext,
  room: WorkerCapacity,
  received: readonly Receipt[],
): Promise<readonly Delivery[]> {
  return store.transact(async ({ connection }) => {
    // Shares a round trip.
    const [, taken] = await Promise.all([
      deliveriesReceived(connection, received),
      room.hooks + room.bots === 0 ? [] : leaseDeliveries(connection, room),
    ])
    return taken
  }, TAKE_LOCKS)
}

/** Returns the version of a delivery, the last one for a deletion; undefined when expunged. */
export function deliveredVersion(
  store: StoreContext,
  delivery: VersionPlace,
): Promise<VersionRow | undefined> {
  const ver = delivery.ver - (delivery.change === 'delete' ? 1 : 0)
  return readVersion(store, filedIn(delivery), delivery, ver)
}

/** Returns the current Subscription; undefined when no longer active, or for a handshake no longer requested. */
export async function currentSubscription(
  store: StoreContext,
  delivery: Delivery,
): Promise<ActiveSubscription | undefined> {
  const { connection, watchers } = store
  const { project, subscription: id, terms: ver, version } = delivery
  if (delivery.notice === 'handshake') {
    const newest = await newestVersion(store, delivery)
    if (version === undefined || newest.isDeleted || newest.ver !== delivery.ver) return undefined
    const subscription = parseVersion(toVersion(version))
    return { subscription, terms: readSubscription(subscription) }
  }
  return ver === undefined ? undefined : watchers.active(connection, { project, id, ver })
}

/** The newest version of the resource of a delivery and whether it is deleted. */
export async function newestVersion(
  store: StoreContext,
  delivery: Delivery,
): Promise<{ readonly ver: number; readonly isDeleted: boolean }> {
  const row = await readVersion(store, filedIn(delivery), delivery)
  return { ver: row?.ver ?? 0, isDeleted: row === undefined || row.content === null }
}

async function matchTaken(
  inner: StoreContext,
  events: readonly ChangeEvent[],
  options: MatchOptions,
): Promise<Pick<MatchResult, 'deliveries' | 'notifications'>> {
  const watches = await readWatches(inner.connection, events)
  const sockets = await options.sockets(
    watches.filter(({ isStored }) => !isStored).map(({ id }) => id),
  )
  const deliveries: NewDelivery[] = []
  const notifications: Notification[] = watches
    .filter(({ id, isStored }) => !isStored && !sockets.has(id))
    .map(({ id }) => ({ subscription: id, event: undefined }))
  const byProject = Map.groupBy(watches, ({ project }) => project)
  for (const event of events) {
    const own = byProject.has(event.project)
      ? await inner.ownParameters.of(inner.connection, event.project)
      : undefined
    const candidate = toCandidate(inner, event, own)
    const { only, verbose = false } = event.cause.resend ?? {}
    for (const watch of byProject.get(event.project) ?? []) {
      if (only !== undefined && watch.id !== only) continue
      try {
        const watcher = await watcherAt(inner, watch, candidate, sockets)
        const isMatch =
          watcher !== undefined &&
          !watcher.terms.isPreCommit &&
          (await matchesCriteria(inner, candidate, watcher)) &&
          // The holder of a socket is checked at notification.
          (!watch.isStored || (await isVisibleMatch(inner, event, watcher, options)))
        if (verbose) options.compared(watch.id, event, isMatch)
        if (!isMatch) continue
        if (!watch.isStored) notifications.push({ subscription: watch.id, event })
        else if (watcher.terms.hook !== undefined) {
          const pace = await readPace(watcher, event, options)
          deliveries.push({
            event,
            subscription: watch.id,
            target: deliveryTarget(watcher.terms.hook),
            isTopic: watcher.terms.topic !== undefined,
            ...pace,
          })
        }
      } catch (error) {
        // A PostgreSQL failure has ended the transaction; other failures affect one Subscription.
        if (!(error instanceof HttpError) || error.status >= 500) throw error
        options.skipped(watch.id, error)
      }
    }
  }
  return { deliveries, notifications }
}

async function readPace(
  { subscription, project, terms }: Watcher,
  event: ChangeEvent,
  options: MatchOptions,
): Promise<DeliveryPace> {
  const bot = terms.hook?.bot
  return bot === undefined ? {} : await options.pace(subscription, project, { bot, terms, event })
}

/** Without an author nothing is sent; the delivery reports that. */
async function isVisibleMatch(
  inner: StoreContext,
  { change, subject, previous }: ChangeEvent,
  { subscription, project, terms, grant }: Watcher,
  { author }: MatchOptions,
): Promise<boolean> {
  // An event of a topic has a number, which shows that there was one.
  const isPlain = terms.topic === undefined && terms.expression === undefined
  if (isPlain && grant.criteria.length === 0) return true
  const viewer = await author(subscription, project)
  if (viewer === undefined) return true
  return matchesForViewer(inner, viewer, { change, row: subject, previous }, terms)
}

async function watcherAt(
  { connection, watchers }: StoreContext,
  watch: WatchRow,
  { event, own }: Candidate,
  sockets: ReadonlyMap<string, Resource>,
): Promise<Watcher | undefined> {
  if (watch.isStored) return watchers.at(connection, watch, event.at, own)
  const subscription = sockets.get(watch.id)
  return subscription && watcherFrom(watch.project, watch.id, subscription, own)
}

/**
 * Returns a version as visible to the Principal; undefined when hidden, or when the Principal cannot see that the
 * change is one `waited` for.
 */
export async function visibleVersion(
  store: StoreContext,
  principal: Principal,
  row: VersionRow,
  waited?: AwaitedChange,
): Promise<Version | undefined> {
  if (!may(principal, typeName(row.type), 'read')) return undefined
  const [decisions] = await decideContents(store, principal, ['read'], [row])
  if (decisions?.read === undefined) return undefined
  if (waited !== undefined) {
    const { terms, change } = waited
    const [previous] = change === 'update' ? await versionsBeforeDeletion(store, [row]) : []
    if (!(await matchesForViewer(store, principal, { change, row, previous }, terms)))
      return undefined
  }
  const hidden = hiddenBy(decisions.read)
  const version = redactFor(principal, toVersion(row), hidden)
  if (version.type !== 'Binary') return version
  return requireVisible(store, principal, version).catch((error: unknown) => {
    if (error instanceof HttpError && error.status === 404) return undefined
    throw error
  })
}

/** Returns the host or bot by which deliveries are counted. */
export function deliveryTarget(hook: SubscriptionTarget): string {
  return hook.bot === undefined ? new URL(hook.endpoint).host : `Bot/${hook.bot}`
}

/** Reads the latest version, or the one with a number. */
async function readVersion(
  { connection }: StoreContext,
  project: number,
  { type, resource }: Pick<Delivery, 'type' | 'resource'>,
  ver?: number,
): Promise<VersionRow | undefined> {
  const [row] = await connection.query<VersionRow>({
    name: 'event-version',
    text: `select ${versionColumns('v')} from version v
      where v.project = $1 and v.type = $2 and v.id = $3 and ($4::int is null or v.ver = $4)
      order by v.ver desc limit 1`,
    values: [project, type, resource, ver ?? null],
  })
  return row
}

/** Returns JSON text with platform meta and signed URLs; undefined when hidden from the Principal: see `visibleVersion`. */
export async function eventBody(
  services: Services,
  principal: Principal,
  row: VersionRow,
  waited?: AwaitedChange,
): Promise<string | undefined> {
  const version = await services.repository.withStore((store) =>
    visibleVersion(store, principal, row, waited),
  )
  return version && (await signedText(services, principal, version, true))
}

/** Returns JSON text with signed URLs. `extended` adds platform meta. */
export async function signedText(
  services: Services,
  principal: Principal,
  version: Version,
  extended: boolean,
): Promise<string> {
  const text = present(version, principal, extended)
  if (version.type === 'Binary') return signBinary(services, principal, version, text)
  return signAttachments(services, principal, text)
}
