/** The worker's metrics; web's /metrics shows those of all workers. */
import { Counter, collectDefaultMetrics, Histogram, Registry } from 'prom-client'
import { gauges, type Labels, readPssBytes } from '../../shared/core/gauges.ts'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Services } from '../../shared/request/services.ts'
import type { ExecutorsStats } from './executors.ts'
import type { RunResult } from './run-result.ts'
import type { HeldRuns } from './slots.ts'

export type RunMetrics = ReturnType<typeof createMetrics>

const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
/** Further bots share one label, which bounds the text in each heartbeat. */
const MOST_BOTS = 500
const OTHERS = { project: 'other', bot: 'other' }

export function createMetrics(stats: () => ExecutorsStats, storage: Services['storage']) {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry, prefix: 'worker_' })
  const makers = createMakers(registry)
  const { aCounter, aHistogram } = makers
  const calls = aCounter('bot_host_calls_total', 'Calls of handlers to the worker', ['kind'])
  const cpu = aHistogram('bot_handler_cpu_seconds', 'Processor time of a handler')
  const wall = aHistogram('bot_handler_wall_seconds', 'Time from the start to the end of a handler')
  const replaced = aCounter('bot_events_replaced_total', 'Events that a later one replaced', [])
  watchExecutors(makers, stats)
  makers.aGauge(
    'worker_process_pss_bytes',
    'Memory of the worker in which shared pages count once among their processes, without its executors; 0 outside Linux',
    [],
    () => readPssBytes() ?? 0,
  )
  new Counter({
    name: 'worker_storage_errors_total',
    help: 'Calls of the storage that have failed in workers',
    registers: [registry],
    collect() {
      this.reset()
      this.inc(storage.failures ?? 0)
    },
  })
  return {
    registry,
    started: countRuns(makers),
    used({ cpuMs, wallMs }: Pick<RunResult, 'cpuMs' | 'wallMs'>): void {
      cpu.observe(cpuMs / 1000)
      wall.observe(wallMs / 1000)
    },
    ...countHolds(makers),
    replaced: (events: number) => replaced.inc(events),
    hostCall: (kind: string) => calls.inc({ kind }),
    occurrence: countOccurrences(makers),
    text: async () => JSON.stringify(await registry.getMetricsAsJSON()),
  }
}

type Makers = ReturnType<typeof createMakers>

function createMakers(registry: Registry) {
  const registers = [registry]
  return {
    aCounter: (name: string, help: string, labelNames: string[]) =>
      new Counter({ name, help, labelNames, registers }),
    aHistogram: (name: string, help: string, labelNames: string[] = []) =>
      new Histogram({ name, help, labelNames, buckets: BUCKETS, registers }),
    aGauge: gauges(registry),
  }
}

function countRuns({ aCounter, aGauge, aHistogram }: Makers) {
  const runs = aCounter('bot_runs_total', 'Finished bot runs', [
    'project',
    'bot',
    'mode',
    'outcome',
  ])
  const wait = aHistogram('bot_queue_wait_seconds', 'From the queue to the start of a run', [
    'mode',
  ])
  const duration = aHistogram('bot_run_seconds', 'Time a bot run took in the worker', ['mode'])
  const known = new Map<string, { readonly labels: Labels; running: number }>()
  aGauge('bot_slots_used', 'Bot runs in progress', ['project', 'bot'], () =>
    [...known.values()].flatMap(({ labels, running }) => (running > 0 ? [[labels, running]] : [])),
  )
  const place = ({ projectId, botId }: ExecuteJob) => {
    const name = `${projectId}/${botId}`
    const found = known.get(name)
    if (found !== undefined) return found
    const isOne = known.size < MOST_BOTS
    const key = isOne ? name : 'other'
    const labels = isOne ? { project: projectId, bot: botId } : OTHERS
    const made = known.get(key) ?? { labels, running: 0 }
    known.set(key, made)
    return made
  }
  /** Counts a started run. The returned function ends it with `ok` or the failure; times in ms. */
  return (job: ExecuteJob) => {
    const mine = place(job)
    const mode = runMode(job)
    mine.running++
    return (outcome: string, queuedMs: number, ranMs: number): void => {
      mine.running--
      runs.inc({ ...mine.labels, mode, outcome })
      wait.observe({ mode }, queuedMs / 1000)
      duration.observe({ mode }, ranMs / 1000)
    }
  }
}

function countHolds({ aGauge, aHistogram }: Makers) {
  const holds = aHistogram(
    'bot_hold_seconds',
    'Time a run waited for its key, its rate or its slot, by reason',
    ['reason'],
  )
  let heldRuns: () => readonly HeldRuns[] = () => []
  aGauge(
    'bot_runs_held',
    'Runs that wait for their slot: a cap of the bot or project, memory, a turn',
    ['project', 'reason'],
    () => heldRuns().map(({ count, ...labels }) => [labels, count]),
  )
  return {
    held: (reason: string, ms: number) => holds.observe({ reason }, ms / 1000),
    /** Reports waiting runs through `held` whenever the metrics are read. */
    showHeld(held: () => readonly HeldRuns[]): void {
      heldRuns = held
    },
  }
}

function countOccurrences({ aCounter, aHistogram }: Makers) {
  const occurrences = aCounter(
    'bot_schedule_occurrences_total',
    'Occurrences of schedules: queued, or why they were skipped',
    ['outcome'],
  )
  const drift = aHistogram(
    'bot_schedule_drift_seconds',
    'Time from the occurrence of a schedule to its job in the queue',
  )
  /** Counts occurrences of a schedule; `driftMs` is the delay into the queue. */
  return (
    outcome: 'queued' | 'missed' | 'overlap' | 'feature' | 'membership' | 'code',
    count: number,
    driftMs?: number,
  ): void => {
    occurrences.inc({ outcome }, count)
    if (driftMs !== undefined) drift.observe(driftMs / 1000)
  }
}

function watchExecutors({ aGauge }: Makers, stats: () => ExecutorsStats): void {
  aGauge(
    'bot_executors',
    'Executors by state; held_versions are bots that always run alone',
    ['state'],
    () => {
      const { executors, spares, quarantined, heldVersions } = stats()
      const states = { bound: executors, spare: spares, quarantined, held_versions: heldVersions }
      return Object.entries(states).map(([state, count]) => [{ state }, count])
    },
  )
  aGauge('bot_executor_deaths_total', 'Executors that ended, by cause', ['cause'], () =>
    Object.entries(stats().deaths).map(([cause, count]) => [{ cause }, count]),
  )
  aGauge('bot_isolates', 'Isolates alive', [], () => stats().isolates)
  aGauge('bot_runs_in_executors', 'Runs in executors', [], () => stats().running)
  aGauge('bot_runs_before_executors', 'Runs waiting for their executor', [], () => stats().waiting)
  aGauge('bot_executor_rss_megabytes', 'Resident memory of the executors', [], () => stats().rssMb)
}

function runMode({ asynchronous, delivery }: ExecuteJob): 'sync' | 'async' | 'event' {
  if (delivery) return 'event'
  return asynchronous ? 'async' : 'sync'
}
