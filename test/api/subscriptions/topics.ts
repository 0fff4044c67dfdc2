/** Topics and Subscriptions to them, as the R4 backport of topic subscriptions has them. */
import type { Untyped } from '../../fixtures/bots/bots.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const TOPIC = 'http://hl7.org/fhir/5.0/StructureDefinition/extension-SubscriptionTopic.'
export const BACKPORT =
  'http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/backport-'

interface TriggerParts {
  readonly resource?: string
  readonly interactions?: readonly string[]
  readonly query?: Readonly<Record<string, string | boolean>>
  readonly expression?: string
}

const withValue = (value: string | boolean, url: string) => {
  if (typeof value === 'boolean') return { url, valueBoolean: value }
  return url.startsWith('resultFor') ? { url, valueCode: value } : { url, valueString: value }
}

export function aTrigger({ resource, interactions, query, expression }: TriggerParts): Untyped {
  return {
    url: `${TOPIC}resourceTrigger`,
    extension: [
      { url: 'description', valueMarkdown: 'When it happens' },
      { url: 'resource', valueUri: resource ?? 'Encounter' },
      ...(interactions ?? []).map((valueCode) => ({ url: 'supportedInteraction', valueCode })),
      ...(query === undefined
        ? []
        : [
            {
              url: 'queryCriteria',
              extension: Object.entries(query).map(([url, value]) => withValue(value, url)),
            },
          ]),
      ...(expression === undefined ? [] : [{ url: 'fhirPathCriteria', valueString: expression }]),
    ],
  }
}

export const aFilter = (filterParameter: string, ...modifiers: readonly string[]): Untyped => ({
  url: `${TOPIC}canFilterBy`,
  extension: [
    { url: 'resource', valueUri: 'Encounter' },
    { url: 'filterParameter', valueString: filterParameter },
    ...modifiers.map((valueCode) => ({ url: 'modifier', valueCode })),
  ],
})

/** An Encounter that becomes finished. */
export const COMPLETION: TriggerParts = {
  resource: 'http://hl7.org/fhir/StructureDefinition/Encounter',
  interactions: ['create', 'update'],
  query: {
    previous: 'status:not=finished',
    resultForCreate: 'test-passes',
    current: 'status=finished',
    resultForDelete: 'test-fails',
    requireBoth: true,
  },
}

export function aTopic(url: string, trigger: TriggerParts, ...more: readonly Untyped[]): Untyped {
  return {
    resourceType: 'Basic',
    code: { coding: [{ system: 'http://hl7.org/fhir/fhir-types', code: 'SubscriptionTopic' }] },
    extension: [{ url: `${TOPIC}url`, valueUri: url }, aTrigger(trigger), ...more],
    modifierExtension: [{ url: `${TOPIC}status`, valueCode: 'active' }],
  }
}

export interface TopicOptions {
  readonly content?: string
  readonly filters?: readonly string[]
  readonly channel?: Untyped
  readonly extension?: readonly Untyped[]
}

export function aTopicSubscription(
  criteria: string,
  endpoint: string,
  { content = 'id-only', filters = [], channel = {}, extension }: TopicOptions = {},
): Untyped {
  const filterBy = filters.map((valueString) => ({
    url: `${BACKPORT}filter-criteria`,
    valueString,
  }))
  return {
    resourceType: 'Subscription',
    status: 'requested',
    reason: 'test',
    criteria,
    ...(filterBy.length === 0 ? {} : { _criteria: { extension: filterBy } }),
    ...(extension === undefined ? {} : { extension }),
    channel: {
      type: 'rest-hook',
      endpoint,
      payload: 'application/fhir+json',
      _payload: { extension: [{ url: `${BACKPORT}payload-content`, valueCode: content }] },
      ...channel,
    },
  }
}

/** The first entry of a notification as an object; events have their parts as objects. */
export function readStatus(body: string | Raw): Raw {
  const bundle: Raw = typeof body === 'string' ? JSON.parse(body) : body
  const { resource } = bundle.entry[0]
  const values = (parameters: readonly Raw[]): [string, Raw][] =>
    parameters.map(({ name, part, ...value }) => [
      name,
      part === undefined ? Object.values(value)[0] : Object.fromEntries(values(part)),
    ])
  const all = values(resource.parameter)
  const events = all.filter(([name]) => name === 'notification-event').map(([, event]) => event)
  return { ...Object.fromEntries(all), events }
}
