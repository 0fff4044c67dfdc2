/** The worker's metrics; web's /metrics shows those of all workers. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import type { ExecuteJob } from '../../shared/queue/jobs.ts'
import type { Services } from '../../shared/request/services.ts'
import type { ExecutorsStats } from './executors.ts'
import type { RunResult } from './run-result.ts'
import type { HeldRuns } from './slots.ts'

export interface RunMetrics {
  /** Counts a started run. The returned function ends it with `ok` or the failure; times in ms. */
  started(job: ExecuteJob): (outcome: string, queuedMs: number, ranMs: number) => void
  used(result: Pick<RunResult, 'cpuMs' | 'wallMs'>): void
  hostCall(kind: string): void
  held(reason: string, ms: number): void
  /** Reports waiting runs through `held` whenever the metrics are read. */
  showHeld(held: () => readonly HeldRuns[]): void
  /** Counts an occurrence of a schedule; `driftMs` is its delay into the queue. */
  occurrence(
    outcome: 'queued' | 'missed' | 'overlap' | 'feature' | 'membership' | 'code',
    count: number,
    driftMs?: number,
  ): void
  readonly registry: Registry
  text(): Promise<string>
}

const BUCKETS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60]
/** Further bots share one label, which bounds the text in each heartbeat. */
const MOST_BOTS = 500
const OTHERS = { project: 'other', bot: 'other' }

interface Labels {
  readonly project: string
  readonly bot: string
}

export function createMetrics(
  stats: () => ExecutorsStats,
  storage: Services['storage'],
): RunMetrics {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry, prefix: 'worker_' })
  const calls = new Counter({
    name: 'bot_host_calls_total',
    help: 'Calls of handlers to the worker',
    labelNames: ['kind'],
    registers: [registry],
  })
  const handlerHistogram = (name: string, help: string) =>
    new Histogram({ name, help, buckets: BUCKETS, registers: [registry] })
  const cpu = handlerHistogram('bot_handler_cpu_seconds', 'Processor time of a handler')
  const wall = handlerHistogram(
    'bot_handler_wall_seconds',
    'Time from the start to the end of a handler',
  )
  watchExecutors(registry, stats)
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
    started: countRuns(registry),
    used({ cpuMs, wallMs }) {
      cpu.observe(cpuMs / 1000)
      wall.observe(wallMs / 1000)
    },
    ...countHolds(registry),
    hostCall: (kind) => calls.inc({ kind }),
    occurrence: countOccurrences(registry),
    text: async () => JSON.stringify(await registry.getMetricsAsJSON()),
  }
}

function countRuns(registry: Registry): RunMetrics['started'] {
  const registers = [registry]
  const runs = new Counter({
    name: 'bot_runs_total',
    help: 'Finished bot runs',
    labelNames: ['project', 'bot', 'mode', 'outcome'],
    registers,
  })
  const labelNames = ['mode']
  const wait = new Histogram({
    name: 'bot_queue_wait_seconds',
    help: 'From the queue to the start of a run',
    labelNames,
    buckets: BUCKETS,
    registers,
  })
  const duration = new Histogram({
    name: 'bot_run_seconds',
    help: 'Time a bot run took in the worker',
    labelNames,
    buckets: BUCKETS,
    registers,
  })
  const known = new Map<string, { readonly labels: Labels; running: number }>()
  new Gauge({
    name: 'bot_slots_used',
    help: 'Bot runs in hand',
    labelNames: ['project', 'bot'],
    registers,
    collect() {
      this.reset()
      for (const { labels, running } of known.values()) {
        if (running > 0) this.inc({ ...labels }, running)
      }
    },
  })
  const place = ({ projectId, botId }: ExecuteJob) => {
    const found = known.get(botId)
    if (found !== undefined) return found
    const isOne = known.size < MOST_BOTS
    const key = isOne ? botId : 'other'
    const labels = isOne ? { project: projectId, bot: botId } : OTHERS
    const made = known.get(key) ?? { labels, running: 0 }
    known.set(key, made)
    return made
  }
  return (job) => {
    const mine = place(job)
    const mode = modeOf(job)
    mine.running++
    return (outcome, queuedMs, ranMs) => {
      mine.running--
      runs.inc({ ...mine.labels, mode, outcome })
      wait.observe({ mode }, queuedMs / 1000)
      duration.observe({ mode }, ranMs / 1000)
    }
  }
}

function countHolds(registry: Registry): Pick<RunMetrics, 'held' | 'showHeld'> {
  const registers = [registry]
  const holds = new Histogram({
    name: 'bot_hold_seconds',
    help: 'Time a run waited for its slot, by reason',
    labelNames: ['reason'],
    buckets: BUCKETS,
    registers,
  })
  let heldRuns: () => readonly HeldRuns[] = () => []
  new Gauge({
    name: 'bot_runs_held',
    help: 'Runs that wait for their slot: a cap of the bot or project, memory, a turn',
    labelNames: ['project', 'reason'],
    registers,
    collect() {
      this.reset()
      for (const { count, ...labels } of heldRuns()) this.set(labels, count)
    },
  })
  return {
    held: (reason, ms) => holds.observe({ reason }, ms / 1000),
    showHeld(held) {
      heldRuns = held
    },
  }
}

function countOccurrences(registry: Registry): RunMetrics['occurrence'] {
  const registers = [registry]
  const occurrences = new Counter({
    name: 'bot_schedule_occurrences_total',
    help: 'Occurrences of schedules: queued, or why they were skipped',
    labelNames: ['outcome'],
    registers,
  })
  const drift = new Histogram({
    name: 'bot_schedule_drift_seconds',
    help: 'Time from the occurrence of a schedule to its job in the queue',
    buckets: BUCKETS,
    registers,
  })
  return (outcome, count, driftMs) => {
    occurrences.inc({ outcome }, count)
    if (driftMs !== undefined) drift.observe(driftMs / 1000)
  }
}

function watchExecutors(registry: Registry, stats: () => ExecutorsStats): void {
  const registers = [registry]
  new Gauge({
    name: 'bot_executors',
    help: 'Executors by state; held_versions are bots that always run alone',
    labelNames: ['state'],
    registers,
    collect() {
      const { executors, spares, quarantined, heldVersions } = stats()
      const states = { bound: executors, spare: spares, quarantined, held_versions: heldVersions }
      for (const [state, count] of Object.entries(states)) this.set({ state }, count)
    },
  })
  new Gauge({
    name: 'bot_executor_deaths_total',
    help: 'Executors that ended, by cause',
    labelNames: ['cause'],
    registers,
    collect() {
      for (const [cause, count] of Object.entries(stats().deaths)) this.set({ cause }, count)
    },
  })
  for (const [name, help, key] of [
    ['bot_isolates', 'Isolates alive', 'isolates'],
    ['bot_runs_in_executors', 'Runs that executors have', 'running'],
    ['bot_runs_before_executors', 'Runs that wait for their executor', 'waiting'],
    ['bot_executor_rss_megabytes', 'Resident memory of the executors', 'rssMb'],
  ] as const) {
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(stats()[key])
      },
    })
  }
}

function modeOf({ asynchronous, delivery }: ExecuteJob): 'sync' | 'async' | 'event' {
  if (delivery) return 'event'
  return asynchronous ? 'async' : 'sync'
}
