/** The worker process: read settings, open services, take jobs; on SIGTERM finish what runs and leave. */
import { availableParallelism } from 'node:os'
import { DelayedError, type Job, UnrecoverableError, WaitingError, Worker } from 'bullmq'
import { openFollowed } from '../shared/bots/live-logs.ts'
import { type Config, readConfig } from '../shared/config/config.ts'
import { ConfigError } from '../shared/config/reader.ts'
import { createLogger, type Logger } from '../shared/log.ts'
import { openServices, StartError } from '../shared/open-services.ts'
import {
  type BotQueue,
  EXPORTS,
  type ExecuteJob,
  IMPORTS,
  REQUESTS,
} from '../shared/platform/queue/jobs.ts'
import { watchWorkers } from '../shared/platform/queue/lost-workers.ts'
import { botQueues, openRuns, type Runs } from '../shared/platform/queue/runs.ts'
import { PREFIX } from '../shared/platform/queue/scripts.ts'
import { createStats } from '../shared/platform/queue/stats.ts'
import { LendingWorker, type Loans } from '../shared/platform/queue/worker.ts'
import { openRedis } from '../shared/platform/redis/redis.ts'
import { watchWebLoad } from '../shared/platform/redis/web-load.ts'
import type { Services } from '../shared/services.ts'
import type { Notification } from '../shared/subscriptions/events.ts'
import {
  publishNotifications,
  socketSubscriptions,
} from '../shared/subscriptions/socket-subscriptions.ts'
import { createAudit } from './bots/audit.ts'
import {
  type Executors,
  executorsWithin,
  openExecutors,
  runsWithin,
} from './bots/executors/executors.ts'
import { createMetrics, type RunMetrics } from './bots/metrics.ts'
import { LeftToUpkeep, startSweep } from './bots/ownership.ts'
import { createRecentRuns } from './bots/recent-runs.ts'
import { Again } from './bots/retries.ts'
import { HandedBack, Runner } from './bots/run.ts'
import { createRunReports } from './bots/run-reports.ts'
import { startSchedules } from './bots/schedules/run.ts'
import { Deferred, MOST_HELD } from './bots/slots.ts'
import { createExportMetrics } from './bulk/exports/exporting.ts'
import { startExports } from './bulk/exports/run.ts'
import { startImports } from './bulk/imports/run.ts'
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
/** Bundles are large: more requests at once would only share the same processor and connections. */
const PLAIN_AT_ONCE = 2

/**
 * After a kill a job is taken up within lock + interval: a waiting caller gives little time, a run in
 * the background is promised 30 s.
 */
const LOCKS = {
  'bots-sync': { lockDuration: 10_000, stalledInterval: 5000 },
  'bots-async': { lockDuration: 20_000, stalledInterval: 5000 },
} as const

