/**
 * Topics of a Project: a Basic with the code SubscriptionTopic has the elements of the resource of R5 as extensions.
 * https://hl7.org/fhir/uv/subscriptions-backport/STU1.1/components.html
 */
import { oldestFirst } from '../access/guarded/definitions.ts'
import { REGISTRY_TYPES } from '../access/policy.ts'
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { linkedProjects } from '../access/project-context.ts'
import { CHANGES, type ChangeKind, criteriaGrant, SUBSCRIPTION } from '../access/subscription.ts'
import { FILTER_CRITERIA, isTopicUrl, type Trigger, withTrigger } from '../access/topic-terms.ts'
import { Cache } from '../core/cache.ts'
import { badRequest, HttpError } from '../core/errors.ts'
import { isResourceType, searchParameter } from '../fhir/definitions.ts'
import type { OwnParameters } from '../fhir/definitions-data.ts'
import {
  asArray,
  isObject,
  PLATFORM_URL,
  type Resource,
  STANDARD_URL,
  toObjects,
} from '../fhir/resource.ts'
import { compileTenant } from '../fhirpath/custom.ts'
import { search } from '../search/page.ts'
import { equals, searchFor } from '../store/lookups.ts'
import type { StoreContext, WriteRule } from '../store/rows/context.ts'
import { makesEvents } from '../store/rows/event-rows.ts'
import { parseVersion } from '../store/rows/rows.ts'
import { MOST_TOPICS, readTopicStamp } from './store-topic-events.ts'

const CODE = 'SubscriptionTopic'
const ELEMENT =
  /^http:\/\/hl7\.org\/fhir\/(?:4\.3|5\.0)\/StructureDefinition\/extension-SubscriptionTopic\.(\w+)$/
const OLDEST = [{ code: '_id', descending: false }]
const USABLE: ReadonlySet<unknown> = new Set(['active', 'draft', undefined])
/** The topic has them. */
const ITS_OWN = [
  'subscription-supported-interaction',
  'fhir-path-criteria-expression',
  'pre-commit-bot',
]

interface Topic {
  readonly url: string
  readonly isUsable: boolean
  readonly type: string
  readonly changes: readonly ChangeKind[]
  readonly current: string | undefined
  readonly previous: string | undefined
  readonly expression: string | undefined
  /** Search parameters that a Subscription may filter by → their permitted modifiers. */
  readonly filters: ReadonlyMap<string, ReadonlySet<string>>
}

interface Part {
  readonly name: string
  readonly item: Readonly<Record<string, unknown>>
  readonly path: string
}

/** Checks the topics of a Project. Errors: 400 with the path of an element that is not supported. */
export const topicRule: WriteRule = {
  type: 'Basic',
  checkParameters(resource, own) {
    if (!isTopic(resource)) return
    requireKnownParts(resource)
    readTopic(resource, own)
    requireNoIncludes(resource)
  },
}

function isTopic({ code }: Resource): boolean {
  return isObject(code) && toObjects(code.coding).some((coding) => coding.code === CODE)
}

function readParts(element: unknown, path: string, rename: (url: string) => string | undefined) {
  const items = isObject(element) ? asArray(element.extension) : []
  return items.flatMap((item, i): Part[] => {
    const name = isObject(item) ? rename(String(item.url)) : undefined
    return name === undefined
      ? []
      : [{ name, item: item as Part['item'], path: `${path}.extension[${i}]` }]
  })
}

const elementName = (url: string) => ELEMENT.exec(url)?.[1]

function readTopic(basic: Resource, own: OwnParameters | undefined): Topic {
  const parts = readParts(basic, 'Basic', elementName)
  const url = parts.find(({ name }) => name === 'url')?.item.valueUri
  if (!isTopicUrl(url)) throw badRequest('The url of a topic is missing', 'Basic.extension')
  const [trigger, ...more] = parts.filter(({ name }) => name === 'resourceTrigger')
  const [other] = [...more, ...parts.filter(({ name }) => name === 'eventTrigger')]
  if (trigger === undefined || other !== undefined) {
    throw badRequest('A topic has exactly one resourceTrigger', other?.path ?? 'Basic.extension')
  }
  const status = [basic.extension, basic.modifierExtension]
    .flatMap(toObjects)
    .find((item) => elementName(String(item.url)) === 'status')?.valueCode
  const read = readResourceTrigger(trigger, own)
  return { ...read, url, isUsable: USABLE.has(status), filters: readFilters(parts, read.type, own) }
}

