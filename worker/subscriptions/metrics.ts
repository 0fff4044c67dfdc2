/** The worker's metrics of events; web's /metrics shows them for all workers together. */
import { Counter, Histogram, type Registry } from 'prom-client'
import type { Delivery } from '../../shared/subscriptions/deliveries.ts'
import type { Matched } from '../../shared/subscriptions/events.ts'
import type { Sent } from './hooks.ts'

export interface EventMetrics {
  matched(found: Matched): void
  /** A Subscription could not be matched. */
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

/** PostgreSQL's clock and this one may differ a little. */
function secondsBetween(from: number, to: number): number {
  return Math.max(0, to - from) / 1000
}
