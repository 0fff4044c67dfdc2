/** Web socket Subscriptions as unstored resources (create, read by id, delete), and their binding tokens. */
import type { Principal } from '../access/principal.ts'
import { SUBSCRIPTION } from '../access/subscription.ts'
import { toActing } from '../bots/bot.ts'
import {
  badRequest,
  businessRule,
  HttpError,
  methodNotAllowed,
  unauthorized,
  unavailable,
} from '../core/errors.ts'
import { isObject, parseReference, type Resource } from '../fhir/resource.ts'
import { actingSession } from '../identity/principals.ts'
import { createMemberLogin } from '../projects/signed-in-user.ts'
import { messageKind } from '../redis/bus.ts'
import { parametersReply } from '../request/parameters.ts'
import type { Operation } from '../request/request.ts'
import { botCallDepth } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { parseVersion, toVersion, type VersionRow } from '../store/rows/rows.ts'
import type { Deletion, Version, WriteResult } from '../store/rows/version.ts'
import type { Notification, VersionPlace } from './events.ts'
import {
  compose,
  dropSubscriptions,
  heldTexts,
  MOST_SOCKET_SUBSCRIPTIONS,
  type StoredSocketSubscription,
  storeSocketSubscription,
  unwatch,
  visibleSubscription,
} from './store-socket-subscriptions.ts'

export interface SocketSubscription extends StoredSocketSubscription {
  readonly row: VersionRow
}

export interface SocketNotification extends VersionPlace {
  readonly at: string
}

/**
 * For the sockets of the addressed Subscription. `gap`: changes may have been missed; sockets are closed, so that
 * clients bind again. `end`: the Subscription was deleted. `left`: a process has no more sockets of it; the sender counts
 * the processes that have.
 */
export type SocketMessage = SocketNotification | 'gap' | 'end' | 'left'

export const SOCKET_MESSAGES = messageKind<SocketMessage>('socket')

const MISSING = '00000000-0000-0000-0000-000000000000'

export function isOfSocket({ resourceType, channel }: Resource): boolean {
  return resourceType === SUBSCRIPTION && isObject(channel) && channel.type === 'websocket'
}

/** A super admin may name another Project in `meta.project`. Errors: 400, 403, 422 above the limit. */
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
  const row = await repository.withStore((store) =>
    compose(store, { ...principal, project }, subscription, id),
  )
  const membershipId = principal.membershipId ?? MISSING
  const text = JSON.stringify({ row, projectId, membershipId })
  const held = { id: row.id, projectId, membershipId, text }
  const full = await storeSocketSubscription(redis, held).catch(throwUnavailable)
  if (full !== undefined) {
    const text = `A ${full} has at most ${MOST_SOCKET_SUBSCRIPTIONS[full]} web-socket subscriptions`
    throw businessRule(text, `${SUBSCRIPTION}.channel.type`)
  }
  return { ...toVersion(row), outcome: 'created' }
}

/** Returns undefined when absent or not visible. */
export async function readSocketSubscription(
  services: Services,
  principal: Principal,
  id: string,
): Promise<Version | undefined> {
  const found = await findSocketSubscription(services, id)
  if (found === undefined) return undefined
  return services.repository.withStore((store) =>
    visibleSubscription(store, principal, found.row, ['read']),
  )
}

/** Clients delete and create instead of updating. Undefined when absent or not visible. Errors: 405. */
export async function rejectSocketChange(
  services: Services,
  principal: Principal,
  id: string,
): Promise<undefined> {
  const found = await readSocketSubscription(services, principal, id)
  if (found !== undefined) throw methodNotAllowed('GET, DELETE')
}

/** Undefined when absent or not visible. Errors: 403. */
export async function deleteSocketSubscription(
  services: Services,
  principal: Principal,
  id: string,
): Promise<Deletion | undefined> {
  const found = await findSocketSubscription(services, id)
  if (found === undefined) return undefined
  const seen = await services.repository.withStore((store) =>
    visibleSubscription(store, principal, found.row, ['read', 'delete']),
  )
  if (seen === undefined) return undefined
  await forgetSocketSubscriptions(services, [found], 'end')
  return { ...seen, ver: seen.ver + 1, content: undefined, membership: undefined }
}

/** For Subscriptions: `stored` acts on those in the database, `held` on those in Redis. */
export async function storedOrHeld<T extends Version>(
  stored: () => Promise<T>,
  held: () => Promise<T | undefined>,
): Promise<T> {
  try {
    return await stored()
  } catch (error) {
    const isMissing = error instanceof HttpError && error.status === 404
    const found = isMissing ? await held() : undefined
    if (found === undefined) throw error
    return found
  }
}

/** Ignores the caller's access; see `visibleSubscription`. */
export async function findSocketSubscription(
  { redis }: Pick<Services, 'redis'>,
  id: string,
): Promise<SocketSubscription | undefined> {
  const [text] = await heldTexts(redis, [id]).catch(throwUnavailable)
  return text === undefined ? undefined : parseHeld(id, text)
}

