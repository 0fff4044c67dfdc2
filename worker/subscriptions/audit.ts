/** Writes one AuditEvent per attempt, or one for many successes. */

import { Counter, Histogram, type Registry } from 'prom-client'
import { EVENT_SYSTEM, SERVICE_NAME } from '../../shared/access/guarded/elements.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import type { SubscriptionTerms } from '../../shared/access/subscription.ts'
import { Cache } from '../../shared/core/cache.ts'
import { HttpError } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { tracingExtension } from '../../shared/request/reply.ts'
import type { Services } from '../../shared/request/services.ts'
import type { Repository } from '../../shared/store/repository.ts'
import { parseVersion, toVersion } from '../../shared/store/rows/rows.ts'
import type { Delivery } from '../../shared/subscriptions/deliveries.ts'
import type { MatchResult } from '../../shared/subscriptions/events.ts'
import {
  claimUnreported,
  type Unreported,
  unreportedSubscriptions,
} from '../../shared/subscriptions/state.ts'
import type { Sent } from './hooks.ts'

interface AttemptRecord {
  readonly subscription: Resource
  /** `Type/id`. */
  readonly reference: string
  readonly outcome: '0' | '4' | '8'
  readonly text: string
  readonly startedAt: Date
  readonly cause: { readonly traceId?: string; readonly requestId?: string }
  readonly destinations: SubscriptionTerms['audit']
}

export async function auditAttempt(services: Services, record: AttemptRecord): Promise<void> {
  const { subscription, reference, outcome, text, startedAt, cause, destinations } = record
  const tracing = tracingExtension(cause)
  const event: Resource & Readonly<Record<string, unknown>> = {
    ...auditEvent(subscription, { startedAt, references: [reference], outcome, text }),
    ...(tracing.extension.length > 0 ? { extension: [tracing] } : {}),
  }
  if (destinations.has('log')) {
    // The text may quote a response, and so data of a patient.
    const { outcomeDesc: _, ...logged } = event
    services.log.info({ auditEvent: logged }, 'Delivery of a Subscription')
  }
  if (destinations.has('resource')) {
    await store(services, services.repository, subscription, event)
  }
}

async function auditSuccesses(
  services: Services,
  repository: Pick<Repository, 'create'>,
  subscription: Resource,
  { count, since }: Unreported,
): Promise<void> {
  const text = `${count} attempts received a success status`
  await store(
    services,
    repository,
    subscription,
    auditEvent(subscription, { startedAt: since, references: [], outcome: '0', text }),
  )
}

async function store(
  { principals }: Services,
  repository: Pick<Repository, 'create'>,
  { meta }: Resource,
  event: Resource,
): Promise<void> {
  const project = (await principals.project(meta?.project ?? '')) ?? SYSTEM_PROJECT
  await repository.create(systemPrincipal(project), event)
}

interface AuditedDelivery {
  readonly startedAt: Date
  readonly references: readonly string[]
  readonly outcome: AttemptRecord['outcome']
  readonly text: string
}

function auditEvent(
  { id, meta }: Resource,
  { startedAt, references, outcome, text }: AuditedDelivery,
): Resource {
  const now = new Date().toISOString()
  const observer = { reference: `Subscription/${id}` }
  const { account, accounts } = meta ?? {}
  return {
    resourceType: 'AuditEvent',
    ...(account || accounts
      ? { meta: { ...(account && { account }), ...(accounts && { accounts }) } }
      : {}),
    type: { system: EVENT_SYSTEM, code: 'transmit' },
    period: { start: startedAt.toISOString(), end: now },
    recorded: now,
    agent: [{ who: meta?.author ?? { display: SERVICE_NAME }, requestor: false }],
    source: { observer },
    entity: [...references.map((reference) => ({ what: { reference } })), { what: observer }],
    outcome,
    outcomeDesc: text,
  }
}

// The first successes of a minute have an AuditEvent each; PostgreSQL counts the others with the receipts for one
// summary per minute.
const ALONE_A_MINUTE = 60
const MINUTE_MS = 60_000
const KEPT = 20_000

/** Returns whether the next success of a Subscription gets a separate AuditEvent. */
export function createReportedAlone(): (of: Pick<Delivery, 'project' | 'subscription'>) => boolean {
  const counts = new Cache<string, { readonly minute: number; count: number }>({
    name: 'audited-deliveries',
    max: KEPT,
  })
  return ({ project, subscription }) => {
    const key = `${project} ${subscription}`
    const minute = Math.floor(Date.now() / MINUTE_MS)
    let counted = counts.get(key)
    if (counted?.minute !== minute) {
      counted = { minute, count: 0 }
      counts.set(key, counted)
    }
    counted.count += 1
    return counted.count <= ALONE_A_MINUTE
  }
}

/** One worker writes each AuditEvent. */
export async function reportSuccesses(services: Services): Promise<void> {
  for (const place of await unreportedSubscriptions(services.database)) {
    const reporting = services.repository.transaction(async (inner) => {
      const unreported = await inner.withConnection((connection) =>
        claimUnreported(connection, place),
      )
      if (unreported?.version === undefined) return
      const subscription = parseVersion(toVersion(unreported.version))
      await auditSuccesses(services, inner, subscription, unreported)
    })
    await reporting.catch((error: unknown) => {
      // A failure of one, such as a deleted Project, does not block the others.
      if (!(error instanceof HttpError) || error.status >= 500) throw error
    })
  }
}

// Event metrics, shown by web's /metrics for all workers.

export interface EventMetrics {
  matched(found: MatchResult): void
  skipped(): void
  attempted(delivery: Delivery, sent: Sent, startedAt: Date): void
}

const BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600, 3600]

export function createEventMetrics(registry: Registry): EventMetrics {
  const registers = [registry]
  const counter = (name: string, help: string, ...labelNames: string[]) =>
    new Counter({ name, help, labelNames, registers })
  const histogram = (name: string, help: string) =>
    new Histogram({ name, help, buckets: BUCKETS, registers })
  const events = counter('events_total', 'Changes that were looked at')
  const matches = counter('event_matches_total', 'Subscriptions that wait for one', 'channel')
  const skips = counter('event_skipped_matches_total', 'Subscriptions that could not be matched')
  const attempts = counter('event_attempts_total', 'Attempts to deliver an event', 'outcome')
  const wait = histogram('event_wait_seconds', 'From the match of an event to its first attempt')
  const duration = histogram('event_attempt_seconds', 'Time of an attempt')
  const whole = histogram('event_delivered_seconds', 'From the match of an event to its receipt')
  return {
    matched(found) {
      events.inc(found.events.length)
      matches.inc({ channel: 'delivery' }, found.deliveries.length)
      matches.inc({ channel: 'websocket' }, found.notifications.length)
    },
    skipped: () => skips.inc(),
    attempted({ attempt, added }, sent, startedAt) {
      const now = Date.now()
      const outcome = sent.kind === 'stopped' ? `stopped: ${sent.reason}` : sent.kind
      attempts.inc({ outcome })
      if (attempt === 1) wait.observe(secondsBetween(added.getTime(), startedAt.getTime()))
      duration.observe(secondsBetween(startedAt.getTime(), now))
      if (sent.kind === 'received') whole.observe(secondsBetween(added.getTime(), now))
    },
  }
}

function secondsBetween(from: number, to: number): number {
  return Math.max(0, to - from) / 1000
}
