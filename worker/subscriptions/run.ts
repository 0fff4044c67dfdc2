/** Events in the worker: changes are matched with Subscriptions, and the deliveries are made. */
import { listenForChanges } from '../../shared/platform/queue/scripts.ts'
import type { Services } from '../../shared/services.ts'
import { createEvents, type MatchOptions } from '../../shared/subscriptions/events.ts'
import type { Runner } from '../bots/run.ts'
import { startLoop } from '../loop.ts'
import { reportSuccesses } from './audit.ts'
import { Deliverer } from './deliver.ts'
import type { EventMetrics } from './metrics.ts'
import { endOverdue } from './subscription-end.ts'

/** The parts of the worker that receive events beside rest-hooks. */
export type EventHooks = Pick<MatchOptions, 'sockets' | 'publish'>

const SWEEP_MS = 1000
const END_MS = 5000
const BATCH = 100

/** Runs until `stop`; workers do it side by side. */
export function startEvents(
  services: Services,
  runner: Runner,
  metrics: EventMetrics,
  hooks: EventHooks,
): { stop(graceMs: number): Promise<void> } {
  const { repository, config, log } = services
  const deliveries = new Deliverer(services, runner, metrics)
  const options: MatchOptions = {
    ...hooks,
    skipped(subscription, error) {
      const reason = error instanceof Error ? error.message : 'unknown'
      metrics.skipped()
      log.warn({ subscription, reason }, 'A Subscription could not be matched')
    },
    compared(subscription, { type, id, ver, change, cause }, isPending) {
      const { requestId, traceId } = cause
      const about = { subscription, resource: `${type}/${id}`, version: ver, interaction: change }
      log.info({ ...about, isPending, requestId, traceId }, 'A Subscription was matched')
    },
  }
  const matching = startLoop(
    { log, name: 'The match of changes', everyMs: SWEEP_MS, level: 'error' },
    async () => {
      const matched = await repository.feature(createEvents).match(BATCH, options)
      metrics.matched(matched)
      if (matched.deliveries.length > 0) deliveries.wake()
      return matched.hasMore
    },
  )
  const ending = startLoop(
    { log, name: 'The end of Subscriptions', everyMs: END_MS, level: 'debug' },
    async () => {
      await Promise.all([endOverdue(services), reportSuccesses(services)])
      return false
    },
  )
  const listening = listenForChanges(config, log, matching.wake)
  return {
    async stop(graceMs) {
      listening.close()
      await Promise.all([matching.stop(), ending.stop()])
      await deliveries.stop(graceMs)
    },
  }
}
