/** Delivery operations: `$status`, `$resend` and `$redeliver`. */
import { randomUUID } from 'node:crypto'
import { readDecided } from '../access/decisions/decide.ts'
import { type Principal, SYSTEM_PROJECT_NUMBER } from '../access/principal.ts'
import { unlinked } from '../access/project-context.ts'
import { CHANGES, type ChangeKind, SUBSCRIPTION } from '../access/subscription.ts'
import { readTopicTerms } from '../access/topic-terms.ts'
import { allOk, badRequest, forbidden, gone, notFound, preconditionFailed } from '../core/errors.ts'
import { nonEmptyText, parseReference } from '../fhir/resource.ts'
import { parametersReply, readInputs, readKnownInputs } from '../request/parameters.ts'
import { FHIR_JSON, jsonReply, outcomeReply, textReply } from '../request/reply.ts'
import type { FhirReply, Operation, OperationCall } from '../request/request.ts'
import { search } from '../search/page.ts'
import { equals, searchFor } from '../store/lookups.ts'
import type { StoreContext } from '../store/rows/context.ts'
import { makesEvents } from '../store/rows/event-rows.ts'
import { parseVersion, toVersion } from '../store/rows/rows.ts'
import { statusesText } from './notifications.ts'
import { addResend } from './outbox.ts'
import {
  listPendingDeliveries,
  type PendingDelivery,
  readSubscriptionState,
  readSubscriptionStates,
  redeliver as redeliverFailed,
} from './state.ts'

interface ResendOptions {
  readonly type: string
  readonly id: string
  readonly interaction: ChangeKind
  readonly subscription: string | undefined
  /** Workers log each Subscription's match. */
  readonly verbose: boolean
}

async function find(store: StoreContext, principal: Principal, type: string, id: string) {
  const found = await readDecided(store, principal, type, { id, interactions: ['read'] })
  if (found?.decisions.read === undefined) throw notFound()
  return found.row
}

/** Errors: 404, 410. */
export async function findSubscription(store: StoreContext, principal: Principal, id: string) {
  const row = await find(store, principal, SUBSCRIPTION, id)
  if (row.content === null) throw gone()
  return row
}

/** Matches the newest version again, for one Subscription or all. Errors: 400, 403, 404, 410, 412. */
export async function resendNewest(
  store: StoreContext,
  principal: Principal,
  { type, id, interaction, subscription, verbose }: ResendOptions,
): Promise<void> {
  if (!principal.isProjectAdmin) throw forbidden()
  if (!makesEvents(type)) throw badRequest(`Changes of ${type} do not create events`)
  const row = await find(store, principal, type, id)
  const isDeleted = row.content === null
  if (isDeleted && interaction !== 'delete') throw gone()
  if (!isDeleted && interaction === 'delete') {
    throw badRequest(`${type}/${id} is not deleted`, 'interaction')
  }
  const only = subscription && (await findSubscription(store, principal, subscription)).id
  const home = row.project === SYSTEM_PROJECT_NUMBER ? principal.project.number : row.project
  const cause = { ...principal.cause, resend: { only, verbose } }
  const isAdded = await addResend(store.connection, row, { home, change: interaction, cause })
  if (!isAdded) throw preconditionFailed(`${type}/${id} has changed meanwhile`)
  store.announce()
}

/** Makes failed deliveries of a period due again; returns their count. Errors: 403, 404. */
async function redeliverSince(
  store: StoreContext,
  principal: Principal,
  id: string,
  times: { readonly since: Date; readonly until: Date },
): Promise<number> {
  if (!principal.isProjectAdmin) throw forbidden()
  const row = await findSubscription(store, principal, id)
  const { project } = row
  const count = await redeliverFailed(store.connection, { project, id: row.id, ...times })
  if (count > 0) store.announce()
  return count
}

/** Deliveries that wait or have failed. Errors: 403, 404, 410. */
export async function findPendingDeliveries(
  store: StoreContext,
  principal: Principal,
  id: string,
): Promise<readonly PendingDelivery[]> {
  if (!principal.isProjectAdmin) throw forbidden()
  const row = await findSubscription(store, principal, id)
  return await listPendingDeliveries(store.connection, row.project, row.id)
}

/** `$status` of a Subscription, or of those to topics. https://hl7.org/fhir/uv/subscriptions-backport/STU1.1/ */
export const subscriptionStatus: Operation = {
  name: 'status',
  on: [
    { type: SUBSCRIPTION, level: 'type' },
    { type: SUBSCRIPTION, level: 'instance' },
  ],
  definition:
    'http://hl7.org/fhir/uv/subscriptions-backport/OperationDefinition/backport-subscription-status',
  methods: ['GET', 'POST'],
  inputs: { id: 'text*: Of these', status: 'text*: With one of these statuses' },
  text: {
    summary: 'Read the deliveries of a Subscription',
    description: 'Without an id in the path: of the Subscriptions to topics.',
    answer: 'Bundle',
  },
  onlyReads: true,
  async run(call) {
    const { services, principal, id } = call
    if (id === undefined) return await listTopicStatuses(call)
    readInputs(call)
    const [row, state] = await services.repository.withStore(async (store) => {
      const row = await findSubscription(store, principal, id)
      return [row, await readSubscriptionState(store.connection, row.project, row.id)] as const
    })
    const subscription = parseVersion(toVersion(row, id))
    const { delivered = 0, failed = 0, waiting = 0, retrying = 0, events: total = 0 } = state ?? {}
    const error = nonEmptyText(subscription.error) ?? state?.error ?? undefined
    const topic = readTopicTerms(subscription)
    if (topic !== undefined) {
      const { content } = topic
      const text = statusesText(services, [{ subscription, content, total, error }])
      return textReply(200, text, { 'Content-Type': FHIR_JSON })
    }
    const url = `${services.config.baseUrl}fhir/StructureDefinition/subscription-`
    return jsonReply(200, {
      resourceType: 'Bundle',
      id: randomUUID(),
      type: 'history',
      timestamp: new Date().toISOString(),
      entry: [
        {
          fullUrl: `urn:uuid:${randomUUID()}`,
          resource: {
            resourceType: 'SubscriptionStatus',
            type: 'query-status',
            status: subscription.status,
            eventsSinceSubscriptionStart: String(delivered + failed),
            subscription: { reference: `${SUBSCRIPTION}/${id}` },
            ...(error === undefined ? {} : { error: [{ text: error }] }),
            extension: [
              ...Object.entries({ delivered, failed, waiting, retrying }).map(
                ([name, valueInteger]) => ({ url: `${url}${name}`, valueInteger }),
              ),
              ...(state?.paused
                ? [{ url: `${url}paused-until`, valueInstant: state.paused.toISOString() }]
                : []),
            ],
          },
        },
      ],
    })
  },
}

