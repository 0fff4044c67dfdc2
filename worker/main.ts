/** The worker process: reads settings, opens services, takes jobs; on SIGTERM finishes current work and exits. */
import { availableParallelism } from 'node:os'
import { openServices, StartError } from '../shared/api/open-services.ts'
import { openFollowed } from '../shared/bots/live-logs.ts'
import { createStats } from '../shared/bots/stats.ts'
import { readConfig } from '../shared/core/config/config.ts'
import { ConfigError } from '../shared/core/config/reader.ts'
import { createLogger } from '../shared/core/log.ts'
import { createExportMetrics } from '../shared/export/exporting.ts'
import { startExports } from '../shared/export/run.ts'
import { startImports } from '../shared/import/run.ts'
import { BOT_QUEUES, type BotQueue, EXPORTS, IMPORTS, REQUESTS } from '../shared/queue/jobs.ts'
import { openRuns, type Runs } from '../shared/queue/runs.ts'
import { type RunWorker, startRunWorker, startWakeWorker } from '../shared/queue/worker.ts'
import { openRedis } from '../shared/redis/redis.ts'
import { watchWebLoad } from '../shared/redis/web-load.ts'
import type { Services } from '../shared/request/services.ts'
import type { Notification } from '../shared/subscriptions/events.ts'
import {
  publishNotifications,
  socketSubscriptions,
} from '../shared/subscriptions/socket-subscriptions.ts'
import { type Executors, executorsWithin, openExecutors, runsWithin } from './bots/executors.ts'
import { startSweep } from './bots/left-runs.ts'
import { createMetrics, type RunMetrics } from './bots/metrics.ts'
import { Runner } from './bots/run.ts'
import { createRunReports } from './bots/run-reports.ts'
import { startSchedules } from './bots/run-schedules.ts'
import { MOST_HELD } from './bots/slots.ts'
import { startRequests } from './jobs/requests/run.ts'
import { startDownloads } from './jobs/upkeep/downloads.ts'
import { startUpkeepJobs } from './jobs/upkeep/jobs.ts'
import { startTableUpkeep } from './jobs/upkeep/tables.ts'
import { startMail } from './mail/run.ts'
import { createEventMetrics } from './subscriptions/audit.ts'
import { startEvents } from './subscriptions/deliver.ts'

/** Platforms kill after 30 s. */
const FINISH_MS = 20_000
const GIVE_BACK_MS = 3000
async function main(): Promise<void> {
  const config = readConfig()
  const log = createLogger(config.logLevel, 'worker')
  const services = await openServices(config, log)
  const executors = await startExecutors(services)
  const served = BOT_QUEUES.filter((name) => config.workerQueues.includes(name))
  const runs = await openRuns(config, services.bus, log)
  const metrics = createMetrics(() => executors.stats(), services.storage)
  const stats = createStats()
  const followed = await openFollowed(services.bus)
  const reports = createRunReports(services, followed)
  const runner = new Runner({ services, runs, executors, reports, metrics, stats })
  const opened: Opened = { services, runs, runner, metrics }
  const features = await startFeatures(opened)
  const workers = await Promise.all([
    ...served.map((queue) => startBotWorker(opened, queue)),
    ...startWakeWorkers(services, features),
  ])
  await runs.presence.announce(served, async () => {
    await stats.flush(services.redis)
    return await metrics.text()
  })
  log.info({ queues: served, concurrency: config.workerConcurrency }, 'taking jobs')

  let stopping = false
  const stop = async (signal: NodeJS.Signals) => {
    if (stopping) process.exit(1)
    stopping = true
    log.info({ signal, active: runner.active }, 'stopping')
    const { exports, imports, requests, events, loops } = features
    // Parts are released after their writes.
    const left = Promise.all([exports?.stop(), imports?.stop()])
    const closed = Promise.all([
      ...workers.map((worker) => worker.close()),
      events?.stop(FINISH_MS),
    ])
    await Promise.race([closed, pause(FINISH_MS)])
    runner.abandonAll()
    await Promise.race([closed.then(() => runner.close()), pause(GIVE_BACK_MS)])
    await Promise.all([
      requests?.stop(),
      ...loops.map((loop) => loop.stop()),
      // A part waiting for hung storage is left behind: its lease expires.
      Promise.race([left, pause(GIVE_BACK_MS)]),
      runs.close(),
      executors.close(),
    ])
    await reports.close()
    await stats.flush(services.redis).catch(() => undefined)
    await services.close()
    log.info('stopped')
    process.exit(0)
  }
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => void stop(signal))
  }
}

function startExecutors({ config, log }: Services): Promise<Executors> {
  const memoryMb = config.workerMemoryMb
  return openExecutors({
    log,
    maxExecutors: executorsWithin(memoryMb),
    memoryMb,
    spares: 2,
    isolatesPerBot: Math.max(4, availableParallelism()),
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
  const sockets = {
    sockets: (ids: readonly string[]) => socketSubscriptions(services, ids),
    publish: (notifications: readonly Notification[]) =>
      publishNotifications(services, notifications),
  }
  return {
    loops: [
      startSweep(services),
      ...(has('upkeep') ? [startTableUpkeep(services), startUpkeepJobs(services)] : []),
      ...(has('upkeep') && config.autoDownload ? [startDownloads(services)] : []),
      ...(has('schedules') ? [startSchedules(services, metrics, () => runs.presence.now())] : []),
      ...(has('mail') ? [startMail(services)] : []),
    ],
    events: has('change')
      ? await startEvents(services, runner, createEventMetrics(registry), sockets)
      : undefined,
    requests: has(REQUESTS) ? startRequests(services, runs) : undefined,
    exports: has(EXPORTS)
      ? startExports(services, createExportMetrics(registry), isBusy)
      : undefined,
    imports: has(IMPORTS) ? startImports(services) : undefined,
  }
}

function startWakeWorkers(
  { config, log }: Services,
  { requests, exports, imports }: Awaited<ReturnType<typeof startFeatures>>,
): readonly Promise<RunWorker>[] {
  const start = (queue: string, process: (id: string) => Promise<void>) =>
    startWakeWorker({ queue, connection: openRedis(config, 'worker', log), log, process })
  return [
    ...(requests ? [start(REQUESTS, requests.process)] : []),
    ...(exports ? [start(EXPORTS, async () => exports.wake())] : []),
    ...(imports ? [start(IMPORTS, async () => imports.wake())] : []),
  ]
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
    process: (taken, rest) => runner.process(taken, rest),
    giveUp: (job, isPoison) => runner.giveUp(job, isPoison),
  })
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms).unref())
}

main().catch((error: unknown) => {
  const isPlain = error instanceof ConfigError || error instanceof StartError
  const text = error instanceof Error && !isPlain ? error.stack : String((error as Error).message)
  process.stderr.write(`${text}\n`, () => process.exit(1))
})
