/**
 * One delivery attempt. The Subscription's status, its author's access and the Bot's identity are checked each time;
 * the version sent is that of the event.
 */

import { systemPrincipal } from '../../shared/access/principal.ts'
import { system } from '../../shared/access/project-context.ts'
import { SUBSCRIPTION, type SubscriptionTerms } from '../../shared/access/subscription.ts'
import type { TopicTerms } from '../../shared/access/topic-terms.ts'
import { botAt, findTarget, isBotTarget, resolveAuthorSession } from '../../shared/bots/bot.ts'
import { HttpError } from '../../shared/core/errors.ts'
import { typeName } from '../../shared/fhir/definitions.ts'
import { type Resource, targetIn } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import { subscriptionMail } from '../../shared/projects/mail-texts.ts'
import { MAX_DEPTH } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { equals, find } from '../../shared/store/lookups.ts'
import {
  contentId,
  parseVersion,
  toVersion,
  type VersionRow,
} from '../../shared/store/rows/rows.ts'
import { platformMeta } from '../../shared/store/rows/version.ts'
import type { Delivery } from '../../shared/subscriptions/deliveries.ts'
import {
  currentSubscription,
  eventBody,
  newestVersion,
  visibleVersion,
} from '../../shared/subscriptions/events.ts'
import { eventFor, notificationText } from '../../shared/subscriptions/notifications.ts'
import { endedSubscriptions, readSubscriptionState } from '../../shared/subscriptions/state.ts'
import { readEventTime } from '../../shared/subscriptions/store-topic-events.ts'
import type { Runner } from '../bots/runner.ts'
import {
  type Message,
  missingTargetResult,
  runSubscriptionBot,
  type Sent,
  sendHook,
} from './hooks.ts'

export interface Attempted {
  readonly sent: Sent
  readonly subscription: Resource | undefined
  readonly terms: SubscriptionTerms | undefined
  /** `Type/id`; empty when its versions are gone. */
  readonly reference: string
}

/** Errors: internal ones. */
export async function attemptDelivery(
  services: Services,
  runner: Runner,
  delivery: Delivery,
  signal: AbortSignal,
): Promise<Attempted> {
  const { version: row } = delivery
  const found = await services.repository.withStore((store) => currentSubscription(store, delivery))
  const reference =
    row?.content == null ? '' : `${typeName(delivery.type)}/${contentId(row.content)}`
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
  const isLatest = terms.topic === undefined && delivery.attempt > 1
  if (isLatest && (await isOvertaken(task))) return stopped('newer version')
  const author = await resolveAuthorSession(services, subscription, delivery.project)
  if (author === undefined) return stopped('author')
  const { reference } = task
  const message = (body: string): Message => {
    return { delivery, subscription: subscription.id ?? '', reference, hook, body }
  }
  if (terms.topic !== undefined) {
    const text = await topicNotification(task, terms.topic, author)
    if (text === undefined) return stopped('access')
    const sent = await sendHook(services.config, terms, message(text), signal)
    if (delivery.notice !== 'handshake') return sent
    if (sent.kind === 'received') await activate(services, subscription)
    return sent
  }
  if (hook.bot === undefined) {
    const body = await eventBody(services, author.principal, task.row)
    if (body === undefined) return stopped('access')
    const text = delivery.change === 'delete' ? '{}' : body
    return sendHook(services.config, terms, message(text), signal)
  }
  const isSeen = await services.repository.withStore((store) =>
    visibleVersion(store, author.principal, task.row),
  )
  if (isSeen === undefined) return stopped('access')
  const target = await findTarget(services, author, hook.bot)
  if (!isBotTarget(target)) return missingTargetResult(target)
  const body = await eventBody(services, target.session.principal, task.row)
  if (body === undefined) return stopped('access')
  const input = delivery.change === 'delete' ? `{"deletedResource":${body}}` : body
  const { project = '', author: requester } = platformMeta({
    metaExtension: task.row.meta_ext,
  })
  const from = { projectId: project, requester: requester?.reference }
  const bot = await botAt(services, target, delivery.since)
  return runSubscriptionBot(task.runner, bot, message(input), from)
}