/** For new versions of a topic: an earlier release accepted them. Errors: 400. */
function requireNoIncludes(basic: Resource): void {
  const parts = readParts(basic, 'Basic', elementName)
  for (const { item, path } of parts.filter(({ name }) => name === 'notificationShape')) {
    const [include] = readParts(item, path, (url) =>
      /^(rev)?include$/i.test(url) ? url : undefined,
    )
    if (include === undefined) continue
    throw badRequest('Notifications include no other resources', include.path)
  }
}

/** Nested extensions by the name of the outer one. https://hl7.org/fhir/R5/subscriptiontopic.html */
const NESTED: Readonly<Record<string, readonly string[]>> = {
  resourceTrigger: [
    'description',
    'resource',
    'supportedInteraction',
    'queryCriteria',
    'fhirPathCriteria',
  ],
  queryCriteria: ['previous', 'resultForCreate', 'current', 'resultForDelete', 'requireBoth'],
  canFilterBy: [
    'description',
    'resource',
    'filterParameter',
    'filterDefinition',
    'comparator',
    'modifier',
  ],
}
const REPEATED: ReadonlySet<string> = new Set(['supportedInteraction', 'comparator', 'modifier'])

/** For new versions of a topic. Errors: 400 for a part that would be ignored, and so could select more events. */
function requireKnownParts(basic: Resource): void {
  for (const part of readParts(basic, 'Basic', elementName)) requireNested(part)
}

function requireNested({ name: outer, item, path }: Part): void {
  const known = NESTED[outer]
  if (known === undefined) return
  const seen = new Set<string>()
  for (const part of readParts(item, path, (url) => url)) {
    const { name } = part
    if (!known.includes(name)) {
      throw badRequest(`${outer} has no part ${name.slice(0, 64)}`, `${part.path}.url`)
    }
    if (seen.has(name) && !REPEATED.has(name)) {
      throw badRequest(`${outer} has one ${name}`, part.path)
    }
    seen.add(name)
    requireNested(part)
  }
}

type ReadTrigger = Omit<Topic, 'url' | 'isUsable' | 'filters'>

function readResourceTrigger({ item, path }: Part, own: OwnParameters | undefined): ReadTrigger {
  const parts = readParts(item, path, (url) => url)
  const type = readType(parts, path)
  const named = parts.filter(({ name }) => name === 'supportedInteraction')
  const changes = named.map(({ item: { valueCode }, path: at }) => {
    const change = CHANGES.find((code) => code === valueCode)
    if (change !== undefined) return change
    throw badRequest('An interaction is create, update or delete', `${at}.valueCode`)
  })
  const criteria = parts.find(({ name }) => name === 'queryCriteria')
  const query = criteria === undefined ? {} : readQuery(criteria, type, own)
  const { never = [], ...queries } = query
  const expression = parts.find(({ name }) => name === 'fhirPathCriteria')
  const possible = (changes.length === 0 ? CHANGES : changes).filter(
    (change) => !never.includes(change),
  )
  if (possible.length === 0) {
    throw badRequest('No interaction of the trigger can meet its query', path)
  }
  return {
    type,
    changes: possible,
    current: queries.current,
    previous: queries.previous,
    expression: expression && readExpression(expression),
  }
}

function readType(parts: readonly Part[], path: string): string {
  const found = parts.find(({ name }) => name === 'resource')
  const type = String(found?.item.valueUri ?? '').replace(STANDARD_URL, '')
  if (isResourceType(type) && makesEvents(type) && !REGISTRY_TYPES.has(type)) return type
  const at = found === undefined ? `${path}.extension` : `${found.path}.valueUri`
  throw badRequest('The resource of a trigger is a type of FHIR', at)
}

