/** A Subscription on a web socket, with the login that it was bound by. */
import type { TokenClaims } from '../../shared/access/credentials/tokens.ts'
import { isAllowedFrom, type Principal } from '../../shared/access/principal.ts'
import { readSubscription, type SubscriptionTerms } from '../../shared/access/subscription.ts'
import { within } from '../../shared/identity/principals.ts'
import type { Services } from '../../shared/services.ts'
import { idOf, parseVersion, toVersion } from '../../shared/store/rows/rows.ts'
import { eventBody } from '../../shared/subscriptions/bot-event-body.ts'
import { createEvents } from '../../shared/subscriptions/events.ts'
import {
  findSocketSubscription,
  type SocketNotification,
  type SocketSubscription,
} from '../../shared/subscriptions/socket-subscriptions.ts'
import {
  createSocketSubscriptions,
  type SocketWatch,
} from '../../shared/subscriptions/store-socket-subscriptions.ts'
import { FEATURE, FEATURE_OFF } from '../../shared/subscriptions/ws-binding-token.ts'
import { eventNotification } from './messages.ts'

export interface Binding {
  readonly subscription: SocketSubscription
  readonly terms: SubscriptionTerms
  readonly watch: SocketWatch
  readonly claims: TokenClaims
  readonly address: string
  /** Notifications so far. */
  sent: number
  /** Notifications that are on their way. */
  waiting: number
  /** Settles when all before it are sent: they go out in their order. */
  last: Promise<void>
}

/** Reads the Principal that a socket is bound for; undefined when the login or its rights have ended. */
async function principalOf(
  { principals }: Services,
  { loginId, scope }: TokenClaims,
  address: string,
): Promise<Principal | undefined> {
  const session = await principals.forLogin(loginId)
  if (session === undefined) return undefined
  const { principal } = within(session, { scope, patient: session.principal.patient })
  return isAllowedFrom(principal.ipRules, address) ? principal : undefined
}

/** A text says why it cannot be bound. */
export async function bind(
  services: Services,
  claims: TokenClaims,
  subscriptionId: string,
  address: string,
): Promise<Binding | string> {
  const [principal, subscription] = await Promise.all([
    principalOf(services, claims, address),
    findSocketSubscription(services, subscriptionId),
  ])
  if (principal === undefined) return 'Token failed to validate. Check token expiry.'
  if (!principal.project.features.includes(FEATURE)) return FEATURE_OFF
  const seen =
    subscription &&
    (await services.repository
      .feature(createSocketSubscriptions)
      .seen(principal, subscription.row, ['read']))
  if (subscription === undefined || seen === undefined) {
    return `Subscription/${subscriptionId} does not exist any more`
  }
  const terms = readSubscription(parseVersion(toVersion(subscription.row)))
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

/** The text of a notification; undefined when this one may not be sent, `ended` when none may any more. */
export async function notificationFor(
  services: Services,
  binding: Binding,
  notification: SocketNotification,
): Promise<string | 'ended' | undefined> {
  const principal = await principalOf(services, binding.claims, binding.address)
  if (principal === undefined) return 'ended'
  const row = await services.repository.feature(createEvents).versionOf(notification)
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
    id: idOf(row.content),
    body,
  })
}