async function main(): Promise<void> {
  const config = readConfig()
  const log = createLogger(config.logLevel, 'worker')
  const services = await openServices(config, log)
  const executors = await startExecutors(services)
  const served = botQueues(config.workerQueues)
  const runs = await openRuns(config, services.bus, log)
  const metrics = createMetrics(() => executors.stats(), services.storage)
  const stats = createStats()
  const followed = await openFollowed(services.bus)
  const reports = createRunReports(createAudit(services), createRecentRuns(services), followed)
  const runner = new Runner({ services, runs, executors, reports, metrics, stats })
  const opened: Opened = { services, runs, runner, metrics }
  const features = await startFeatures(opened)
  // Runs beside the places of the queues: those that wait in their isolates, and those that wait for one.
  const loans: Loans = { most: runsWithin(config.workerMemoryMb) + MOST_HELD, count: 0 }
  const botWorkers = served.map((queue) => startWorker(opened, queue, loans))
  const workers = [...botWorkers, ...startPlainWorkers(services, features)]
  await Promise.all(workers.map((worker) => worker.waitUntilReady()))
  await runs.announce(served, async () => {
    await stats.flush(services.redis)
    return await metrics.text()
  })
  const lookout = lookAfterOthers(opened, botWorkers)
  log.info({ queues: served, concurrency: config.workerConcurrency }, 'taking jobs')

  let stopping = false
  const stop = async (signal: NodeJS.Signals) => {
    if (stopping) process.exit(1)
    stopping = true
    lookout.stop()
    log.info({ signal, active: runner.active }, 'stopping')
    const { exports, imports, requests, events, loops } = features
    // Their parts are given back behind what they have written.
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
      // A part that waits for a storage that hangs is left behind: its lease ends by itself.
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

/** Starts what the queues of this worker name; undefined: other workers do it. */
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
      ...(has('schedules') ? [startSchedules(services, metrics, () => runs.now())] : []),
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

function startPlainWorkers(
  { config, log }: Services,
  { requests, exports, imports }: Awaited<ReturnType<typeof startFeatures>>,
): readonly Worker[] {
  return [
    // A lost request is not run again, so BullMQ need not notice soon; see requests/run.ts.
    ...(requests ? [startPlainWorker(config, log, REQUESTS, requests.process)] : []),
    // A job only wakes: what there is to do is in PostgreSQL.
    ...(exports ? [startPlainWorker(config, log, EXPORTS, async () => exports.wake())] : []),
    ...(imports ? [startPlainWorker(config, log, IMPORTS, async () => imports.wake())] : []),
  ]
}

function lookAfterOthers(
  { services, runs }: Opened,
  workers: readonly LendingWorker<ExecuteJob>[],
) {
  return watchWorkers({
    redis: runs.connection,
    workerId: runs.workerId,
    log: services.log,
    giveBack: (owner) => Promise.all(workers.map((worker) => worker.giveBackOf(owner))),
  })
}

function startWorker(
  { services, runs, runner }: Opened,
  queue: BotQueue,
  loans: Loans,
): LendingWorker<ExecuteJob> {
  const { config, log } = services
  const process = (job: Job<ExecuteJob>, token: string | undefined) =>
    take(job, token, runner, (isResting) => worker.rest(job.id ?? '', isResting))
  const settings = {
    connection: runs.connection,
    prefix: PREFIX,
    concurrency: config.workerConcurrency,
    ...LOCKS[queue],
    maxStalledCount: 1,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
    // After an outage of Redis a finished job is acknowledged as soon as it is back.
    runRetryDelay: 500,
  }
  const worker = new LendingWorker<ExecuteJob>(queue, process, settings, loans)
  // The connection logs once that Redis is away.
  worker.on('error', (error) => log.debug({ queue, reason: error.message }, 'Worker'))
  worker.on('failed', (job, error) => {
    if (job === undefined) return
    log.error({ queue, runId: job.id, cause: error }, 'A bot job failed')
    if (error instanceof LeftToUpkeep) return
    const isPoison = error instanceof UnrecoverableError
    runner.giveUp(job.data, isPoison).catch((cause: unknown) => {
      log.error({ runId: job.id, cause }, 'A failed run could not be answered')
    })
  })
  worker.on('stalled', (runId) => log.warn({ queue, runId }, 'A bot job lost its worker'))
  return worker
}

/** Takes jobs whose loss their own upkeep notices. */
function startPlainWorker(
  config: Config,
  log: Logger,
  queue: string,
  process: (id: string) => Promise<void>,
): Worker {
  const worker = new Worker(queue, async ({ id = '' }) => process(id), {
    connection: openRedis(config, 'worker', log),
    prefix: PREFIX,
    concurrency: PLAIN_AT_ONCE,
    maxStalledCount: 0,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
    runRetryDelay: 500,
  })
  worker.on('error', (error) => log.debug({ queue, reason: error.message }, 'Worker'))
  worker.on('failed', (job, cause) => {
    log.error({ queue, jobId: job?.id, cause }, 'A job failed')
  })
  return worker
}

async function take(
  job: Job<ExecuteJob>,
  token: string | undefined,
  runner: Runner,
  onRest: (isResting: boolean) => void,
): Promise<null> {
  const { failures = 0 } = job.data
  const number = job.stalledCounter + failures + 1
  const attempt = { number, isRepeat: job.attemptsStarted > 1, token: job.token ?? token ?? '' }
  try {
    await runner.process(job.data, attempt, onRest)
    return null
  } catch (error) {
    if (error instanceof Deferred) {
      await job.moveToDelayed(Date.now() + error.delayMs, token)
      throw new DelayedError()
    }
    if (error instanceof Again) {
      await job.updateData({ ...job.data, failures: failures + 1 })
      await job.moveToDelayed(Date.now() + error.delayMs, token)
      throw new DelayedError()
    }
    if (!(error instanceof HandedBack)) throw error
    await job.moveToWait(token)
    throw new WaitingError()
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms).unref())
}

main().catch((error: unknown) => {
  const isPlain = error instanceof ConfigError || error instanceof StartError
  const text = error instanceof Error && !isPlain ? error.stack : String((error as Error).message)
  process.stderr.write(`${text}\n`, () => process.exit(1))
})