interface Query {
  readonly current?: string
  readonly previous?: string
  /** Changes for which one of the queries has no version, and the topic lets that fail. */
  readonly never?: readonly ChangeKind[]
}

/** https://hl7.org/fhir/R5/subscriptiontopic-definitions.html#SubscriptionTopic.resourceTrigger.queryCriteria */
function readQuery({ item, path }: Part, type: string, own: OwnParameters | undefined): Query {
  const parts = readParts(item, path, (url) => url)
  const text = (name: string) => {
    const found = parts.find((part) => part.name === name)
    if (found === undefined) return undefined
    const query = String(found.item.valueString).replace(new RegExp(`^${type}\\?`), '')
    checkQuery(type, query, own, `${found.path}.valueString`)
    return query
  }
  const [current, previous] = [text('current'), text('previous')]
  const result = (name: string) => parts.find((part) => part.name === name)
  const isBoth = result('requireBoth')?.item.valueBoolean === true
  if (current !== undefined && previous !== undefined && !isBoth) {
    throw badRequest('Two queries need requireBoth; use fhirPathCriteria for either of them', path)
  }
  const onDelete = result('resultForDelete')
  if (current !== undefined && onDelete?.item.valueCode === 'test-passes') {
    throw badRequest(
      'A deletion meets no query: use test-fails, or a topic for deletions',
      onDelete.path,
    )
  }
  const passesCreate = result('resultForCreate')?.item.valueCode === 'test-passes'
  return {
    ...(current === undefined ? {} : { current }),
    ...(previous === undefined ? {} : { previous }),
    never: [
      ...(current === undefined ? [] : ['delete' as const]),
      ...(previous === undefined || passesCreate ? [] : ['create' as const]),
    ],
  }
}

/** Errors: 400 for a query that one resource cannot decide, at `path`. */
function checkQuery(type: string, query: string, own: OwnParameters | undefined, path: string) {
  try {
    criteriaGrant({ type, query }, own)
  } catch (error) {
    if (!(error instanceof HttpError)) throw error
    throw badRequest(error.message, path)
  }
}

function readExpression({ item, path }: Part): string {
  const at = `${path}.valueString`
  if (typeof item.valueString !== 'string') throw badRequest('An expression is missing', at)
  try {
    compileTenant(item.valueString)
    return item.valueString
  } catch (error) {
    throw badRequest(error instanceof Error ? error.message : 'Invalid FHIRPath', at)
  }
}

function readFilters(parts: readonly Part[], type: string, own: OwnParameters | undefined) {
  const filters = new Map<string, ReadonlySet<string>>()
  for (const { item, path } of parts.filter(({ name }) => name === 'canFilterBy')) {
    const inner = readParts(item, path, (url) => url)
    const resource = inner.find(({ name }) => name === 'resource')?.item.valueUri
    if (resource !== undefined && String(resource).replace(STANDARD_URL, '') !== type) continue
    const parameter = inner.find(({ name }) => name === 'filterParameter')
    const code = String(parameter?.item.valueString)
    if (searchParameter(type, code, own) === undefined) {
      const at = parameter === undefined ? `${path}.extension` : `${parameter.path}.valueString`
      throw badRequest(`${type} has no search parameter ${code}`, at)
    }
    const modifiers = inner.filter(({ name }) => name === 'modifier')
    filters.set(code, new Set(modifiers.map(({ item: { valueCode } }) => String(valueCode))))
  }
  return filters
}

/**
 * Returns the Subscription with the trigger of its topic, which stays as it is until the next write of the
 * Subscription. Errors: 400 for an unknown topic, and for filters that it does not permit.
 */
