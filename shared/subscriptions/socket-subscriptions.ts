/** Subscriptions of web sockets as resources: created, read by id and deleted, and never stored. */

import type { Principal } from '../access/principal.ts'
import { SUBSCRIPTION } from '../access/subscription.ts'
import { badRequest, businessRule, HttpError, methodNotAllowed, unavailable } from '../errors.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { parseVersion, toVersion, type VersionRow } from '../store/rows/rows.ts'
import type { Deletion, Version, WriteResult } from '../store/rows/version.ts'
import type { Notification, VersionPlace } from './events.ts'
import {
  createSocketSubscriptions,
  dropSubscriptions,
  GAP,
  type HeldSubscription,
  heldTexts,
  holdSubscription,
  MOST_SOCKET_SUBSCRIPTIONS,
  socketChannel,
} from './store-socket-subscriptions.ts'

/** One as it is held, with the row that it would be. */
export interface SocketSubscription extends HeldSubscription {
  readonly row: VersionRow
}

/** A notification to a socket: which version of what. */
export interface SocketNotification extends VersionPlace {
  /** Instant of the change. */
  readonly at: string
}

const MISSING = '00000000-0000-0000-0000-000000000000'

export function isOfSocket({ resourceType, channel }: Resource): boolean {
  return resourceType === SUBSCRIPTION && isObject(channel) && channel.type === 'websocket'
}

/** A super admin may name another Project in `meta.project`. Errors: 400, 403, 422 for one too many. */
export async function createSocketSubscription(
  { repository, redis, principals }: Services,
  principal: Principal,
  subscription: Resource,
  id: string | undefined,
): Promise<WriteResult> {
  const projectId =
    (principal.isSuperAdmin ? subscription.meta?.project : undefined) ?? principal.project.id
  const isHere = projectId === principal.project.id
  const project = isHere ? principal.project : await principals.project(projectId)
  if (project === undefined) {
    throw badRequest('No such Project', `${SUBSCRIPTION}.meta.project`)
  }
  const row = await repository
    .feature(createSocketSubscriptions)
    .compose({ ...principal, project }, subscription, id)
  const membershipId = principal.membershipId ?? MISSING
  const text = JSON.stringify({ row, projectId, membershipId })
  const held = { id: row.id, projectId, membershipId, text }
  const full = await holdSubscription(redis, held).catch(away)
  if (full !== undefined) {
    const text = `A ${full} has at most ${MOST_SOCKET_SUBSCRIPTIONS[full]} web-socket subscriptions`
    throw businessRule(text, `${SUBSCRIPTION}.channel.type`)
  }
  return { ...toVersion(row), outcome: 'created' }
}

/** Undefined when there is none, or none visible. */
export async function readSocketSubscription(
  services: Services,
  principal: Principal,
  id: string,
): Promise<Version | undefined> {
  const found = await findSocketSubscription(services, id)
  return (
    found &&
    services.repository.feature(createSocketSubscriptions).seen(principal, found.row, ['read'])
  )
}

/** It is deleted and another one made. Undefined as above. Errors: 405. */
export async function refuseSocketChange(
  services: Services,
  principal: Principal,
  id: string,
): Promise<undefined> {
  const found = await readSocketSubscription(services, principal, id)
  if (found !== undefined) throw methodNotAllowed('GET, DELETE')
}

/** Undefined as above. Errors: 403. */
export async function deleteSocketSubscription(
  services: Services,
  principal: Principal,
  id: string,
): Promise<Deletion | undefined> {
  const found = await findSocketSubscription(services, id)
  const sockets = services.repository.feature(createSocketSubscriptions)
  const seen = found && (await sockets.seen(principal, found.row, ['read', 'delete']))
  if (found === undefined || seen === undefined) return undefined
  await forgetSocketSubscriptions(services, [found])
  return { ...seen, ver: seen.ver + 1, content: undefined, membership: undefined }
}

/** `stored` finds what is stored; for a Subscription that is not `held` is asked. */
export function storedOrHeld<T extends Version>(
  type: string,
  stored: () => Promise<T>,
  held: () => Promise<T | undefined>,
): Promise<T> {
  return type === SUBSCRIPTION ? storedOr(stored, held) : stored()
}

async function storedOr<T extends Version>(
  stored: () => Promise<T>,
  held: () => Promise<T | undefined>,
): Promise<T> {
  try {
    return await stored()
  } catch (error) {
    if (!(error instanceof HttpError) || error.status !== 404) throw error
    const found = await held()
    if (found === undefined) throw error
    return found
  }
}

/** Whoever asks; see `sockets.seen`. */
export async function findSocketSubscription(
  { redis }: Pick<Services, 'redis'>,
  id: string,
): Promise<SocketSubscription | undefined> {
  const [text] = await heldTexts(redis, [id]).catch(away)
  return text === undefined ? undefined : parseHeld(id, text)
}

/** Ends them, wherever they are bound. */
export async function forgetSocketSubscriptions(
  { redis, repository }: Pick<Services, 'redis' | 'repository'>,
  subscriptions: readonly HeldSubscription[],
): Promise<void> {
  await repository.feature(createSocketSubscriptions).unwatch(subscriptions.map(({ id }) => id))
  await dropSubscriptions(redis, subscriptions).catch(away)
}

/** Reads the Subscriptions to match, by id; for the worker. */
export async function socketSubscriptions(
  { redis }: Pick<Services, 'redis'>,
  ids: readonly string[],
): Promise<ReadonlyMap<string, Resource>> {
  const texts = await heldTexts(redis, ids)
  return new Map(
    ids.flatMap((id, i) => {
      const text = texts[i]
      if (text === undefined) return []
      return [[id, parseVersion(toVersion(parseHeld(id, text).row))] as const]
    }),
  )
}

/** Notifies the processes with bound sockets; ended bindings get nothing. */
export async function publishNotifications(
  { redis }: Pick<Services, 'redis'>,
  notifications: readonly Notification[],
): Promise<void> {
  await Promise.all(
    notifications.map(({ subscription, event }) => {
      if (event === undefined) return redis.publish(socketChannel(subscription), GAP)
      const { subject, ver, change, at, project } = event
      const notification: SocketNotification = {
        project,
        type: subject.type,
        resource: subject.id,
        ver,
        change,
        at: at.toISOString(),
      }
      return redis.publish(socketChannel(subscription), JSON.stringify(notification))
    }),
  )
}

function away(error: unknown): never {
  throw unavailable('Redis', error)
}

function parseHeld(id: string, text: string): SocketSubscription {
  // Written by `createSocketSubscription`.
  const { row, ...held } = JSON.parse(text) as Omit<SocketSubscription, 'id' | 'text'>
  return { ...held, id, text, row: { ...row, lu: new Date(row.lu) } }
}
