/** Parses a Subscription. https://hl7.org/fhir/R4/subscription.html */

import { badRequest, HttpError, notSupported } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import { asArray, isObject, PLATFORM_URL, parseReference, type Resource } from '../fhir/resource.ts'
import { compileTenant } from '../fhirpath/custom.ts'
import type { CompiledPath } from '../fhirpath/path.ts'
import { isCondition } from '../search/language/search-request.ts'
import { parseCriteria } from './criteria.ts'
import { type Grant, plainGrant } from './grant.ts'
import { REGISTRY_TYPES } from './policy.ts'
import { readTopicTerms, readTrigger, type TopicTerms, type Trigger } from './topic-terms.ts'

export const SUBSCRIPTION = 'Subscription'

export const CHANGES = ['create', 'update', 'delete'] as const
export type ChangeKind = (typeof CHANGES)[number]

/** Columns hold a change by its first letter. */
export const CHANGES_BY_LETTER = { c: 'create', u: 'update', d: 'delete' } as const
export const CHANGE_LETTERS = { create: 'c', update: 'u', delete: 'd' } as const

/** An AuditEvent as a resource, or as a line of the log. */
type AuditDestination = 'resource' | 'log'

export interface SubscriptionTarget {
  /** A URL, or `Bot/<id>`. */
  readonly endpoint: string
  readonly bot: string | undefined
  readonly headers: readonly (readonly [name: string, value: string])[]
}

export interface SubscriptionTerms {
  readonly type: string
  /** Empty: every resource of the type. */
  readonly query: string
  readonly changes: ReadonlySet<ChangeKind>
  /** Fires only for exactly `true`; see `%previous` and `%current`. */
  readonly expression: CompiledPath | undefined
  readonly attempts: number
  /** Status codes that count as success, bounds included. */
  readonly success: readonly (readonly [low: number, high: number])[]
  readonly secret: string | undefined
  /** Where the AuditEvents of its attempts go. */
  readonly audit: ReadonlySet<AuditDestination>
  /** Undefined for channels that never fire, and for a hook without an endpoint. */
  readonly hook: SubscriptionTarget | undefined
  /** The resource must share one of these references; empty: any resource. */
  readonly accounts: readonly string[]
  /** Its bot is called before a change, and is not notified of it afterwards. */
  readonly isPreCommit: boolean
  /** Changes after this time do not fire. */
  readonly ends: Date | undefined
  /** Undefined without a topic; otherwise the trigger of the topic has type, query, changes and expression. */
  readonly topic: TopicTerms | undefined
}

export const SECRETS: ReadonlySet<unknown> = new Set([
  'https://www.medplum.com/fhir/StructureDefinition/subscription-secret',
  'https://www.medplum.com/fhir/StructureDefinition-subscriptionSecret',
])
const PRE_COMMIT = 'pre-commit-bot'
/** Writes of these types run no pre-commit bots, so that administrators can always repair a Project. */
const EXEMPT_FROM_PRE_COMMIT: ReadonlySet<string> = new Set([
  'AccessPolicy',
  'ClientApplication',
  'Bot',
  'Subscription',
])
const MOST_ATTEMPTS = 18
const ATTEMPTS = 4
const SUCCESS_CODES = 'subscription-success-codes'
const SUCCESS = [[200, 399]] as const
/** Headers that the HTTP connection sets. */
const REFUSED_HEADERS = new Set(['host', 'content-length', 'connection', 'transfer-encoding'])
const HEADER_NAME = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/
const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/

/** Errors: 400 for the first unreadable element. */
export function readSubscription(subscription: Resource): SubscriptionTerms {
  const topic = readTopicTerms(subscription)
  const trigger = topic && readTrigger(subscription)
  const own = typeof subscription.criteria === 'string' ? subscription.criteria : ''
  const criteria = trigger?.criteria ?? own
  const at = criteria.indexOf('?')
  const type = at === -1 ? criteria : criteria.slice(0, at)
  if (!isResourceType(type)) {
    throw badRequest(
      `criteria must begin with a resource type, not "${type}"`,
      'Subscription.criteria',
    )
  }
  const hook = readHook(subscription.channel)
  return {
    type,
    query: at === -1 ? '' : criteria.slice(at + 1),
    changes: trigger ? new Set(trigger.changes.filter(isChange)) : readChanges(subscription),
    expression: trigger ? triggerExpression(trigger) : readExpression(subscription),
    attempts: readAttempts(subscription),
    success: readSuccess(subscription),
    secret: readSecret(subscription),
    audit: readAudit(subscription),
    hook,
    isPreCommit: hook?.bot !== undefined && readPreCommit(subscription),
    accounts: accountReferences(subscription),
    ends: parseEnd(subscription),
    topic,
  }
}

const SENT_TYPES = new Set(['application/fhir+json', 'application/json'])

