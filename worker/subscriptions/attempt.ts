/**
 * One attempt to deliver. Whether the Subscription still waits, what its author may see and whom a Bot
 * acts as are asked anew each time; the version that is sent is that of the event.
 */
import type { SubscriptionTerms } from '../../shared/access/subscription.ts'
import { authorOf, findTarget, isTarget } from '../../shared/bots/event-target.ts'
import { typeName } from '../../shared/fhir/definitions.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { MAX_DEPTH } from '../../shared/request/quota.ts'
import type { Services } from '../../shared/services.ts'
import { idOf, type VersionRow } from '../../shared/store/rows/rows.ts'
import { platformMeta } from '../../shared/store/rows/version.ts'
import { eventBody } from '../../shared/subscriptions/bot-event-body.ts'
import type { Delivery } from '../../shared/subscriptions/deliveries.ts'
import { createEvents } from '../../shared/subscriptions/events.ts'
import type { Runner } from '../bots/run.ts'
import { type Message, runBot, type Sent, sendHook, withoutTarget } from './hooks.ts'

/** A delivery with its Subscription and the outcome. */
export interface Attempted {
  readonly sent: Sent
  /** Undefined when the Subscription is gone. */
  readonly subscription: Resource | undefined
  readonly terms: SubscriptionTerms | undefined
  /** `Type/id`; empty when its versions are gone. */
  readonly reference: string
}

/** Errors: those of our own. */
export async function attempt(
  services: Services,
  runner: Runner,
  delivery: Delivery,
  signal: AbortSignal,
): Promise<Attempted> {
  const { version: row } = delivery
  const found = await services.repository.feature(createEvents).subscriptionOf(delivery)
  const reference = row?.content == null ? '' : `${typeName(delivery.type)}/${idOf(row.content)}`
  if (found === undefined) {
    return { sent: stopped('Subscription'), subscription: undefined, terms: undefined, reference }
  }
  const { subscription, terms } = found
  const sent =
    row?.content == null
      ? stopped('resource')
      : await send({ services, runner, delivery, subscription, terms, row, reference, signal })
  return { sent, subscription, terms, reference }
}

interface Task {
  readonly services: Services
  readonly runner: Runner
  readonly delivery: Delivery
  readonly subscription: Resource
  readonly terms: SubscriptionTerms
  readonly row: VersionRow
  readonly reference: string
  readonly signal: AbortSignal
}

async function send(task: Task): Promise<Sent> {
  const { services, delivery, subscription, terms, signal } = task
  const { hook } = terms
  if (hook === undefined) return stopped('endpoint')
  if ((delivery.cause.depth ?? 0) > MAX_DEPTH) {
    const text = `The event was dropped: bots have caused each other more than ${MAX_DEPTH} deep`
    return { kind: 'stopped', reason: 'depth', text }
  }
  if (delivery.attempt > 1 && (await isOvertaken(task))) return stopped('newer version')
  const author = await authorOf(services, subscription, delivery.project)
  if (author === undefined) return stopped('author')
  const { reference } = task
  const message = (body: string): Message => {
    return { delivery, subscription: subscription.id ?? '', reference, hook, body }
  }
  const waited = { terms, change: delivery.change }
  if (hook.bot === undefined) {
    const body = await eventBody(services, author.principal, task.row, waited)
    if (body === undefined) return stopped('access')
    const text = delivery.change === 'delete' ? '{}' : body
    return sendHook(services.config, terms, message(text), signal)
  }
  const isSeen = await services.repository
    .feature(createEvents)
    .seen(author.principal, task.row, waited)
  if (isSeen === undefined) return stopped('access')
  const target = await findTarget(services, author, hook.bot)
  if (!isTarget(target)) return withoutTarget(target)
  const body = await eventBody(services, target.session.principal, task.row)
  if (body === undefined) return stopped('access')
  const input = delivery.change === 'delete' ? `{"deletedResource":${body}}` : body
  const { project = '', author: requester } = platformMetaOf(task.row)
  const from = { projectId: project, requester: requester?.reference }
  return runBot(task.runner, target, message(input), from)
}

async function isOvertaken({ services, delivery }: Task): Promise<boolean> {
  const { ver, isDeleted } = await services.repository.feature(createEvents).newestOf(delivery)
  return ver > delivery.ver || (isDeleted && delivery.change !== 'delete')
}

function platformMetaOf({ meta_ext }: VersionRow) {
  return platformMeta({ metaExtension: meta_ext })
}

function stopped(reason: string): Sent {
  return { kind: 'stopped', reason }
}
