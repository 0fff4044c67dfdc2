/** The messages of a web socket, as JSON text. */
import { randomUUID } from 'node:crypto'
import { issue, outcome } from '../../shared/errors.ts'
import { typeName } from '../../shared/fhir/definitions.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { SocketNotification } from '../../shared/subscriptions/socket-subscriptions.ts'

export type ClientMessage =
  | { readonly type: 'ping' }
  | { readonly type: 'bind-with-token' | 'unbind-from-token'; readonly token: string }

export const PONG = '{"type":"pong"}'

/** Undefined for anything else than what a client may say. */
export function readMessage(text: string): ClientMessage | undefined {
  const message = parsed(text)
  if (!isObject(message)) return undefined
  if (message.type === 'ping') return { type: 'ping' }
  if (message.type !== 'bind-with-token' && message.type !== 'unbind-from-token') return undefined
  const token = isObject(message.payload) ? message.payload.token : undefined
  return typeof token === 'string' ? { type: message.type, token } : undefined
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

export function refusal(text: string): string {
  return JSON.stringify(outcome(undefined, issue('error', 'invalid', text)))
}

export function handshake(subscription: string): string {
  return bundle([entry(status('handshake', subscription))])
}

/** One entry a Subscription. */
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
 * `body` is the resource as JSON text; of a deletion its last version.
 * https://hl7.org/fhir/uv/subscriptions-backport/notifications.html
 */
export function eventNotification(
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
