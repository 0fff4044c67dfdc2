/** What the worker counts; web's /metrics shows it for all workers together. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'

export interface RunMetrics {
  /** `outcome` is `ok` or the failure; times in ms. */
  run(mode: 'sync' | 'async' | 'event', outcome: string, queuedMs: number, ranMs: number): void
  /** Occurrences of schedules; `driftMs` is how late one was put into the queue. */
  occurrence(
    outcome: 'queued' | 'missed' | 'overlap' | 'feature' | 'membership' | 'code',
    count: number,
    driftMs?: number,
  ): void
  /** The registry as JSON text, for the heartbeat. */
  text(): Promise<string>
}

const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]

/** `slots` tells runs in hand, `isolates` the isolates alive. */
export function createMetrics(gauges: Readonly<Record<string, () => number>>): RunMetrics {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry, prefix: 'worker_' })
  const runs = new Counter({
    name: 'bot_runs_total',
    help: 'Finished bot runs by mode and outcome',
    labelNames: ['mode', 'outcome'],
    registers: [registry],
  })
  const wait = new Histogram({
    name: 'bot_queue_wait_seconds',
    help: 'Time from the queue to the start of a bot run',
    labelNames: ['mode'],
    buckets: BUCKETS,
    registers: [registry],
  })
  const duration = new Histogram({
    name: 'bot_run_seconds',
    help: 'Time a bot run took in the worker',
    labelNames: ['mode'],
    buckets: BUCKETS,
    registers: [registry],
  })
  const occurrences = new Counter({
    name: 'bot_schedule_occurrences_total',
    help: 'Occurrences of schedules: queued, or why they were skipped',
    labelNames: ['outcome'],
    registers: [registry],
  })
  const drift = new Histogram({
    name: 'bot_schedule_drift_seconds',
    help: 'Time from the occurrence of a schedule to its job in the queue',
    buckets: BUCKETS,
    registers: [registry],
  })
  for (const [name, read] of Object.entries(gauges)) {
    new Gauge({
      name: `bot_${name}`,
      help: `Bot ${name} of the workers`,
      registers: [registry],
      collect() {
        this.set(read())
      },
    })
  }
  return {
    run(mode, outcome, queuedMs, ranMs) {
      runs.inc({ mode, outcome })
      wait.observe({ mode }, queuedMs / 1000)
      duration.observe({ mode }, ranMs / 1000)
    },
    occurrence(outcome, count, driftMs) {
      occurrences.inc({ outcome }, count)
      if (driftMs !== undefined) drift.observe(driftMs / 1000)
    },
    text: async () => JSON.stringify(await registry.getMetricsAsJSON()),
  }
}
