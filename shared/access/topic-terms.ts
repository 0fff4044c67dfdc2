/** Terms of a Subscription to a topic. https://hl7.org/fhir/uv/subscriptions-backport/STU1.1/ */
import { badRequest } from '../core/errors.ts'
import { asArray, isObject, PLATFORM_URL, type Resource, toObjects } from '../fhir/resource.ts'

const BACKPORT = 'http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/backport-'
export const FILTER_CRITERIA = `${BACKPORT}filter-criteria`
/** Set by the service: the trigger of the topic at the time of the write, with the filters. */
const TRIGGER = `${PLATFORM_URL}subscription-topic-trigger`

export const CONTENTS = ['empty', 'id-only', 'full-resource'] as const
export type NotificationContent = (typeof CONTENTS)[number]

const PAYLOAD = 'application/fhir+json'
const LONGEST_TIMEOUT_S = 120
const SHORTEST_BEAT_S = 10
const LONGEST_BEAT_S = 86_400

export interface TopicTerms {
  /** Canonical of the topic. */
  readonly url: string
  readonly content: NotificationContent
  readonly timeoutMs: number | undefined
  /** Silence after which a heartbeat follows; undefined: none. */
  readonly heartbeatSeconds: number | undefined
  /** Query that the version before a change meets; undefined: any. */
  readonly previous: string | undefined
}

/** The trigger of a topic in the form of criteria. */
export interface Trigger {
  /** `Type?query`. */
  readonly criteria: string
  readonly changes: readonly string[]
  readonly previous: string | undefined
  readonly expression: string | undefined
}

export function isTopicUrl(criteria: unknown): criteria is string {
  return typeof criteria === 'string' && /^(https?:\/\/|urn:)/.test(criteria)
}

/** Returns undefined for a Subscription without a topic. Errors: 400 with the path of the element. */
export function readTopicTerms(subscription: Resource): TopicTerms | undefined {
  const { criteria: url, channel } = subscription
  if (!isTopicUrl(url)) return undefined
  const at = 'Subscription.channel'
  if (!isObject(channel) || channel.type !== 'rest-hook') {
    throw badRequest('A Subscription to a topic needs a channel of type rest-hook', `${at}.type`)
  }
  const custom = listExtensions(channel._type).findIndex(
    (item) => item.url === `${BACKPORT}channel-type`,
  )
  if (custom !== -1) {
    throw badRequest('Other types of channels are not supported', `${at}.type.extension[${custom}]`)
  }
  if (typeof channel.endpoint !== 'string' || !/^https?:\/\//i.test(channel.endpoint)) {
    throw badRequest('A Subscription to a topic needs the address of a receiver', `${at}.endpoint`)
  }
  if (channel.payload !== PAYLOAD) {
    throw badRequest(`The payload of a Subscription to a topic is ${PAYLOAD}`, `${at}.payload`)
  }
  readNumber(channel, 'max-count', 'valuePositiveInt', [1, Number.MAX_SAFE_INTEGER])
  const timeout = readNumber(channel, 'timeout', 'valueUnsignedInt', [1, LONGEST_TIMEOUT_S])
  const beat = readNumber(channel, 'heartbeat-period', 'valueUnsignedInt', [
    SHORTEST_BEAT_S,
    LONGEST_BEAT_S,
  ])
  return {
    url,
    content: readContent(channel),
    timeoutMs: timeout === undefined ? undefined : timeout * 1000,
    heartbeatSeconds: beat,
    previous: readTrigger(subscription)?.previous,
  }
}

function readContent(channel: Record<string, unknown>): NotificationContent {
  const path = 'Subscription.channel.payload.extension'
  const extensions = listExtensions(channel._payload)
  const index = extensions.findIndex(({ url }) => url === `${BACKPORT}payload-content`)
  const value = extensions[index]?.valueCode
  const content = CONTENTS.find((code) => code === value)
  if (content !== undefined) return content
  const text = `Set the extension ${BACKPORT}payload-content to ${CONTENTS.join(', ')}`
  throw badRequest(text, index === -1 ? path : `${path}[${index}].valueCode`)
}

function readNumber(
  channel: Record<string, unknown>,
  name: string,
  element: string,
  [least, most]: readonly [number, number],
): number | undefined {
  const extensions = listExtensions(channel)
  const index = extensions.findIndex(({ url }) => url === BACKPORT + name)
  if (index === -1) return undefined
  const value = extensions[index]?.[element]
  if (typeof value === 'number' && Number.isInteger(value) && value >= least && value <= most) {
    return value
  }
  const range = most === Number.MAX_SAFE_INTEGER ? `at least ${least}` : `from ${least} to ${most}`
  const path = `Subscription.channel.extension[${index}].${element}`
  throw badRequest(`${name} must be a whole number ${range}`, path)
}

/** Includes other values, so that an index is that of the element. */
function listExtensions(element: unknown): readonly Readonly<Record<string, unknown>>[] {
  const items = isObject(element) ? asArray(element.extension) : []
  return items.map((item) => (isObject(item) ? item : {}))
}

export function readTrigger({ extension }: Resource): Trigger | undefined {
  const found = toObjects(extension).find(({ url }) => url === TRIGGER)
  if (found === undefined) return undefined
  const parts = toObjects(found.extension)
  const texts = (name: string) =>
    parts.filter(({ url }) => url === name).map(({ valueString }) => String(valueString))
  const [criteria = ''] = texts('criteria')
  const [previous] = texts('previous')
  const [expression] = texts('expression')
  return { criteria, previous, expression, changes: texts('interaction') }
}

/** Replaces the trigger; undefined removes it. */
export function withTrigger(subscription: Resource, trigger: Trigger | undefined): Resource {
  const { extension, ...rest } = subscription
  const others = asArray(extension).filter((item) => !isObject(item) || item.url !== TRIGGER)
  if (trigger === undefined && others.length === asArray(extension).length) return subscription
  const all = trigger === undefined ? others : [...others, triggerExtension(trigger)]
  return { ...rest, ...(all.length === 0 ? {} : { extension: all }) }
}

function triggerExtension({ criteria, previous, expression, changes }: Trigger): object {
  const part = (url: string, value: string | undefined) =>
    value === undefined ? [] : [{ url, valueString: value }]
  return {
    url: TRIGGER,
    extension: [
      ...part('criteria', criteria),
      ...part('previous', previous),
      ...part('expression', expression),
      ...changes.flatMap((change) => part('interaction', change)),
    ],
  }
}
