/** A Subscription bound to a web socket, and the login that bound it. */

import { randomUUID } from 'node:crypto'
import type { TokenClaims } from '../../shared/access/credentials/tokens.ts'
import type { Principal } from '../../shared/access/principal.ts'
import { readSubscription, type SubscriptionTerms } from '../../shared/access/subscription.ts'
import { issue, outcome } from '../../shared/core/errors.ts'
import { typeName } from '../../shared/fhir/definitions.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import { narrowSession } from '../../shared/identity/principals.ts'
import type { Services } from '../../shared/request/services.ts'
import { contentId, parseVersion, toVersion } from '../../shared/store/rows/rows.ts'
import { deliveredVersion, eventBody } from '../../shared/subscriptions/events.ts'
import {
  FEATURE,
  FEATURE_OFF,
  findSocketSubscription,
  type SocketNotification,
  type SocketSubscription,
} from '../../shared/subscriptions/socket-subscriptions.ts'
import {
  type SocketWatch,
  visibleSubscription,
} from '../../shared/subscriptions/store-socket-subscriptions.ts'
import { parseMessage } from '../http/web-sockets.ts'

export interface Binding {
  readonly subscription: SocketSubscription
  readonly terms: SubscriptionTerms
  readonly watch: SocketWatch
  readonly claims: TokenClaims
  readonly address: string
  sent: number
  waiting: number
  /** Settles after all earlier ones are sent, which keeps their order. */
  last: Promise<void>
}

/** Returns the Principal of a binding; undefined when its login, or that of the actor, or its rights have ended. */
async function resolveBoundPrincipal(
  { principals }: Services,
  { loginId, actorLoginId, scope }: TokenClaims,
  address: string,
): Promise<Principal | undefined> {
  const [session, actor] = await Promise.all([
    principals.forLogin(loginId),
    actorLoginId === undefined ? undefined : principals.forLogin(actorLoginId),
  ])
  if (session === undefined) return undefined
  if (actorLoginId !== undefined && actor?.principal.isProjectAdmin !== true) return undefined
  const { principal } = narrowSession(session, { scope, patient: session.principal.patient })
  return principal.allowsAddress?.(address) === false ? undefined : principal
}

/** Returns the binding, or a text with the reason for rejecting it. */
export async function bindSubscription(
  services: Services,
  claims: TokenClaims,
  subscriptionId: string,
  address: string,
): Promise<Binding | string> {
  const [principal, subscription] = await Promise.all([
    resolveBoundPrincipal(services, claims, address),
    findSocketSubscription(services, subscriptionId),
  ])
  if (principal === undefined) return 'Token failed to validate. Check token expiry.'
  const { isSuperAdmin, project } = principal
  if (!isSuperAdmin && !project.features.includes(FEATURE)) return FEATURE_OFF
  const seen =
    subscription &&
    (await services.repository.withStore((store) =>
      visibleSubscription(store, principal, subscription.row, ['read']),
    ))
  if (subscription === undefined || seen === undefined) {
    return `Subscription/${subscriptionId} does not exist any more`
  }
  const terms = readSubscription(parseVersion(toVersion(subscription.row)))
  if (hasEnded(terms, new Date())) return `Subscription/${subscriptionId} has ended`
  const watch = { project: subscription.row.project, id: subscriptionId, watched: terms.type }
  return {
    subscription,
    terms,
    watch,
    claims,
    address,
    sent: 0,
    waiting: 0,
    last: Promise.resolve(),
  }
}

function hasEnded({ ends }: SubscriptionTerms, at: Date): boolean {
  return ends !== undefined && ends <= at
}

/** Returns the text of a notification; undefined if it may not be sent, `ended` if none may be sent any more. */
export async function notificationFor(
  services: Services,
  binding: Binding,
  notification: SocketNotification,
): Promise<string | 'ended' | undefined> {
  // Messages are addressed by the id alone, which a Subscription of another Project may have too.
  if (notification.project !== binding.subscription.row.project) return undefined
  if (hasEnded(binding.terms, new Date(notification.at))) return 'ended'
  const principal = await resolveBoundPrincipal(services, binding.claims, binding.address)
  if (principal === undefined) return 'ended'
  const row = await services.repository.withStore((store) => deliveredVersion(store, notification))
  if (row === undefined || row.content === null) return undefined
  const waited = { terms: binding.terms, change: notification.change }
  const body = await eventBody(services, principal, row, waited)
  if (body === undefined) return undefined
  binding.sent += 1
  const { id } = binding.subscription
  const fhirUrl = `${services.config.baseUrl}fhir/R4/`
  return eventNotification(fhirUrl, id, {
    eventNumber: binding.sent,
    notification,
    id: contentId(row.content),
    body,
  })
}

// The messages of a web socket, as JSON text.

export type ClientMessage =
  | { readonly type: 'ping' }
  | { readonly type: 'bind-with-token' | 'unbind-from-token'; readonly token: string }

export const PONG = '{"type":"pong"}'

/** Returns undefined for invalid messages. */
export function readMessage(text: string): ClientMessage | undefined {
  const message = parseMessage(text)
  if (!isObject(message)) return undefined
  if (message.type === 'ping') return { type: 'ping' }
  if (message.type !== 'bind-with-token' && message.type !== 'unbind-from-token') return undefined
  const token = isObject(message.payload) ? message.payload.token : undefined
  return typeof token === 'string' ? { type: message.type, token } : undefined
}

export function bindErrorMessage(text: string): string {
  return JSON.stringify(outcome(undefined, issue('error', 'invalid', text)))
}

export function handshake(subscription: string): string {
  return bundle([entry(status('handshake', subscription))])
}

export function heartbeat(subscriptions: readonly string[]): string {
  return bundle(subscriptions.map((id) => entry(status('heartbeat', id))))
}

interface NotifiedEvent {
  readonly eventNumber: number
  readonly notification: SocketNotification
  readonly id: string
  readonly body: string
}

/**
 * `body` is the resource as JSON text, for a deletion its last version.
 * https://hl7.org/fhir/uv/subscriptions-backport/notifications.html
 */
function eventNotification(
  fhirUrl: string,
  subscription: string,
  { eventNumber, notification, id, body }: NotifiedEvent,
): string {
  const reference = `${typeName(notification.type)}/${id}`
  const notificationEvent = [
    {
      eventNumber: String(eventNumber),
      timestamp: notification.at,
      focus: { reference, display: reference },
    },
  ]
  const fullUrl = fhirUrl + reference
  const request =
    notification.change === 'delete'
      ? `,"request":${JSON.stringify({ method: 'DELETE', url: reference })}`
      : ''
  return bundle([
    entry({ ...status('event-notification', subscription), notificationEvent }),
    `{"fullUrl":${JSON.stringify(fullUrl)},"resource":${body}${request}}`,
  ])
}

function status(type: 'handshake' | 'heartbeat' | 'event-notification', subscription: string) {
  return {
    resourceType: 'SubscriptionStatus',
    id: randomUUID(),
    status: 'active',
    type,
    subscription: { reference: `Subscription/${subscription}` },
  }
}

function entry(resource: object): string {
  return `{"resource":${JSON.stringify(resource)}}`
}

function bundle(entries: readonly string[]): string {
  const head = {
    resourceType: 'Bundle',
    id: randomUUID(),
    type: 'history',
    timestamp: new Date().toISOString(),
  }
  return `${JSON.stringify(head).slice(0, -1)},"entry":[${entries.join(',')}]}`
}
