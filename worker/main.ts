/** The worker process: read settings, open services, take jobs; on SIGTERM finish what runs and leave. */
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
import { botQueues, openRuns, type Runs } from '../shared/platform/queue/runs.ts'
import { PREFIX } from '../shared/platform/queue/scripts.ts'
import { createStats } from '../shared/platform/queue/stats.ts'
import { LendingWorker, type Loans } from '../shared/platform/queue/worker.ts'
import { openRedis } from '../shared/platform/redis/redis.ts'
import { watchWebLoad } from '../shared/platform/redis/web-load.ts'
import {
  publishNotifications,
  socketSubscriptions,
} from '../shared/subscriptions/socket-subscriptions.ts'
import { createAudit } from './bots/audit.ts'
import { executorsWithin, openExecutors } from './bots/executors/executors.ts'
import { createMetrics } from './bots/metrics.ts'
import { createRecentRuns } from './bots/recent-runs.ts'
import { Again } from './bots/retries.ts'
import { createRunner, HandedBack, LeftToUpkeep, type Runner } from './bots/run.ts'
import { createTelling } from './bots/run-reports.ts'
import { startSchedules } from './bots/schedules/run.ts'
import { Deferred } from './bots/slots.ts'
import { startSweep } from './bots/sweep.ts'
import { createExportMetrics } from './bulk/exports/metrics.ts'
import { type ExportRuns, startExports } from './bulk/exports/run.ts'
import { IMPORTS_AT_ONCE, type Imports, startImports } from './bulk/imports/run.ts'
import { type Requests, startRequests } from './jobs/requests/run.ts'
import { startDownloads } from './jobs/upkeep/downloads.ts'
import { startUpkeepJobs } from './jobs/upkeep/jobs.ts'
import { startTableUpkeep } from './jobs/upkeep/tables.ts'
import { startMail } from './mail/run.ts'
import { createEventMetrics } from './subscriptions/metrics.ts'
import { startEvents } from './subscriptions/run.ts'

/** Platforms kill after 30 s. */
const FINISH_MS = 20_000
const GIVE_BACK_MS = 3000
/** Runs beside the places of the queues, while as many wait: each has an isolate of 2 MB. */
const MOST_RESTING = 128
/** Bundles are large: more at once would only share the same processor and connections. */
const REQUESTS_AT_ONCE = 2

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
  const executors = await openExecutors({
    log,
    maxExecutors: executorsWithin(config.workerMemoryMb),
    memoryMb: config.workerMemoryMb,
    spares: 1,
    isolatesPerBot: 4,
  })
  const served = botQueues(config.workerQueues)
  const runs = await openRuns(config, log)
  const metrics = createMetrics(() => executors.stats())
  const stats = createStats()
  const telling = createTelling(
    createAudit(services),
    createRecentRuns(services),
    await openFollowed(config, log, services.redis),
  )
  const runner: Runner = createRunner({ services, runs, executors, telling, metrics, stats })
  const sweep = startSweep(services, runs)
  const hasUpkeep = config.workerQueues.includes('upkeep')
  const upkeep = hasUpkeep
    ? [
        startTableUpkeep(services),
        startUpkeepJobs(services),
        ...(config.autoDownload ? [startDownloads(services)] : []),
      ]
    : []
  const schedules = config.workerQueues.includes('schedules')
    ? startSchedules(services, metrics)
    : undefined
  const mail = config.workerQueues.includes('mail') ? startMail(services) : undefined
  const events = config.workerQueues.includes('change')
    ? startEvents(services, runner, createEventMetrics(metrics.registry), {
        sockets: (ids) => socketSubscriptions(services, ids),
        publish: (notifications) => publishNotifications(services, notifications),
      })
    : undefined
  const requests = config.workerQueues.includes(REQUESTS)
    ? startRequests(services, runs)
    : undefined
  const isWebBusy = watchWebLoad(services.redis)
  const isBusy = () => isWebBusy() || runner.active > 0
  const exports = config.workerQueues.includes(EXPORTS)
    ? startExports(services, createExportMetrics(metrics.registry), isBusy)
    : undefined
  const imports = config.workerQueues.includes(IMPORTS) ? startImports(services) : undefined
  const loans: Loans = { most: MOST_RESTING, count: 0 }
  const workers = [
    ...served.map((queue) => startWorker(config, log, queue, runs, runner, loans)),
    ...(requests ? [startRequestWorker(config, log, requests)] : []),
    ...(exports ? [startExportWorker(config, log, exports)] : []),
    ...(imports ? [startImportWorker(config, log, imports)] : []),
  ]
  await Promise.all(workers.map((worker) => worker.waitUntilReady()))
  await runs.announce(served, async () => {
    await stats.flush(services.redis)
    return await metrics.text()
  })
  log.info({ queues: served, concurrency: config.workerConcurrency }, 'taking jobs')

  let stopping = false
  const stop = async (signal: NodeJS.Signals) => {
    if (stopping) process.exit(1)
    stopping = true
    log.info({ signal, active: runner.active }, 'stopping')
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
      sweep.stop(),
      requests?.stop(),
      schedules?.stop(),
      mail?.stop(),
      // Whoever waits for a storage that hangs is left behind: a lease ends by itself.
      Promise.race([left, pause(GIVE_BACK_MS)]),
      ...upkeep.map((item) => item.stop()),
      runs.close(),
      executors.close(),
    ])
    await telling.close()
    await stats.flush(services.redis).catch(() => undefined)
    await services.close()
    log.info('stopped')
    process.exit(0)
  }
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => void stop(signal))
  }
}

function startWorker(
  config: Config,
  log: Logger,
  queue: BotQueue,
  runs: Runs,
  runner: Runner,
  loans: Loans,
): Worker {
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

/** A lost request is not run again, so BullMQ need not notice soon; see requests/run.ts. */
function startRequestWorker(config: Config, log: Logger, requests: Requests): Worker {
  const worker = new Worker(REQUESTS, async ({ id = '' }) => requests.process(id), {
    connection: openRedis(config, 'worker', log),
    prefix: PREFIX,
    concurrency: REQUESTS_AT_ONCE,
    maxStalledCount: 0,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
    runRetryDelay: 500,
  })
  worker.on('error', (error) => log.debug({ queue: REQUESTS, reason: error.message }, 'Worker'))
  worker.on('failed', (job, cause) => {
    log.error({ queue: REQUESTS, jobId: job?.id, cause }, 'An accepted request failed')
  })
  return worker
}

function startExportWorker(config: Config, log: Logger, exports: ExportRuns): Worker {
  const worker = new Worker(EXPORTS, async () => exports.wake(), {
    connection: openRedis(config, 'worker', log),
    prefix: PREFIX,
    maxStalledCount: 0,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
    runRetryDelay: 500,
  })
  worker.on('error', (error) => log.debug({ queue: EXPORTS, reason: error.message }, 'Worker'))
  return worker
}

/** A job only wakes: what there is to do is in PostgreSQL. */
function startImportWorker(config: Config, log: Logger, imports: Imports): Worker {
  const worker = new Worker(IMPORTS, () => imports.drain(), {
    connection: openRedis(config, 'worker', log),
    prefix: PREFIX,
    concurrency: IMPORTS_AT_ONCE,
    maxStalledCount: 0,
    removeOnComplete: { count: 0 },
    removeOnFail: { count: 0 },
    runRetryDelay: 500,
  })
  worker.on('error', (error) => log.debug({ queue: IMPORTS, reason: error.message }, 'Worker'))
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
  const attempt = { number, isRepeat: job.attemptsStarted > 1 }
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
