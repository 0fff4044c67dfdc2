/**
 * A BullMQ worker whose jobs lend their places. A job that only waits keeps no place from the next: it goes
 * on beside the queue, with its lock and its end as before. So `concurrency` counts jobs that use the
 * processor; few of them are fastest, and waiting costs only memory.
 */

import { randomUUID } from 'node:crypto'
import {
  createRedisBackend,
  type Job,
  type JobJson,
  type Processor,
  type QueueBaseOptions,
  type RedisConnection,
  RedisQueueBackend,
  Worker,
  type WorkerOptions,
} from 'bullmq'
import type { Redis } from '../redis/redis.ts'
import { unlockJobs } from './lost-workers.ts'
import { runCommandsOn } from './run-commands.ts'

/** The places that all queues of a process may lend together. */
export interface Loans {
  readonly most: number
  count: number
}

/** Until then a job that ends beside the queue may bring the next one along, and no place is needed for it. */
const LEND_MS = 2
/** As BullMQ's. */
const DEFAULT_LOCK_MS = 30_000

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
  #lending: NodeJS.Timeout | undefined
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
    if (isResting) this.#lending ??= setTimeout(() => this.#lend(), LEND_MS)
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
    const { promise, resolve, reject } = Promise.withResolvers<undefined | Job<Data, null>>()
    const inHand: InHand = {
      isResting: false,
      lend: () => {
        inHand.lend = undefined
        this.#goOnBeside(done)
        resolve(undefined)
      },
    }
    const done = this.#process(job, token, inHand, () => {
      // One that fetches a job for its place lends it no more.
      inHand.lend = undefined
      return fetchNext()
    })
    done.then((next) => resolve(next ?? undefined), reject)
    return promise
  }

  async #process(job: Job<Data, null>, token: string, inHand: InHand, fetchNext: () => boolean) {
    const { id = '' } = job
    this.#inHand.set(id, inHand)
    try {
      return await super.processJob(job, token, () =>
        // Without a place it brings the next job along where few use the processor: that saves a question for one.
        inHand.lend === undefined
          ? !this.#isClosing && this.#inHand.size - this.#resting <= this.concurrency
          : fetchNext(),
      )
    } finally {
      this.rest(id, false)
      this.#inHand.delete(id)
    }
  }

  /** The job has no place; neither has the one that it brings along. */
  #goOnBeside(done: ReturnType<Worker<Data, null>['processJob']>): void {
    this.#loans.count++
    const beside = done
      .then(
        (next) => {
          if (!next) return
          const inHand = { isResting: false, lend: undefined }
          this.#goOnBeside(this.#process(next, next.token ?? '', inHand, () => false))
        },
        // BullMQ has said so by an event.
        () => {},
      )
      .finally(() => {
        this.#loans.count--
        this.#beside.delete(beside)
      })
    this.#beside.add(beside)
  }

  /** Waits for the jobs in hand, those beside the queue included. */
  override async close(force = false): Promise<void> {
    // BullMQ waits for the jobs that have a place.
    this.#isClosing = true
    if (!force) {
      await this.pause(true)
      await this.backend.endWait()
      while (this.#beside.size > 0) await Promise.allSettled(this.#beside)
    }
    await super.close(force)
  }

  /** As many places as jobs rest at the moment, whoever has lent them. */
  #lend(): void {
    this.#lending = undefined
    if (this.#isClosing) return
    for (const job of this.#inHand.values()) {
      const { count, most } = this.#loans
      if (this.#beside.size >= this.#resting || count >= most) return
      if (job.isResting) job.lend?.()
    }
  }
}

// How a worker without work gets the next job. BullMQ waits for a marker, asks for a job, asks whether there is
// another, and only then starts the first: two round trips that a lone run would wait for. Here the question
// for a job stands behind the wait on the same connection, where Redis answers both at once, and says in the
// same step whether that was the last. A worker that is killed or cut off in between has a job that it does
// not know of; its lock ends, as those of all jobs of a killed worker. One that stops has its wait ended first.

interface TakingBackend extends RedisQueueBackend {
  /** Returns once the token that locks a job which came with the end of a wait. */
  tokenOf(jobId: string | undefined): string | undefined
  /** Ends the wait, and waits for what came of it; no other job is asked for from then on. */
  endWait(): Promise<void>
}

/** As BullMQ's scripts answer: the job, its id, ms of a rate limit, when the next delayed job is due. */
type Answer = Awaited<ReturnType<RedisQueueBackend['moveToActive']>>

const NONE: Answer = [null, 0, 0, 0]
const LAST = 'botica-last'

/** KEYS wait, prioritized, delayed, marker. Answers 1 when no job is left, and then nobody is woken for one. */
const LAST_SCRIPT = `
if redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3]) > 0 then
  return 0
end
redis.call('ZREM', KEYS[4], '0')
return 1`

/** For a BackendFactory of BullMQ's workers; `connection` is what they ask on. */
function createTakingBackend(
  connection: Redis,
  name: string,
  opts: QueueBaseOptions,
  options: Parameters<typeof createRedisBackend>[2],
): TakingBackend {
  const backend = createRedisBackend(name, opts, options)
  const { blockingConnection: own } = backend
  if (own === undefined) throw new Error('A worker waits on a connection of its own')
  const taker = new Taker(own, connection, backend, { name, opts })
  const [wait, ask] = [backend.waitForJob.bind(backend), backend.moveToActive.bind(backend)]
  const owner = lockOwner(connection)
  let waits = 0
  let taken: { readonly id: string; readonly token: string } | undefined
  /** To what BullMQ asks next. */
  let answers: Answer[] = []
  let waiting: Promise<unknown> | undefined
  let isEnding = false

  async function waitAndTake(seconds: number) {
    answers = []
    const token = `${owner}:${waits++}`
    taker.knowItself()
    const [marker, answer, isLast] = await Promise.all([
      wait(seconds),
      // Undefined when the wait is broken off.
      taker.moveToActive(token).catch(() => undefined),
      taker.isLast().catch(() => false),
    ])
    if (!answer?.[0]) {
      if (isEnding) answers = [NONE]
      return marker
    }
    taken = { id: answer[1], token }
    answers = isLast || isEnding ? [answer, NONE] : [answer]
    return { member: '0', score: 0 }
  }

  return Object.assign(backend, {
    tokenOf(jobId: string | undefined) {
      if (taken === undefined || taken.id !== jobId) return undefined
      const { token } = taken
      // The same job may be put off, and then be taken in another way.
      taken = undefined
      return token
    },
    waitForJob(seconds: number) {
      const taking = waitAndTake(seconds)
      waiting = taking
      return taking
    },
    async endWait() {
      isEnding = true
      if (await taker.unblock()) await waiting?.catch(() => undefined)
    },
    moveToActive: async (token: string, workerName?: string) =>
      answers.shift() ?? (await ask(token, workerName)),
    moveToCompleted: completeWith(connection, backend, opts),
  })
}

/** Completes a job along with all else that its run says in this turn. */
function completeWith(
  connection: Redis,
  backend: RedisQueueBackend,
  opts: QueueBaseOptions,
): RedisQueueBackend['moveToCompleted'] {
  const commands = runCommandsOn(connection, backend.toKey('').slice(0, -1))
  // The options are those of a worker.
  const { lockDuration: lockMs = DEFAULT_LOCK_MS } = opts as WorkerOptions
  return async (...[{ id = '' }, , , token, takesNext]) => {
    const finishedOn = Date.now()
    const completed = await commands.complete({ id, token, lockMs, takesNext })
    if (typeof completed === 'object') {
      const { job, dueAt } = completed
      return { result: job ? [job, job.id, 0, 0] : [null, 0, 0, dueAt], finishedOn }
    }
    if (completed === 0) return { result: [], finishedOn }
    const failed = { code: completed, jobId: id, command: 'moveToFinished', state: 'active' }
    throw backend.finishedErrors(failed)
  }
}

/** The beginning of the tokens of locks: whoever finds this worker lost knows them by the name of its connection. */
function lockOwner(connection: Redis): string {
  return `${connection.options.connectionName ?? ''}:${randomUUID()}`
}

/** Asks on the connection that waits. */
class Taker extends RedisQueueBackend {
  readonly #asking: Redis
  #isDefined = false
  #clientId: number | undefined

  constructor(
    waiting: RedisConnection,
    asking: Redis,
    { keys, toKey }: RedisQueueBackend,
    { name, opts }: { readonly name: string; readonly opts: QueueBaseOptions },
  ) {
    super(waiting, name, keys, toKey, opts, undefined, false)
    this.#asking = asking
    waiting.on('close', () => {
      this.#clientId = undefined
    })
  }

  async isLast(): Promise<boolean> {
    const client = await this.queue.client
    if (!this.#isDefined) client.defineCommand(LAST, { numberOfKeys: 4, lua: LAST_SCRIPT })
    this.#isDefined = true
    const { wait, prioritized, delayed, marker } = this.keys
    return (await client.runCommand(LAST, [wait, prioritized, delayed, marker])) === 1
  }

  /** Asks Redis for the number of the connection, once. */
  knowItself(): void {
    if (this.#clientId !== undefined) return
    this.queue.client
      // BullMQ wraps a duplicate of the connection that it was given.
      .then((client) => (client as unknown as Redis).client('ID'))
      .then((id) => {
        this.#clientId = id
      })
      .catch(() => undefined)
  }

  /** True when a command of the connection was waiting and was ended, as if its time were over. */
  async unblock(): Promise<boolean> {
    if (this.#clientId === undefined || this.#asking.status !== 'ready') return false
    const ended = await this.#asking.client('UNBLOCK', this.#clientId).catch(() => 0)
    return ended === 1
  }
}
