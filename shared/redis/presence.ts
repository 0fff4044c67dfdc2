/** Worker liveness, clock skew, and published metrics. */
import { randomUUID } from 'node:crypto'
import type { Logger } from '../core/log.ts'
import type { Redis } from './redis.ts'
import { NOW, PREFIX, runScript, script } from './script.ts'

export const presenceKeys = {
  /** Sorted set of workers of a queue; the score is the expiry time. */
  workers: (queue: string) => `${PREFIX}:workers:${queue}`,
  /** Exists if a worker took jobs of the queue in the last minute. */
  seen: (queue: string) => `${PREFIX}:seen:${queue}`,
} as const
/** Clock lag of a worker in ms; exists while it is off. */
const clockKey = (workerId: string) => `${PREFIX}:clock:${workerId}`
const metricsKey = (workerId: string) => `${PREFIX}:metrics:${workerId}`

const HEARTBEAT_MS = 2000
/** Three missed heartbeats. */
const WORKER_TTL_MS = 6500
const CLOCK_OFF_MS = 2000

/** KEYS workers, seen; ARGV worker id, ms to live. Returns the number of live workers. */
const HEARTBEAT = script(`${NOW}
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('SET', KEYS[2], '1', 'PX', 60000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZCARD', KEYS[1])`)

/** KEYS workers. Returns the ids of live workers. */
const ALIVE = script(`${NOW}
return redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')`)

export interface Presence {
  /** Epoch ms by Redis's clock, shared by all processes, as of the last heartbeat. */
  now(): number
  /** Announces this worker until `close`; calls `metrics` at every heartbeat. */
  announce(served: readonly string[], metrics: () => Promise<string>): Promise<void>
  /** Live workers of the first served queue at the last heartbeat, including this one. */
  liveWorkers(): number
  close(): Promise<void>
}

export async function openPresence(redis: Redis, log: Logger): Promise<Presence> {
  const workerId = randomUUID()
  let behindMs = 0
  let isOff = false
  let liveWorkers = 1
  let served: readonly string[] = []
  let timer: NodeJS.Timeout | undefined
  let tick = () => {}

  /** Logs once when the clock drifts and once when it recovers. */
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
  /** Ids of workers that run bots for waiting callers. */
  workers(): Promise<readonly string[]>
  /** Ids of workers whose clocks are off by more than two seconds. */
  workersOffTime(): Promise<readonly string[]>
  workerMetrics(): Promise<readonly string[]>
}

/** Reads the live workers of these queues; callers wait for the first. */
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