/** Undefined when the author may not see the resource. */
async function topicNotification(
  { services, delivery, subscription, row }: Task,
  { content }: TopicTerms,
  author: Session,
): Promise<string | undefined> {
  const { notice, event: number = 0, change, project, subscription: id } = delivery
  if (notice !== undefined) {
    const state = await readSubscriptionState(services.database, project, id)
    const total = state?.events ?? 0
    return notificationText(services, { type: notice, subscription, content, total, events: [] })
  }
  const isSeen = await services.repository.withStore((store) =>
    visibleVersion(store, author.principal, row),
  )
  if (isSeen === undefined) return undefined
  const at = (await readEventTime(services.database, project, id, number)) ?? delivery.added
  const event = await eventFor(services, author.principal, { number, at, change, row }, content)
  const type = 'event-notification'
  return notificationText(services, { type, subscription, content, total: number, events: [event] })
}

/** Keeps the author, whose access decides on the events. */
async function activate(
  { repository, principals }: Services,
  { id = '', meta }: Resource,
): Promise<void> {
  const project = await principals.project(meta?.project ?? '')
  if (project === undefined) return
  await repository.patch(systemPrincipal(project), { type: SUBSCRIPTION, id }, (current) => {
    const isCurrent = current.meta?.versionId === meta?.versionId
    return isCurrent && current.status === 'requested' ? { ...current, status: 'active' } : current
  })
}

async function isOvertaken({ services, delivery }: Task): Promise<boolean> {
  const { ver, isDeleted } = await services.repository.withStore((store) =>
    newestVersion(store, delivery),
  )
  return ver > delivery.ver || (isDeleted && delivery.change !== 'delete')
}

function stopped(reason: string): Sent {
  return { kind: 'stopped', reason }
}

// Subscriptions ended by the service: expired or unreachable

const MOST_MEMBERSHIPS = 1000
interface End {
  readonly status: 'off' | 'error'
  readonly error?: string
  /** The status that it replaces; otherwise `active`. */
  readonly from?: 'requested'
}

/** One worker does it; the Project's admins get one mail about an error. */
export async function endSubscription(
  services: Services,
  { id = '', meta }: Resource,
  end: End,
): Promise<void> {
  const { repository, principals, config } = services
  const project = await principals.project(meta?.project ?? '')
  if (project === undefined) return
  const { status, error, from = 'active' } = end
  const emails = error === undefined ? [] : await findAdminEmails(services, project.id)
  await repository.transaction(async (inner) => {
    let isEnded = false
    await inner.patch(systemPrincipal(project), { type: SUBSCRIPTION, id }, (current) => {
      isEnded = current.status === from
      return isEnded ? { ...current, status, ...(error && { error }) } : current
    })
    if (!isEnded || error === undefined) return
    for (const email of emails) {
      await inner.addMail(
        project.id,
        subscriptionMail(config, email, { projectName: project.name, id, error }),
      )
    }
  })
}

export async function endOverdue(services: Services): Promise<void> {
  for (const row of await endedSubscriptions(services.database)) {
    await endSubscription(services, parseVersion(toVersion(row)), { status: 'off' }).catch(
      (error: unknown) => {
        if (!(error instanceof HttpError) || error.status >= 500) throw error
      },
    )
  }
}

async function findAdminEmails(
  { repository }: Services,
  projectId: string,
): Promise<readonly string[]> {
  const found = await find(repository, system, 'ProjectMembership', {
    conditions: [equals('project', 'reference', `Project/${projectId}`)],
    count: MOST_MEMBERSHIPS,
  })
  const ids = found
    .filter(({ admin, active }) => admin === true && active !== false)
    .flatMap(({ user }) => targetIn(user) ?? [])
    .filter(({ type }) => type === 'User')
  const users = await repository.readMany(system, ids)
  return users.flatMap((version) => {
    const email = version?.content === undefined ? undefined : parseVersion(version).email
    return typeof email === 'string' ? [email] : []
  })
}