/** Errors: 400 for more than `MOST_STATUSES`. */
async function listTopicStatuses(call: OperationCall): Promise<FhirReply> {
  const { services, principal } = call
  const inputs = readInputs(call)
  const [ids, statuses] = [inputs.texts('id'), inputs.texts('status')]
  const conditions = [
    ...(ids.length === 0 ? [] : [equals('_id', 'token', ...ids)]),
    ...(statuses.length === 0 ? [] : [equals('status', 'token', ...statuses)]),
  ]
  const order = [{ code: '_id', descending: false }]
  const request = searchFor(SUBSCRIPTION, conditions, MOST_STATUSES, order)
  const shown = await services.repository.withStore(async (store) => {
    const { versions, next } = await search(store, unlinked(principal), request)
    if (next !== undefined) {
      throw badRequest(`There are more than ${MOST_STATUSES} Subscriptions: name some by id`, 'id')
    }
    const topics = versions.flatMap((version) => {
      const subscription = parseVersion(version)
      const content = readTopicTerms(subscription)?.content
      const row = store.keys.rowId(SUBSCRIPTION, version.id)
      return content === undefined ? [] : [{ row, subscription, content }]
    })
    const rows = topics.map(({ row }) => row)
    const states = await readSubscriptionStates(store.connection, principal.project.number, rows)
    return topics.map((topic) => ({ ...topic, state: states.get(topic.row) }))
  })
  const topics = shown.map(({ subscription, content, state }) => {
    const error = nonEmptyText(subscription.error) ?? state?.error ?? undefined
    return { subscription, content, total: state?.events ?? 0, error }
  })
  return textReply(200, statusesText(services, topics), { 'Content-Type': FHIR_JSON })
}

const MOST_STATUSES = 1000

// `$resend`: sends the latest version of a resource to Subscriptions again

export const resend: Operation = {
  name: 'resend',
  on: [{ level: 'instance' }],
  methods: ['POST'],
  inputs: {
    interaction: 'text: create, update or delete; default: update',
    subscription: 'reference: Only to this one',
    verbose: 'flag: Workers log the decision for each Subscription',
  },
  text: {
    summary: 'Send the newest version to Subscriptions again',
    answer: 'OperationOutcome',
  },
  area: 'administration',
  async run(call) {
    const { services, principal, type = '', id = '' } = call
    const inputs = readKnownInputs(call)
    const interaction = inputs.text('interaction') ?? 'update'
    const change = CHANGES.find((name) => name === interaction)
    if (change === undefined) {
      throw badRequest(`interaction must be one of ${CHANGES.join(', ')}`, 'interaction')
    }
    const options = {
      type,
      id,
      interaction: change,
      subscription: subscriptionId(inputs.text('subscription')),
      verbose: inputs.flag('verbose') ?? false,
    }
    await services.repository.withStore((store) => resendNewest(store, principal, options))
    return outcomeReply(200, allOk)
  },
}

function subscriptionId(text: string | undefined): string | undefined {
  if (text === undefined) return undefined
  const reference = parseReference(text)
  if (reference?.type === SUBSCRIPTION) return reference.id
  throw badRequest('subscription must be Subscription/<id>', 'subscription')
}

const WEEK_MS = 7 * 24 * 3_600_000
const INSTANT = /^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d))?$/

export const redeliver: Operation = {
  name: 'redeliver',
  on: [{ type: SUBSCRIPTION, level: 'instance' }],
  methods: ['POST'],
  inputs: { since: 'text: From then on', until: 'text: Until then' },
  text: { summary: 'Deliver failed events again', answer: 'OperationOutcome' },
  area: 'administration',
  async run(call) {
    const inputs = readInputs(call)
    const since = instant('since', inputs.text('since')) ?? new Date(Date.now() - WEEK_MS)
    const until = instant('until', inputs.text('until')) ?? new Date()
    if (since > until) throw badRequest('since is after until', 'since')
    const count = await call.services.repository.withStore((store) =>
      redeliverSince(store, call.principal, call.id ?? '', { since, until }),
    )
    return parametersReply([['count', 'valueInteger', count]])
  },
}

function instant(name: string, text: string | undefined): Date | undefined {
  if (text === undefined) return undefined
  const time = INSTANT.test(text) ? new Date(text) : undefined
  if (time === undefined || Number.isNaN(time.getTime())) {
    throw badRequest(`${name} must be an instant, as 2026-01-31T12:00:00Z, or a date`, name)
  }
  return time
}
