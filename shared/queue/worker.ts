/**
 * Workers as BullMQ has them. `concurrency` counts the jobs that use the processor: it rises by one for each that only
 * waits, and falls again when that goes on, so that waiting costs only memory.
 */
import { DelayedError, type Job, UnrecoverableError, WaitingError, Worker } from 'bullmq'
import type { Logger } from '../core/log.ts'
import type { Redis } from '../redis/redis.ts'
import { PREFIX } from '../redis/script.ts'
import type { BotQueue, ExecuteJob } from './jobs.ts'

/** A job is done, or comes again after a while. */
export type JobEnd =
  | { readonly kind: 'done' }
  /** As if it had not been begun. */
  | { readonly kind: 'back'; readonly delayMs: number }
  /** As the next attempt of its run. */
  | { readonly kind: 'again'; readonly delayMs: number }

export interface TakenJob {
  readonly job: ExecuteJob
  /** Attempts of the run, this one included. */
  readonly number: number
  /** The job was begun before, here or elsewhere. */
  readonly isRepeat: boolean
}

interface RunWorkerOptions {
  readonly queue: BotQueue
  readonly connection: Redis
  readonly log: Logger
  /** Jobs that use the processor at a time. */
  readonly concurrency: number
  /** Jobs that may wait besides them. */
  readonly mostWaiting: number
  /** `rest` is called when the job begins and ends to wait without using the processor. */
  process(taken: TakenJob, rest: (isResting: boolean) => void): Promise<JobEnd>
  /** A job is given up: it has lost its worker twice (`isPoison`), or `process` has failed. */
  giveUp(job: ExecuteJob, isPoison: boolean): Promise<void>
}

export interface RunWorker {
  /** Takes no more jobs, and waits for those in hand. */
  close(): Promise<void>
}

/** After a kill a job is given to another worker within the rest of its lock and an interval. */
const LOCKS = { lockDuration: 5000, stalledInterval: 500, maxStalledCount: 1 }
/** After an outage of Redis jobs are acknowledged, and taken, as soon as it is back. */
const COMMON = {
  prefix: PREFIX,
  removeOnComplete: { count: 0 },
  removeOnFail: { count: 0 },
  runRetryDelay: 500,
}
/** Jobs that begin to wait one after the other raise the concurrency once. */
const TOGETHER_MS = 2

export async function startRunWorker(options: RunWorkerOptions): Promise<RunWorker> {
  const { queue, connection, log, concurrency, mostWaiting, giveUp } = options
  const places = createPlaces(concurrency, mostWaiting)
  const worker = new Worker<ExecuteJob, null>(
    queue,
    (job, token) => process(options, job, token, places),
    { ...COMMON, ...LOCKS, connection, concurrency },
  )
  places.serve(worker)
  // The connection logs once that Redis is away.
  worker.on('error', (error) => log.debug({ queue, reason: error.message }, 'Worker'))
  worker.on('stalled', (runId) => log.warn({ queue, runId }, 'A bot job lost its worker'))
  worker.on('failed', (job, error) => {
    if (job === undefined) return
    log.error({ queue, runId: job.id, cause: error }, 'A bot job failed')
    giveUp(job.data, error instanceof UnrecoverableError).catch((cause: unknown) => {
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
  { process }: RunWorkerOptions,
  job: Job<ExecuteJob, null>,
  token: string | undefined,
  places: Places,
): Promise<null> {
  const { failures = 0 } = job.data
  const number = job.stalledCounter + failures + 1
  const place = places.take()
  const taken = { job: job.data, number, isRepeat: job.attemptsStarted > 1 }
  const end = await process(taken, place.rest).finally(place.free)
  if (end.kind === 'done') return null
  if (end.kind === 'again') await job.updateData({ ...job.data, failures: failures + 1 })
  // By these errors BullMQ knows that the job was moved.
  if (end.delayMs === 0) {
    await job.moveToWait(token)
    throw new WaitingError()
  }
  await job.moveToDelayed(Date.now() + end.delayMs, token)
  throw new DelayedError()
}

interface Places {
  serve(worker: Worker): void
  take(): { rest(isResting: boolean): void; free(): void }
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
    // BullMQ looks at its concurrency when a job ends, and when it resumes.
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
      const rest = (isResting: boolean) => {
        if (isResting === isWaiting) return
        isWaiting = isResting
        change(isResting ? 1 : -1)
      }
      return { rest, free: () => rest(false) }
    },
    close() {
      served = undefined
      clearTimeout(raising)
    },
  }
}

/** Jobs that run at a time: more would only share the same processor and connections. */
const WAKES_AT_ONCE = 2

interface WakeWorkerOptions {
  readonly queue: string
  readonly connection: Redis
  readonly log: Logger
  /** PostgreSQL knows what is to be done; of a job that is lost its upkeep learns. */
  process(id: string): Promise<void>
}

/** Takes jobs that say only that something is to be done. */
export async function startWakeWorker(options: WakeWorkerOptions): Promise<RunWorker> {
  const { queue, connection, log } = options
  const worker = new Worker(queue, ({ id = '' }: Job) => options.process(id), {
    ...COMMON,
    connection,
    concurrency: WAKES_AT_ONCE,
    maxStalledCount: 0,
  })
  worker.on('error', (error) => log.debug({ queue, reason: error.message }, 'Worker'))
  worker.on('failed', (job, cause) => {
    log.error({ queue, jobId: job?.id, cause }, 'A job failed')
  })
  await worker.waitUntilReady()
  return { close: () => worker.close() }
}
