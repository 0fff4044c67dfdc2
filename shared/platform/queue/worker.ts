/**
 * A BullMQ worker whose jobs lend their places. A job that only waits keeps no place from the next: it goes
 * on beside the queue, with its lock and its end as before. So `concurrency` counts jobs that use the
 * processor; few of them are fastest, and waiting costs only memory.
 */
import { type Job, type JobJson, type Processor, Worker, type WorkerOptions } from 'bullmq'
import type { Redis } from '../redis/redis.ts'
import { unlockJobs } from './lost-workers.ts'
import { createTakingBackend, lockOwner, type TakingBackend } from './taking.ts'

/** The places that all queues of a process may lend together. */
export interface Loans {
  readonly most: number
  count: number
}

interface InHand {
  isResting: boolean
  /** Leaves the place to the next job; undefined once it is done. */
  lend: (() => void) | undefined
}

export class LendingWorker<Data> extends Worker<Data, null, string, TakingBackend> {
  /** Its locks begin with it; see lost-workers.ts. */
  override readonly id: string
  readonly #redis: Redis
  readonly #loans: Loans
  readonly #inHand = new Map<string, InHand>()
  readonly #beside = new Set<Promise<unknown>>()
  #resting = 0
  #isClosing = false

  constructor(
    queue: string,
    processor: Processor<Data, null>,
    options: WorkerOptions & { readonly connection: Redis },
    loans: Loans,
  ) {
    super(queue, processor, options, (name, opts, asked) =>
      createTakingBackend(options.connection, name, opts, asked),
    )
    this.#redis = options.connection
    this.id = lockOwner(options.connection)
    this.#loans = loans
  }

  /** Says that the job begins or ends to wait without using the processor. */
  rest(jobId: string, isResting: boolean): void {
    const job = this.#inHand.get(jobId)
    if (job === undefined || job.isResting === isResting) return
    job.isResting = isResting
    this.#resting += isResting ? 1 : -1
    if (isResting) this.#lend()
  }

  /** Has the jobs of a lost worker run again, whose locks begin with `owner`. */
  async giveBackOf(owner: string): Promise<void> {
    if ((await unlockJobs(this.#redis, this.toKey('').slice(0, -1), owner)) === 0) return
    for (const id of await this.backend.moveStalledJobsToWait()) this.emit('stalled', id, 'active')
  }

  protected override nextJobFromJobData(data?: JobJson, jobId?: string, token?: string) {
    return super.nextJobFromJobData(data, jobId, this.backend.tokenOf(jobId) ?? token)
  }

  override processJob(
    job: Job<Data, null>,
    token: string,
    fetchNext: () => boolean = () => true,
  ): ReturnType<Worker<Data, null>['processJob']> {
    const { id = '' } = job
    const { promise, resolve, reject } = Promise.withResolvers<undefined | Job<Data, null>>()
    const inHand: InHand = {
      isResting: false,
      lend: () => {
        inHand.lend = undefined
        this.#loans.count++
        const beside = done.finally(() => {
          this.#loans.count--
          this.#beside.delete(beside)
        })
        this.#beside.add(beside)
        resolve(undefined)
      },
    }
    this.#inHand.set(id, inHand)
    const done = super
      .processJob(job, token, () => {
        // A run that has lent its place fetches no job for it; one that fetches a job lends no place.
        const hasPlace = inHand.lend !== undefined
        inHand.lend = undefined
        return hasPlace && fetchNext()
      })
      .finally(() => {
        this.rest(id, false)
        this.#inHand.delete(id)
      })
    done.then((next) => resolve(next ?? undefined), reject)
    return promise
  }

  /** Waits for the jobs in hand, those beside the queue included. */
  override async close(force = false): Promise<void> {
    // BullMQ waits for the jobs that have a place.
    this.#isClosing = true
    if (!force) {
      await this.pause(true)
      await this.backend.endWait()
      await Promise.allSettled(this.#beside)
    }
    await super.close(force)
  }

  /** As many places as jobs rest at the moment, whoever has lent them. */
  #lend(): void {
    if (this.#isClosing) return
    for (const job of this.#inHand.values()) {
      const { count, most } = this.#loans
      if (this.#beside.size >= this.#resting || count >= most) return
      if (job.isResting) job.lend?.()
    }
  }
}
