/** BullMQ workers. `concurrency` limits CPU-bound jobs: a job that waits on I/O raises it by one until it resumes. */
import { DelayedError, type Job, UnrecoverableError, WaitingError, Worker } from 'bullmq'
import type { Logger } from '../core/log.ts'
import type { Redis } from '../redis/redis.ts'
import { PREFIX } from '../redis/script.ts'
import type { BotQueue, ExecuteJob } from './jobs.ts'

/** A job is done, or returns after a delay. */
export type JobEnd =
  | { readonly kind: 'done' }
  /** Returns without counting as an attempt. */
  | { readonly kind: 'back'; readonly delayMs: number }
  /** Returns as the run's next attempt. */
  | { readonly kind: 'again'; readonly delayMs: number }

export interface TakenJob {
  readonly job: ExecuteJob
  readonly number: number
  /** The job was started before, possibly by another worker. */
  readonly isRepeat: boolean
}

interface RunWorkerOptions {
  readonly queue: BotQueue
  readonly connection: Redis
  readonly log: Logger
  /** Maximum number of CPU-bound jobs. */
  readonly concurrency: number
  /** Maximum number of additional waiting jobs. */
  readonly mostWaiting: number
  readonly runner: {
    /** Calls `setIdle` when the job starts and stops waiting on I/O. */
    process(taken: TakenJob, setIdle: (isIdle: boolean) => void): Promise<JobEnd>
    /** Gives up a job that lost its worker twice (`isPoison`) or whose `process` failed. */
    giveUp(job: ExecuteJob, isPoison: boolean): Promise<void>
  }
}

export interface RunWorker {
  close(): Promise<void>
}

/** After a crash another worker gets the job within the rest of the lock plus one interval. */
const LOCKS = { lockDuration: 5000, stalledInterval: 500, maxStalledCount: 1 }
/** Acknowledges and takes jobs as soon as Redis is back. */
const COMMON = {
  prefix: PREFIX,
  removeOnComplete: { count: 0 },
  removeOnFail: { count: 0 },
  runRetryDelay: 500,
}
/** Jobs that start to wait within this time raise the concurrency once. */
const TOGETHER_MS = 2

export async function startRunWorker(options: RunWorkerOptions): Promise<RunWorker> {
  const { queue, connection, log, concurrency, mostWaiting, runner } = options
  const places = createPlaces(concurrency, mostWaiting)
  const worker = new Worker<ExecuteJob, null>(
    queue,
    (job, token) => process(runner, job, token, places),
    { ...COMMON, ...LOCKS, connection, concurrency },
  )
  places.serve(worker)
  // The connection logs outages.
  worker.on('error', (error) => log.debug({ queue, reason: error.message }, 'Worker'))
  worker.on('stalled', (runId) => log.warn({ queue, runId }, 'A bot job lost its worker'))
  worker.on('failed', (job, error) => {
    if (job === undefined) return
    log.error({ queue, runId: job.id, cause: error }, 'A bot job failed')
    runner.giveUp(job.data, error instanceof UnrecoverableError).catch((cause: unknown) => {
      log.error({ runId: job.id, cause }, 'A failed run could not be answered')
    })
  })
  await worker.waitUntilReady()
  return {
    async close() {
      places.close()
      await worker.close()
    },
  }
}

async function process(
  runner: RunWorkerOptions['runner'],
  job: Job<ExecuteJob, null>,
  token: string | undefined,
  places: Places,
): Promise<null> {
  const { failures = 0 } = job.data
  const number = job.stalledCounter + failures + 1
  const place = places.take()
  const taken = { job: job.data, number, isRepeat: job.attemptsStarted > 1 }
  const end = await runner.process(taken, place.setIdle).finally(place.free)
  if (end.kind === 'done') return null
  if (end.kind === 'again') await job.updateData({ ...job.data, failures: failures + 1 })
  // BullMQ recognizes moved jobs by these errors.
  if (end.delayMs === 0) {
    await job.moveToWait(token)
    throw new WaitingError()
  }
  await job.moveToDelayed(Date.now() + end.delayMs, token)
  throw new DelayedError()
}

interface Places {
  serve(worker: Worker): void
  take(): { setIdle(isIdle: boolean): void; free(): void }
  close(): void
}

function createPlaces(concurrency: number, mostWaiting: number): Places {
  let served: Worker | undefined
  let waiting = 0
  let raising: NodeJS.Timeout | undefined

  const wanted = () => concurrency + Math.min(waiting, mostWaiting)
  function raise(): void {
    raising = undefined
    if (served === undefined || served.concurrency >= wanted()) return
    served.concurrency = wanted()
    // BullMQ applies its concurrency only when a job ends or the worker resumes.
    void served.pause(true)
    void served.resume()
  }
  function change(by: 1 | -1): void {
    waiting += by
    if (served === undefined) return
    if (served.concurrency > wanted()) served.concurrency = wanted()
    else if (served.concurrency < wanted()) raising ??= setTimeout(raise, TOGETHER_MS)
  }
  return {
    serve(worker) {
      served = worker
    },
    take() {
      let isWaiting = false
      const setIdle = (isIdle: boolean) => {
        if (isIdle === isWaiting) return
        isWaiting = isIdle
        change(isIdle ? 1 : -1)
      }
      return { setIdle, free: () => setIdle(false) }
    },
    close() {
      served = undefined
      clearTimeout(raising)
    },
  }
}
