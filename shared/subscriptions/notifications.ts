/** Notifications of Subscriptions to topics. https://hl7.org/fhir/uv/subscriptions-backport/STU1.1/notifications.html */
import { randomUUID } from 'node:crypto'
import type { Principal } from '../access/principal.ts'
import { type ChangeKind, SUBSCRIPTION } from '../access/subscription.ts'
import type { NotificationContent } from '../access/topic-terms.ts'
import type { Resource } from '../fhir/resource.ts'
import type { Services } from '../request/services.ts'
import { signedText, visibleVersion } from './events.ts'
import type { TopicEvent } from './store-topic-events.ts'

const PROFILE =
  'http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/backport-subscription'

interface Notification {
  readonly type: 'handshake' | 'heartbeat' | 'event-notification' | 'query-status' | 'query-event'
  readonly subscription: Resource
  readonly content: NotificationContent
  /** Number of the latest event. */
  readonly total: number
  readonly events: readonly NotifiedEvent[]
  readonly error?: string | undefined
}

/** An event as its receiver may see it. */
interface NotifiedEvent {
  readonly number: number
  readonly at: Date
  readonly focus: Focus | undefined
}

interface Focus {
  readonly change: ChangeKind
  readonly type: string
  readonly id: string
  /** JSON of the resource; undefined when it is not part of the content. */
  readonly text: string | undefined
}

/** Returns an event without focus if the resource is hidden from the viewer, gone, or not part of the content. */
export async function eventFor(
  services: Services,
  viewer: Principal,
  { number, at, change, row }: TopicEvent,
  content: NotificationContent,
): Promise<NotifiedEvent> {
  if (row === undefined || content === 'empty') return { number, at, focus: undefined }
  const version = await services.repository.withStore((store) => visibleVersion(store, viewer, row))
  if (version === undefined) return { number, at, focus: undefined }
  const { type, id } = version
  const hasText = content === 'full-resource' && change !== 'delete'
  const text = hasText ? await signedText(services, viewer, version, false) : undefined
  return { number, at, focus: { change, type, id, text } }
}

/** Returns the JSON of a Bundle: the status, and an entry for each focus. */
export function notificationText({ config }: Services, notification: Notification): string {
  const url = `${config.baseUrl}fhir/R4/`
  const focuses = notification.events.flatMap(({ focus }) => focus ?? [])
  const entries = [
    statusEntry(url, notification),
    ...focuses.map((focus) => focusEntry(url, focus)),
  ]
  return bundleText({ meta: { profile: [`${PROFILE}-notification-r4`] }, type: 'history' }, entries)
}

/** Returns the JSON of a Bundle with the status of each Subscription. */
export function statusesText(
  { config }: Services,
  statuses: readonly Omit<Notification, 'type' | 'events'>[],
): string {
  const url = `${config.baseUrl}fhir/R4/`
  const entries = statuses.map((status) =>
    statusEntry(url, { ...status, type: 'query-status', events: [] }),
  )
  return bundleText({ type: 'searchset', total: entries.length }, entries)
}

function bundleText(head: object, entries: readonly string[]): string {
  const text = JSON.stringify({
    resourceType: 'Bundle',
    id: randomUUID(),
    ...head,
    timestamp: new Date().toISOString(),
  })
  // FHIR has no empty lists.
  return entries.length === 0 ? text : `${text.slice(0, -1)},"entry":[${entries.join()}]}`
}

function statusEntry(url: string, notification: Notification): string {
  const { type, subscription, content, total, events, error } = notification
  const address = `${url}${SUBSCRIPTION}/${subscription.id}`
  const id = randomUUID()
  const resource = {
    resourceType: 'Parameters',
    id,
    meta: { profile: [`${PROFILE}-status-r4`] },
    parameter: [
      { name: 'subscription', valueReference: { reference: address } },
      ...(content === 'empty' ? [] : [{ name: 'topic', valueCanonical: subscription.criteria }]),
      { name: 'status', valueCode: subscription.status },
      { name: 'type', valueCode: type },
      { name: 'events-since-subscription-start', valueString: String(total) },
      ...events.map((event) => eventParameter(url, event)),
      ...(error === undefined ? [] : [{ name: 'error', valueCodeableConcept: { text: error } }]),
    ],
  }
  const called = { method: 'GET', url: `${address}/$status` }
  const isSearch = type === 'query-status'
  return JSON.stringify({
    fullUrl: `urn:uuid:${id}`,
    resource,
    ...(isSearch
      ? { search: { mode: 'match' } }
      : { request: called, response: { status: '200' } }),
  })
}

function eventParameter(url: string, { number, at, focus }: NotifiedEvent): object {
  const reference = focus && `${url}${focus.type}/${focus.id}`
  return {
    name: 'notification-event',
    part: [
      { name: 'event-number', valueString: String(number) },
      { name: 'timestamp', valueInstant: at.toISOString() },
      ...(reference === undefined ? [] : [{ name: 'focus', valueReference: { reference } }]),
    ],
  }
}

const REQUESTS = {
  create: ['POST', '201'],
  update: ['PUT', '200'],
  delete: ['DELETE', '204'],
} as const

function focusEntry(url: string, { change, type, id, text }: Focus): string {
  const [method, status] = REQUESTS[change]
  const address = change === 'create' ? type : `${type}/${id}`
  const head = JSON.stringify({ fullUrl: `${url}${type}/${id}` })
  const called = JSON.stringify({ request: { method, url: address }, response: { status } })
  const resource = text === undefined ? '' : `"resource":${text},`
  return `${head.slice(0, -1)},${resource}${called.slice(1)}`
}