/**
 * Errors: 400 for an active Subscription that could not notify as its elements ask. Those stored by earlier releases may
 * have such elements, and are read by `readSubscription`.
 */
export function requireEffect(subscription: Resource): void {
  const { channel, status } = subscription
  if (!isObject(channel) || (status !== 'active' && status !== 'requested')) return
  const { type, endpoint, payload } = channel
  if (type !== 'rest-hook' && type !== 'websocket') {
    const reason = `The channel type ${type} is not supported; use rest-hook or websocket`
    throw notSupported(reason, 'Subscription.channel.type')
  }
  if (type === 'rest-hook' && endpoint === undefined) {
    throw badRequest('A rest-hook needs an endpoint', 'Subscription.channel.endpoint')
  }
  if (typeof payload === 'string' && !SENT_TYPES.has(payload.split(';')[0] ?? '')) {
    throw notSupported('payload must be application/fhir+json', 'Subscription.channel.payload')
  }
  const [success] = extensionsNamed(subscription, SUCCESS_CODES)
  if (success === undefined || parseSuccess(success.item.valueString) !== undefined) return
  throw badRequest('Success codes must be like 200-299,418', `${success.path}.valueString`)
}

/** The topic was checked when it was written. */
function triggerExpression({ expression }: Trigger): CompiledPath | undefined {
  return expression === undefined ? undefined : compileTenant(expression)
}

export function isSuccess({ success }: SubscriptionTerms, status: number): boolean {
  return success.some(([low, high]) => status >= low && status <= high)
}

interface FoundExtension {
  readonly item: Record<string, unknown>
  readonly path: string
}

function listExtensions({ extension }: Resource): readonly FoundExtension[] {
  return asArray(extension).flatMap((item, i) =>
    isObject(item) ? [{ item, path: `Subscription.extension[${i}]` }] : [],
  )
}

function extensionsNamed(subscription: Resource, name: string): readonly FoundExtension[] {
  return listExtensions(subscription).filter(({ item }) => item.url === PLATFORM_URL + name)
}

function readChanges(subscription: Resource): ReadonlySet<ChangeKind> {
  const found = extensionsNamed(subscription, 'subscription-supported-interaction')
  const changes = found.map(({ item: { valueCode }, path }) => {
    if (isChange(valueCode)) return valueCode
    throw badRequest('An interaction must be create, update or delete', `${path}.valueCode`)
  })
  return new Set(changes.length === 0 ? CHANGES : changes)
}

function isChange(value: unknown): value is ChangeKind {
  return CHANGES.some((kind) => kind === value)
}

function readExpression(subscription: Resource): CompiledPath | undefined {
  const [found] = extensionsNamed(subscription, 'fhir-path-criteria-expression')
  if (found === undefined) return undefined
  const { valueString } = found.item
  const path = `${found.path}.valueString`
  if (typeof valueString !== 'string') throw badRequest('A FHIRPath expression is missing', path)
  try {
    return compileTenant(valueString)
  } catch (error) {
    throw badRequest(error instanceof Error ? error.message : 'Invalid FHIRPath', path)
  }
}

function readAttempts(subscription: Resource): number {
  const [found] = extensionsNamed(subscription, 'subscription-max-attempts')
  if (found === undefined) return ATTEMPTS
  const { valueInteger: count } = found.item
  if (
    typeof count === 'number' &&
    Number.isInteger(count) &&
    count >= 1 &&
    count <= MOST_ATTEMPTS
  ) {
    return count
  }
  throw badRequest(`Attempts must be 1 to ${MOST_ATTEMPTS}`, `${found.path}.valueInteger`)
}

/** An unreadable value, which earlier releases stored, means the default. */
function readSuccess(subscription: Resource): SubscriptionTerms['success'] {
  const [found] = extensionsNamed(subscription, SUCCESS_CODES)
  return parseSuccess(found?.item.valueString) ?? SUCCESS
}

function parseSuccess(text: unknown): SubscriptionTerms['success'] | undefined {
  if (typeof text !== 'string') return undefined
  const ranges = text.split(',').map((part) => /^(\d{3})(?:-(\d{3}))?$/.exec(part.trim()))
  if (!ranges.every((range) => range !== null)) return undefined
  return ranges.map(([, low, high]) => [Number(low), Number(high ?? low)] as const)
}

function readAudit(subscription: Resource): SubscriptionTerms['audit'] {
  const found = extensionsNamed(subscription, 'subscription-audit-event-destination')
  const destinations = found.map(({ item: { valueCode }, path }) => {
    if (valueCode === 'resource' || valueCode === 'log') return valueCode
    throw badRequest('The destination of AuditEvents must be resource or log', `${path}.valueCode`)
  })
  return new Set(destinations.length === 0 ? ['resource'] : destinations)
}