export async function resolveTopic(
  store: StoreContext,
  principal: Principal,
  subscription: Resource,
  own: OwnParameters | undefined,
): Promise<Resource> {
  const { criteria: url } = subscription
  if (!isTopicUrl(url)) return withTrigger(subscription, undefined)
  const extra = asArray(subscription.extension).findIndex(
    (item) => isObject(item) && ITS_OWN.some((name) => item.url === PLATFORM_URL + name),
  )
  if (extra !== -1) {
    throw badRequest('The topic decides this', `${SUBSCRIPTION}.extension[${extra}]`)
  }
  const found = await usableTopics(store, principal, own)
  const topic = found.find((item) => item.url === url)
  if (topic === undefined) {
    throw badRequest(`The project has no active topic ${url}`, `${SUBSCRIPTION}.criteria`)
  }
  return withTrigger(subscription, toTrigger(topic, readFilterCriteria(subscription, topic, own)))
}

function codeKey({ keys }: StoreContext, project: number): bigint {
  return keys.token(keys.param(project, 'Basic', 'code'), undefined, CODE)
}

interface ListedTopics {
  readonly own: OwnParameters | undefined
  readonly urls: readonly string[]
}

/** By the versions of the topics. */
const listed = new Cache<string, ListedTopics>({ name: 'topic-urls', max: 200 })

/** Lists the urls of the topics of the Project. One statement per Project, and another after a change. */
export async function topicUrls(
  store: StoreContext,
  principal: Principal,
): Promise<readonly string[]> {
  const { number, parameters: own } = principal.project
  const projects = [number, ...linkedProjects(principal, 'Basic').map((linked) => linked.number)]
  const stamps = await Promise.all(
    projects.map((project) => readTopicStamp(store.connection, project, codeKey(store, project))),
  )
  if (stamps.every((stamp) => stamp === null)) return []
  const key = `${number} ${stamps.join()}`
  const known = listed.get(key)
  if (known !== undefined && known.own === own) return known.urls
  const topics = await usableTopics(store, principal, own)
  const urls = [...new Set(topics.map(({ url }) => url))]
  listed.set(key, { own, urls })
  return urls
}

/** A topic only selects: the access of the author of a Subscription decides on each event. */
async function usableTopics(
  store: StoreContext,
  principal: Principal,
  own: OwnParameters | undefined,
): Promise<readonly Topic[]> {
  const service = systemPrincipal(principal.project, 'project')
  const request = searchFor('Basic', [equals('code', 'token', CODE)], MOST_TOPICS, OLDEST)
  const { versions } = await search(store, service, request)
  return oldestFirst(versions.map(parseVersion)).flatMap((item) => usableTopic(item, own))
}

/** Stored before this rule, or with a search parameter that is gone, a topic may be unreadable. */
function usableTopic(basic: Resource, own: OwnParameters | undefined): readonly Topic[] {
  try {
    const topic = readTopic(basic, own)
    return topic.isUsable ? [topic] : []
  } catch (error) {
    if (error instanceof HttpError) return []
    throw error
  }
}

function toTrigger(topic: Topic, filters: readonly string[]): Trigger {
  const { type, current, previous, expression, changes } = topic
  const query = [...(current === undefined ? [] : [current]), ...filters].join('&')
  return { criteria: query === '' ? type : `${type}?${query}`, previous, expression, changes }
}

function readFilterCriteria(
  subscription: Resource,
  { type, filters }: Topic,
  own: OwnParameters | undefined,
): readonly string[] {
  const path = `${SUBSCRIPTION}.criteria`
  const parts = readParts(subscription._criteria, path, (url) =>
    url === FILTER_CRITERIA ? url : undefined,
  )
  return parts.map(({ item, path: at }) => {
    const where = `${at}.valueString`
    const [, named = type, query = ''] = /^(?:(\w+)\?)?(.*)$/s.exec(String(item.valueString)) ?? []
    if (named !== type) throw badRequest(`The topic is about ${type}`, where)
    for (const name of new URLSearchParams(query).keys()) {
      const [code = '', modifier] = name.split(':')
      const isPermitted =
        filters.has(code) && (modifier === undefined || filters.get(code)?.has(modifier))
      if (!isPermitted) throw badRequest(`The topic permits no filter by ${name}`, where)
    }
    checkQuery(type, query, own, where)
    return query
  })
}