/** Sends `message` to the sockets that are still bound. Errors: 503. */
export async function forgetSocketSubscriptions(
  { redis, bus, repository }: Pick<Services, 'redis' | 'bus' | 'repository'>,
  subscriptions: readonly StoredSocketSubscription[],
  message: 'gap' | 'end',
): Promise<void> {
  const ids = subscriptions.map(({ id }) => id)
  await repository.withStore(({ connection }) => unwatch(connection, ids))
  try {
    // A process that begins to listen after the message finds no text.
    await dropSubscriptions(redis, subscriptions)
    await Promise.all(ids.map((id) => bus.publish(SOCKET_MESSAGES, message, id)))
  } catch (error) {
    throwUnavailable(error)
  }
}

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

/** Notifies processes with bound sockets; ended bindings get nothing. */
export async function publishNotifications(
  { bus }: Pick<Services, 'bus'>,
  notifications: readonly Notification[],
): Promise<void> {
  await Promise.all(
    notifications.map(({ subscription, event }) => {
      if (event === undefined) return bus.publish(SOCKET_MESSAGES, 'gap', subscription)
      const { subject, ver, change, at, project } = event
      const notification: SocketNotification = {
        project,
        type: subject.type,
        resource: subject.id,
        ver,
        change,
        at: at.toISOString(),
      }
      return bus.publish(SOCKET_MESSAGES, notification, subscription)
    }),
  )
}

function throwUnavailable(error: unknown): never {
  throw unavailable('Redis', error)
}

function parseHeld(id: string, text: string): SocketSubscription {
  const { row, ...held } = JSON.parse(text) as Omit<SocketSubscription, 'id' | 'text'>
  return { ...held, id, text, row: { ...row, lu: new Date(row.lu) } }
}

const LIFETIME_SECONDS = 3600
export const FEATURE = 'websocket-subscriptions'
export const FEATURE_OFF = 'WebSocket subscriptions not enabled for current project'

export const wsBindingToken: Operation = {
  name: 'get-ws-binding-token',
  on: [{ type: 'Subscription', level: 'instance' }],
  methods: ['GET', 'POST'],
  text: { summary: 'Get a token for a web socket', answer: 'Parameters' },
  async run({ services, principal, request, id = '' }) {
    // A run has no socket, and the token would outlive it.
    if (botCallDepth(request) > 0) throw badRequest('A bot cannot bind a web socket')
    const { isSuperAdmin, project } = principal
    if (!isSuperAdmin && !project.features.includes(FEATURE)) throw badRequest(FEATURE_OFF)
    await requireSubscription(services, principal, id)
    const { loginId, user, profile = '', scope } = await resolveHolder(services, principal)
    const actorLoginId = await resolveActor(services, principal)
    const token = await services.tokens.issue({
      loginId,
      subject: user ?? parseReference(profile)?.id ?? loginId,
      clientId: principal.clientId,
      profile,
      scope,
      certificate: principal.certificate,
      lifetimeSeconds: LIFETIME_SECONDS,
      subscriptionId: id,
      actorLoginId,
    })
    const expires = new Date(Date.now() + LIFETIME_SECONDS * 1000).toISOString()
    return parametersReply([
      ['token', 'valueString', token],
      ['expiration', 'valueDateTime', expires],
      ['subscription', 'valueString', id],
      ['websocket-url', 'valueUrl', webSocketUrl(services.config.baseUrl)],
    ])
  },
}

/** Errors: 400 for a Subscription that is absent, not visible, or of another channel. */
async function requireSubscription(
  services: Services,
  principal: Principal,
  id: string,
): Promise<void> {
  const found = await readSocketSubscription(services, principal, id)
  if (found !== undefined) return
  const reason = await services.repository.read(principal, 'Subscription', id).then(
    () => 'Its channel is not a web socket',
    (error: unknown) => {
      if (error instanceof HttpError && error.status < 500) return error.message
      throw error
    },
  )
  throw badRequest(`Error reading subscription: ${reason}`)
}

/**
 * Returns the login whose rights the token has. Creates a revocable one for credentials sent with each request, and one of
 * the member for a caller that acts for a member: the caller's own login has the rights of the caller.
 */
async function resolveHolder(
  services: Services,
  principal: Principal,
): Promise<Principal & { readonly loginId: string }> {
  const { loginId, onBehalfOf } = principal
  if (loginId !== undefined && onBehalfOf === undefined) return { ...principal, loginId }
  const session = await actingSession(services.principals, toActing(principal))
  if (session === undefined) throw unauthorized(services.config.baseUrl)
  return { ...session.principal, loginId: await createMemberLogin(services, session, 'client') }
}

/** Returns the login of a caller that acts for a member, whose end also ends the token. Creates one if needed. */
async function resolveActor(
  services: Services,
  { onBehalfOf, loginId, profile = '', project }: Principal,
): Promise<string | undefined> {
  if (onBehalfOf === undefined || loginId !== undefined) return onBehalfOf && loginId
  const session = await services.principals.forProfile(profile, project.id)
  if (session === undefined) throw unauthorized(services.config.baseUrl)
  return await createMemberLogin(services, session, 'client')
}

export const SOCKET_PATH = 'ws/subscriptions-r4'

export function webSocketUrl(baseUrl: string): string {
  return baseUrl.replace(/^http/, 'ws') + SOCKET_PATH
}