function readSecret(subscription: Resource): string | undefined {
  const found = listExtensions(subscription).find(({ item }) => SECRETS.has(item.url))
  if (found === undefined) return undefined
  const { valueString } = found.item
  if (typeof valueString === 'string' && valueString !== '') return valueString
  throw badRequest('Secret must be a string', `${found.path}.valueString`)
}

export function isExemptFromPreCommit(type: string): boolean {
  return EXEMPT_FROM_PRE_COMMIT.has(type) || REGISTRY_TYPES.has(type)
}

/** True with the pre-commit extension, regardless of the endpoint. */
export function isPreCommit(subscription: Resource): boolean {
  return extensionsNamed(subscription, PRE_COMMIT).some(({ item }) => item.valueBoolean === true)
}

function readPreCommit(subscription: Resource): boolean {
  const [found] = extensionsNamed(subscription, PRE_COMMIT)
  if (found === undefined) return false
  const { valueBoolean } = found.item
  if (typeof valueBoolean === 'boolean') return valueBoolean
  throw badRequest('pre-commit-bot must be true or false', `${found.path}.valueBoolean`)
}

function readHook(channel: unknown): SubscriptionTarget | undefined {
  if (!isObject(channel) || channel.type !== 'rest-hook') return undefined
  const { endpoint } = channel
  if (typeof endpoint !== 'string' || endpoint === '') return undefined
  const reference = parseReference(endpoint)
  if (reference !== undefined && reference.type !== 'Bot') throw badEndpoint()
  if (reference === undefined && !URL.canParse(endpoint)) throw badEndpoint()
  return { endpoint, bot: reference?.id, headers: readHeaders(channel.header) }
}

function badEndpoint() {
  return badRequest('endpoint must be an address or Bot/<id>', 'Subscription.channel.endpoint')
}

function readHeaders(header: unknown): SubscriptionTarget['headers'] {
  return asArray(header).map((line, i) => {
    const [name = '', ...rest] = String(line).split(':')
    const value = rest.join(':').trim()
    const path = `Subscription.channel.header[${i}]`
    if (rest.length === 0 || !HEADER_NAME.test(name.trim()) || !HEADER_VALUE.test(value)) {
      throw badRequest('A header must be like "Name: value"', path)
    }
    if (REFUSED_HEADERS.has(name.trim().toLowerCase())) {
      throw badRequest(`A Subscription cannot set the header ${name.trim()}`, path)
    }
    return [name.trim(), value] as const
  })
}

function parseEnd({ end }: Resource): Date | undefined {
  if (typeof end !== 'string') return undefined
  const ends = new Date(end)
  return Number.isNaN(ends.getTime()) ? undefined : ends
}

function accountReferences({ meta }: Resource): readonly string[] {
  const accounts = meta?.accounts ?? (meta?.account && [meta.account]) ?? []
  return accounts.flatMap(({ reference }) => reference ?? [])
}

// Criteria are compiled like those of a policy, so the same keys match both.

const PATH = 'Subscription.criteria'
const IGNORED = /^(_count|_offset|_sort|_total|_summary|_elements|_fields|_format|_pretty)=/

type CriteriaTerms = Pick<SubscriptionTerms, 'type' | 'query'>

/** The query that the version before a change meets; undefined: any. */
export function previousTerms({ type, topic }: SubscriptionTerms): CriteriaTerms | undefined {
  return topic?.previous === undefined ? undefined : { type, query: topic.previous }
}

/** Errors: 400, also for criteria that one resource cannot decide. */
export function criteriaGrant(
  { type, query }: CriteriaTerms,
  own: OwnParameters | undefined,
): Grant {
  const pairs = query.split('&').filter((pair) => pair !== '' && !IGNORED.test(pair))
  const plain = plainGrant(type, ['read'], 'criteria')
  if (pairs.length === 0) return plain
  const criteria = readPairs(type, pairs, own)
  for (const criterion of criteria) {
    const isSingle = isCondition(criterion) || criterion.kind === 'compartment'
    const isOwnGroup = !isCondition(criterion) && criterion.kind === 'or'
    if (!isSingle && !isOwnGroup) {
      throw badRequest('criteria may not look at other resources', PATH)
    }
  }
  return { ...plain, criteria }
}

function readPairs(type: string, pairs: readonly string[], own: OwnParameters | undefined) {
  if (pairs.some((pair) => pair.startsWith('_filter'))) {
    throw badRequest('criteria may not use _filter', PATH)
  }
  try {
    const variables = { projectId: undefined, own, values: { get: () => undefined } }
    return parseCriteria(type, `${type}?${pairs.join('&')}`, variables)
  } catch (error) {
    if (error instanceof HttpError && error.status !== 400) throw error
    throw badRequest(error instanceof Error ? error.message : 'criteria cannot be read', PATH)
  }
}
