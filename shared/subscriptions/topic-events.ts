/** `$events` of a Subscription to a topic. https://hl7.org/fhir/uv/subscriptions-backport/STU1.1/ */
import { SUBSCRIPTION } from '../access/subscription.ts'
import { CONTENTS, type NotificationContent, readTopicTerms } from '../access/topic-terms.ts'
import { badRequest } from '../core/errors.ts'
import { type Inputs, readInputs } from '../request/parameters.ts'
import { FHIR_JSON, textReply } from '../request/reply.ts'
import type { Operation } from '../request/request.ts'
import { parseVersion, toVersion } from '../store/rows/rows.ts'
import { eventFor, notificationText } from './notifications.ts'
import { findSubscription } from './pending-deliveries.ts'
import { readSubscriptionState } from './state.ts'
import { listTopicEvents } from './store-topic-events.ts'

/** The caller continues with the number after the last one. */
const MOST_EVENTS = 100

export const subscriptionEvents: Operation = {
  name: 'events',
  on: [{ type: SUBSCRIPTION, level: 'instance' }],
  definition:
    'http://hl7.org/fhir/uv/subscriptions-backport/OperationDefinition/backport-subscription-events',
  methods: ['GET', 'POST'],
  inputs: {
    eventsSinceNumber: 'text: From this number on',
    eventsUntilNumber: 'text: Up to this number',
    content: 'text: empty, id-only or full-resource',
  },
  text: { summary: 'Read past events of a Subscription to a topic', answer: 'Bundle' },
  onlyReads: true,
  async run(call) {
    const { services, principal, id = '' } = call
    const inputs = readInputs(call)
    const since = readNumber(inputs, 'eventsSinceNumber') ?? 1
    const until = readNumber(inputs, 'eventsUntilNumber') ?? Number.MAX_SAFE_INTEGER
    if (since > until) throw badRequest('eventsUntilNumber is too small', 'eventsUntilNumber')
    const { row, state, events } = await services.repository.withStore(async (store) => {
      const row = await findSubscription(store, principal, id)
      const range = { since, until, count: MOST_EVENTS }
      const [state, events] = await Promise.all([
        readSubscriptionState(store.connection, row.project, row.id),
        listTopicEvents(store.connection, row.project, row.id, range),
      ])
      return { row, state, events }
    })
    const subscription = parseVersion(toVersion(row, id))
    const topic = readTopicTerms(subscription)
    if (topic === undefined) throw badRequest('Only a Subscription to a topic keeps its events')
    const content = readContent(inputs) ?? topic.content
    const shown = []
    for (const event of events) shown.push(await eventFor(services, principal, event, content))
    const text = notificationText(services, {
      type: 'query-event',
      subscription,
      content,
      total: state?.events ?? 0,
      events: shown,
    })
    return textReply(200, text, { 'Content-Type': FHIR_JSON })
  },
}

function readNumber(inputs: Inputs, name: string): number | undefined {
  const text = inputs.text(name)
  if (text === undefined) return undefined
  if (/^\d{1,15}$/.test(text)) return Number(text)
  throw badRequest(`${name} must be the number of an event`, name)
}

function readContent(inputs: Inputs): NotificationContent | undefined {
  const text = inputs.text('content')
  if (text === undefined) return undefined
  const content = CONTENTS.find((code) => code === text)
  if (content !== undefined) return content
  throw badRequest(`content must be one of ${CONTENTS.join(', ')}`, 'content')
}
