/** Which workers are alive, how far their clocks are off, and the metrics that they publish. */
import { randomUUID } from 'node:crypto'
import type { Logger } from '../core/log.ts'
import type { Redis } from './redis.ts'
import { NOW, PREFIX, runScript, script } from './script.ts'

export const presenceKeys = {
  /** Sorted set of workers that take jobs of a queue; the score is when to forget them. */
  workers: (queue: string) => `${PREFIX}:workers:${queue}`,
  /** Exists while a worker has taken jobs of the queue in the last minute. */
  seen: (queue: string) => `${PREFIX}:seen:${queue}`,
} as const
/** How far the clock of a worker is behind, in ms; exists while it is off. */
const clockKey = (workerId: string) => `${PREFIX}:clock:${workerId}`
const metricsKey = (workerId: string) => `${PREFIX}:metrics:${workerId}`

const HEARTBEAT_MS = 2000
/** Three missed heartbeats: the worker counts as gone. */
const WORKER_TTL_MS = 6500
const CLOCK_OFF_MS = 2000

/** KEYS workers, seen; ARGV worker id, ms to live. Answers how many workers are alive. */
const HEARTBEAT = script(`${NOW}
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('SET', KEYS[2], '1', 'PX', 60000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1])`)

/** KEYS workers. Answers the ids of the workers that are alive. */
const ALIVE = script(`${NOW}
return redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')`)

/** The heartbeat of this worker. */
export interface Presence {
  /** Epoch ms by the clock of Redis, which all processes share, as of the last heartbeat. */
  now(): number
  /** Callers may count on this worker from now until `close`; `metrics` is asked at every heartbeat. */
  announce(served: readonly string[], metrics: () => Promise<string>): Promise<void>
  /** Workers of the first queue served that were alive at the last heartbeat, this one included. */
  liveWorkers(): number
  /** A worker that stops takes no more work: it leaves at once. */
  close(): Promise<void>
}

/** Reads the clock of Redis once. */
export async function openPresence(redis: Redis, log: Logger): Promise<Presence> {
  const workerId = randomUUID()
  let behindMs = 0
  let isOff = false
  let liveWorkers = 1
  let served: readonly string[] = []
  let timer: NodeJS.Timeout | undefined
  let tick = () => {}

  /** A clock that is off is logged once, and once more when it is right again. */
  async function readClock(): Promise<void> {
    const asked = Date.now()
    const [seconds, micros] = (await redis.time()).map(Number)
    behindMs = Math.round((seconds ?? 0) * 1000 + (micros ?? 0) / 1000 - (asked + Date.now()) / 2)
    const wasOff = isOff
    isOff = Math.abs(behindMs) > CLOCK_OFF_MS
    if (isOff && !wasOff) log.error({ behindMs }, 'The clock of this worker is off')
    if (!isOff && wasOff) log.info('The clock of this worker is right again')
  }

  async function beat(metrics: () => Promise<string>): Promise<void> {
    if (redis.status !== 'ready') return
    await readClock()
    if (isOff) await redis.set(clockKey(workerId), behindMs, 'PX', WORKER_TTL_MS)
    for (const name of served) {
      const names = [presenceKeys.workers(name), presenceKeys.seen(name)]
      const count = await runScript(redis, HEARTBEAT, names, [workerId, WORKER_TTL_MS])
      if (name === served[0]) liveWorkers = Math.max(1, Number(count))
    }
    await redis.set(metricsKey(workerId), await metrics(), 'PX', WORKER_TTL_MS)
  }

  await readClock()
  return {
    now: () => Date.now() + behindMs,
    liveWorkers: () => liveWorkers,
    async announce(queues, metrics) {
      served = queues
      tick = () => {
        beat(metrics).catch((error: unknown) => log.warn({ cause: error }, 'Heartbeat failed'))
      }
      await beat(metrics)
      timer = setInterval(tick, HEARTBEAT_MS)
      // After an outage callers are rejected until a worker has reported.
      redis.on('ready', tick)
    },
    async close() {
      clearInterval(timer)
      redis.off('ready', tick)
      if (redis.status !== 'ready') return
      await Promise.all(served.map((name) => redis.zrem(presenceKeys.workers(name), workerId)))
      await redis.unlink(metricsKey(workerId))
    },
  }
}

export interface LiveWorkers {
  /** Ids of the workers that run bots for callers who wait. */
  workers(): Promise<readonly string[]>
  /** Ids of those whose clock is off by more than two seconds. */
  workersOffTime(): Promise<readonly string[]>
  /** Returns the metrics that each worker published last, as JSON text. */
  workerMetrics(): Promise<readonly string[]>
}

/** Reads the workers of these queues; callers wait for those of the first. */
export function liveWorkers(redis: Redis, queues: readonly [string, ...string[]]): LiveWorkers {
  async function alive(queue: string): Promise<readonly string[]> {
    const ids = await runScript(redis, ALIVE, [presenceKeys.workers(queue)], [])
    return Array.isArray(ids) ? ids.map(String) : []
  }
  return {
    workers: () => alive(queues[0]),
    async workersOffTime() {
      const ids = await alive(queues[0])
      const clocks = ids.length === 0 ? [] : await redis.mget(ids.map(clockKey))
      return ids.filter((_, i) => clocks[i] !== null)
    },
    async workerMetrics() {
      const ids = new Set((await Promise.all(queues.map(alive))).flat())
      if (ids.size === 0) return []
      const texts = await redis.mget([...ids].map(metricsKey))
      return texts.filter((text) => text !== null)
    },
  }
}
