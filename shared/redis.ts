/** One way to open a Redis connection. It reconnects by itself for as long as the process lives. */
import { Redis } from 'ioredis'
import type { Config } from './config.ts'
import type { Logger } from './log.ts'

export type { Redis }

/**
 * `request`: a caller waits, so a command fails at once while Redis is away and after 2 s when it is
 * silent. `subscribe` and `worker`: commands wait for the connection, as BullMQ demands of a worker.
 */
export type RedisPurpose = 'request' | 'subscribe' | 'worker'

const COMMAND_TIMEOUT_MS = 2000
const START_PATIENCE_MS = 30_000

/** Connects in the background; `untilReady` waits for it. */
export function openRedis(config: Config, purpose: RedisPurpose, log: Logger): Redis {
  const redis = new Redis(config.redisUrl, {
    ...(config.redisTlsInsecure && config.redisUrl.startsWith('rediss:')
      ? { tls: { rejectUnauthorized: false } }
      : {}),
    retryStrategy: (attempt) => Math.min(50 * attempt, 1000),
    ...(purpose === 'request'
      ? {
          commandTimeout: COMMAND_TIMEOUT_MS,
          enableOfflineQueue: false,
          // A command that was already refused to its caller must not run after a reconnect.
          autoResendUnfulfilledCommands: false,
          maxRetriesPerRequest: 0,
        }
      : { maxRetriesPerRequest: null }),
  })
  let away = false
  redis.on('error', (error: Error) => {
    if (!away) log.error({ purpose, reason: error.message }, 'Redis is away')
    away = true
  })
  redis.on('ready', () => {
    if (away) log.info({ purpose }, 'Redis is back')
    away = false
  })
  return redis
}

/** Resolves when the connection can be used; after 30 s without Redis it throws. */
export async function untilReady(redis: Redis, log: Logger): Promise<void> {
  if (redis.status === 'ready') return
  const started = Date.now()
  await new Promise<void>((resolve, reject) => {
    const timer = setInterval(() => {
      if (Date.now() - started < START_PATIENCE_MS) {
        log.warn('Waiting for Redis')
        return
      }
      settle()
      redis.disconnect()
      reject(new Error('Redis does not answer; look at REDIS_URL'))
    }, 1000)
    const settle = () => {
      clearInterval(timer)
      redis.off('ready', onReady)
    }
    const onReady = () => {
      settle()
      resolve()
    }
    redis.on('ready', onReady)
  })
}
