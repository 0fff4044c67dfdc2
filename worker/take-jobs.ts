/** Takes jobs of the worker's queues until it is stopped. */
import { setTimeout as delay } from 'node:timers/promises'
import { openFollowed } from '../shared/bots/live-logs.ts'
import { countActiveProjects, createStats } from '../shared/bots/stats.ts'
import { startExports } from '../shared/export/worker.ts'
import { createExportMetrics } from '../shared/export/worker-services.ts'
import { startImports } from '../shared/import/worker.ts'
import { BOT_QUEUES, type BotQueue } from '../shared/queue/jobs.ts'
import { openRuns, type Runs } from '../shared/queue/runs.ts'
import { type RunWorker, startRunWorker } from '../shared/queue/worker.ts'
import { listenForWakes } from '../shared/redis/wakes.ts'
import { watchWebLoad } from '../shared/redis/web-load.ts'
import type { Services } from '../shared/request/services.ts'
import { openAnswerStreams } from './bots/answer-stream.ts'
import { startDeadLetters } from './bots/dead-letters.ts'
import { type Executors, executorsWithin, openExecutors, runsWithin } from './bots/executors.ts'
import { startSweep } from './bots/left-runs.ts'
import { createMetrics, type RunMetrics } from './bots/metrics.ts'
import { createRunReports } from './bots/run-reports.ts'
import { startSchedules } from './bots/run-schedules.ts'
import { Runner } from './bots/runner.ts'
import { MOST_HELD } from './bots/slots.ts'
import { startRequests } from './jobs/async-requests.ts'
import { startDownloads } from './jobs/upkeep/downloads.ts'
import { startUpkeepJobs } from './jobs/upkeep/jobs.ts'
import { startTableUpkeep } from './jobs/upkeep/tables.ts'
import { startMail } from './mail/outbox.ts'
import { createEventMetrics } from './subscriptions/audit.ts'
import { startEvents } from './subscriptions/deliver.ts'
import { createSocketHooks } from './subscriptions/sockets.ts'

interface TakingJobs {
  /** Takes no new jobs and waits for current work, then abandons the rest. */
  stop(finishMs: number): Promise<void>
}

const GIVE_BACK_MS = 3000
const REPORT_MS = 2000

/** `spares` is the number of blank executors to keep if a queue runs bots. */
export async function takeJobs(services: Services, spares = 2): Promise<TakingJobs> {
  const { config, log } = services
  const executors = await startExecutors(services, spares)
  const served = BOT_QUEUES.filter((name) => config.workerQueues.includes(name))
  const runs = await openRuns(config, services.bus, log)
  const metrics = createMetrics(() => executors.stats(), services.storage)
  const stats = createStats()
  const followed = await openFollowed(services.bus)
  const reports = createRunReports(services, followed)
  const streams = await openAnswerStreams(services.bus)
  const runner = new Runner({ services, runs, executors, streams, reports, metrics, stats })
  const opened: Opened = { services, runs, runner, metrics }
  const features = await startFeatures(opened)
  const workers = await Promise.all(served.map((queue) => startBotWorker(opened, queue)))
  const wakes = await listenForAllWakes(services, features)
  await runs.presence.announce(served, async () => {
    await stats.flush(services.redis)
    return await metrics.text()
  })
  log.info({ queues: served, concurrency: config.workerConcurrency }, 'taking jobs')

  const stop = async (finishMs: number) => {
    for (const listening of wakes) listening.close()
    const { exports, imports, requests, events, loops } = features
    // Parts are released after their writes.
    const left = Promise.all([exports?.stop(), imports?.stop()])
    const closed = Promise.all([
      ...workers.map((worker) => worker.close()),
      requests?.stop(),
      events?.stop(finishMs),
    ])
    await waitAtMost(finishMs, closed)
    runner.abandonAll()
    await waitAtMost(
      GIVE_BACK_MS,
      closed.then(() => runner.close()),
    )
    // A store that no longer answers must not delay the exit; leases and presence there expire.
    const released = [...loops.map((loop) => loop.stop()), left, runs.close(), executors.close()]
    await waitAtMost(GIVE_BACK_MS, Promise.all(released))
    streams.close()
    const counted = stats.flush(services.redis).catch(() => undefined)
    await waitAtMost(REPORT_MS, Promise.all([reports.close(), counted]))
  }
  return { stop }
}

/** Queues whose jobs run bots in the worker that takes them. */
const RUNS_BOTS: readonly string[] = [...BOT_QUEUES, 'change']

/** Starts an executor for each project of the last minutes before runs are taken, so that their first calls do not wait for one. */
async function startExecutors(
  { config, log, redis }: Services,
  spares: number,
): Promise<Executors> {
  const memoryMb = config.workerMemoryMb
  const runsBots = config.workerQueues.some((name) => RUNS_BOTS.includes(name))
  return await openExecutors({
    log,
    maxExecutors: executorsWithin(memoryMb),
    memoryMb,
    spares: runsBots ? spares : 0,
    firstSpares: runsBots ? await countActiveProjects(redis) : 0,
  })
}

interface Opened {
  readonly services: Services
  readonly runs: Runs
  readonly runner: Runner
  readonly metrics: RunMetrics
}

/** Starts the features for this worker's queues; undefined for others. */
async function startFeatures({ services, runs, runner, metrics }: Opened) {
  const { config, redis } = services
  const { registry } = metrics
  const has = (name: (typeof config.workerQueues)[number]) => config.workerQueues.includes(name)
  const isWebBusy = watchWebLoad(redis)
  const isBusy = () => isWebBusy() || runner.active > 0
  return {
    loops: [
      startSweep(services),
      ...(has('upkeep') ? [startTableUpkeep(services), startUpkeepJobs(services)] : []),
      ...(has('upkeep') ? startDeadLetters(services) : []),
      ...(has('upkeep') && config.autoDownload ? [startDownloads(services)] : []),
      ...(has('schedules') ? [startSchedules(services, metrics, () => runs.presence.now())] : []),
      ...(has('mail') ? [startMail(services)] : []),
    ],
    events: has('change')
      ? await startEvents(
          services,
          runner,
          createEventMetrics(registry),
          createSocketHooks(services),
        )
      : undefined,
    requests: has('requests') ? startRequests(services, runs) : undefined,
    exports: has('export')
      ? startExports(services, createExportMetrics(registry), isBusy)
      : undefined,
    imports: has('import') ? startImports(services) : undefined,
  }
}

/** Events listen for their own. */
function listenForAllWakes(
  { bus }: Services,
  features: Awaited<ReturnType<typeof startFeatures>>,
): Promise<readonly { close(): void }[]> {
  const { requests, exports, imports } = features
  return Promise.all([
    ...(requests ? [listenForWakes(bus, 'requests', requests.wake)] : []),
    ...(exports ? [listenForWakes(bus, 'export', exports.wake)] : []),
    ...(imports ? [listenForWakes(bus, 'import', imports.wake)] : []),
  ])
}

function startBotWorker(
  { services: { config, log }, runs, runner }: Opened,
  queue: BotQueue,
): Promise<RunWorker> {
  return startRunWorker({
    queue,
    connection: runs.connection,
    log,
    concurrency: config.workerConcurrency,
    // Runs waiting in isolates or for one.
    mostWaiting: runsWithin(config.workerMemoryMb) + MOST_HELD,
    runner,
  })
}

async function waitAtMost(ms: number, work: Promise<unknown>): Promise<void> {
  await Promise.race([work, delay(ms, undefined, { ref: false })])
}
