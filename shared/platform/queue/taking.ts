/**
 * How a worker without work gets the next job. BullMQ waits for a marker, asks for a job, asks whether there is
 * another, and only then starts the first: two round trips that a lone run would wait for. Here the question
 * for a job stands behind the wait on the same connection, where Redis answers both at once, and says in the
 * same step whether that was the last. A worker that is killed or cut off in between has a job that it does
 * not know of; its lock ends, as those of all jobs of a killed worker. One that stops has its wait ended first.
 */
import { randomUUID } from 'node:crypto'
import {
  createRedisBackend,
  type QueueBaseOptions,
  type RedisConnection,
  RedisQueueBackend,
} from 'bullmq'
import type { Redis } from '../redis/redis.ts'

export interface TakingBackend extends RedisQueueBackend {
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
export function createTakingBackend(
  connection: Redis,
  name: string,
  opts: QueueBaseOptions,
  options: Parameters<typeof createRedisBackend>[2],
): TakingBackend {
  const backend = createRedisBackend(name, opts, options)
  const { blockingConnection } = backend
  if (blockingConnection === undefined) throw new Error('A worker waits on a connection of its own')
  const taker = new Taker(blockingConnection, connection, backend, { name, opts })
  const wait = backend.waitForJob.bind(backend)
  const ask = backend.moveToActive.bind(backend)
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
      const wait = waitAndTake(seconds)
      waiting = wait
      return wait
    },
    async endWait() {
      isEnding = true
      if (await taker.unblock()) await waiting?.catch(() => undefined)
    },
    moveToActive: async (token: string, workerName?: string) =>
      answers.shift() ?? (await ask(token, workerName)),
  })
}

/** The beginning of the tokens of locks: whoever finds this worker lost knows them by the name of its connection. */
export function lockOwner(connection: Redis): string {
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
