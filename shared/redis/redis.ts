/** Redis connections, which reconnect for the lifetime of the process. */

import type { Socket } from 'node:net'
import { type RedisOptions as AnyOptions, Redis } from 'ioredis'
import { corkForTick } from '../core/batching.ts'
import { getOrInsert } from '../core/cache.ts'
import type { Config } from '../core/config/config.ts'
import { timings } from '../core/config/waits.ts'
import type { Logger } from '../core/log.ts'

export type { Redis }

/**
 * `request`: commands fail while Redis is down or, after `endStart`, silent. `subscribe`, `worker`: they wait (BullMQ).
 */
type RedisPurpose = 'request' | 'subscribe' | 'worker'

/** Wrong credentials, or a missing database number, for which ioredis would use 0. */
const REFUSAL = /^(WRONGPASS|NOAUTH|NOPERM|ERR (invalid password|invalid DB|DB index|AUTH))/

export function openRedis(config: Config, purpose: RedisPurpose, log: Logger): Redis {
  const redis = createRedis(config.redisUrl, config.redisTlsInsecure, {
    retryStrategy: (attempt) => Math.min(50 * attempt, 1000),
    // A server that hangs or has vanished does not close the connection.
    socketTimeout: timings.redisSilenceMs,
    ...(purpose === 'request'
      ? {
          commandTimeout: timings.startMs,
          enableOfflineQueue: false,
          // A command whose caller got an error must not run after a reconnect.
          autoResendUnfulfilledCommands: false,
          maxRetriesPerRequest: 0,
        }
      : { maxRetriesPerRequest: null }),
  })
  writeOnceATurn(redis)
  // BullMQ's workers block on a separate connection.
  const duplicate = redis.duplicate.bind(redis)
  redis.duplicate = (override) => {
    const copy = duplicate(override)
    writeOnceATurn(copy)
    return copy
  }
  const away = getOrInsert(awayByLog, log, () => new Set<Redis>())
  redis.on('error', (error: Error) => {
    if (away.size === 0) log.error({ reason: error.message }, 'Redis is away')
    away.add(redis)
  })
  redis.on('ready', () => {
    if (away.delete(redis) && away.size === 0) log.info('Redis is back')
  })
  redis.on('end', () => away.delete(redis))
  return redis
}

/** Enables the command timeout: a starting process may be too busy to read answers in time. */
export function endStart(redis: Redis, config: Config): void {
  redis.options.commandTimeout = config.redisTimeoutMs
}

/** Sends all commands of one event loop turn in one write, since every write wakes Redis. */
function writeOnceATurn(redis: Redis): void {
  const send = redis.sendCommand.bind(redis)
  redis.sendCommand = (command, stream) => {
    const socket: Socket | undefined = redis.stream
    if (socket !== undefined) corkForTick(socket)
    return send(command, stream)
  }
}

/** Connections that are down. Only the first loss and the last recovery are logged. */
const awayByLog = new WeakMap<Logger, Set<Redis>>()

/** Returns a sentence on why queues cannot rely on this Redis; undefined if they can, or without access to INFO. */
export async function redisConfigError(redis: Redis): Promise<string | undefined> {
  const info = await redis.info().catch(() => '')
  const field = (name: string) => new RegExp(`^${name}:(\\S+)`, 'm').exec(info)?.[1]
  if (field('redis_mode') === 'cluster') {
    return 'REDIS_URL names a node of a Redis Cluster; jobs need all of their keys on one server: use a single Redis, or one behind Sentinels (redis-sentinel://…)'
  }
  const policy = field('maxmemory_policy') ?? 'noeviction'
  if (policy === 'noeviction') return undefined
  return `The Redis of REDIS_URL evicts keys when its memory is full (maxmemory-policy ${policy}), and jobs would be lost; set maxmemory-policy to noeviction`
}

/** Resolves when the connection is usable. Errors: 30 s without Redis; permanent errors at once. */
export async function untilReady(redis: Redis, log: Logger): Promise<void> {
  if (redis.status === 'ready') return
  const started = Date.now()
  let reason: string | undefined
  await new Promise<void>((resolve, reject) => {
    const timer = setInterval(() => {
      if (Date.now() - started < timings.startMs) {
        log.warn({ reason }, 'Waiting for Redis')
        return
      }
      fail('Redis does not answer')
    }, 1000)
    const settle = () => {
      clearInterval(timer)
      redis.off('ready', onReady)
      redis.off('error', onError)
    }
    const fail = (what: string) => {
      settle()
      redis.disconnect()
      reject(new Error(`${what}; check REDIS_URL`))
    }
    const onError = ({ message }: Error) => {
      reason = message
      if (REFUSAL.test(message)) fail(`Redis refuses the connection: ${message.replace(/\.$/, '')}`)
    }
    const onReady = () => {
      settle()
      resolve()
    }
    redis.on('ready', onReady)
    redis.on('error', onError)
  })
}

type RedisOptions = Omit<AnyOptions, 'replyMapping'>

/** `redis-sentinel://user:password@host:port,host:port/number#name`, as other clients write it. */
const SENTINEL =
  /^(rediss?)-sentinel:\/\/(?:([^:@/]*)(?::([^@/]*))?@)?([^/?#]+)(?:\/(\d*))?(?:\?([^#]*))?#(.+)$/
const SENTINEL_PORT = 26_379
/** Without an answer, the next one is asked. */
const SENTINEL_MS = 5000

export function createRedis(url: string, isTlsInsecure: boolean, options: RedisOptions): Redis {
  const tls =
    isTlsInsecure && url.startsWith('rediss') ? { tls: { rejectUnauthorized: false } } : {}
  const sentinels = parseSentinelUrl(url)
  if (sentinels === undefined) return new Redis(url, { ...tls, ...options })
  // Sentinels use TLS if the servers do.
  const sentinelTls = url.startsWith('rediss') ? { tls: {}, sentinelTLS: {}, ...tls } : {}
  const sentinelCommandTimeout = SENTINEL_MS
  return new Redis({ sentinelCommandTimeout, ...sentinels, ...sentinelTls, ...options })
}

/** Returns undefined for a plain server URL. `?sentinelPassword=` authenticates at the Sentinels. */
export function parseSentinelUrl(url: string): RedisOptions | undefined {
  const match = SENTINEL.exec(url)
  if (match === null) return undefined
  const [, , username, password, hosts = '', db, query, name = ''] = match
  const sentinelPassword = new URLSearchParams(query).get('sentinelPassword')
  return {
    sentinels: hosts.split(',').map((place) => {
      const { hostname, port } = new URL(`redis://${place}`)
      return { host: hostname, port: Number(port || SENTINEL_PORT) }
    }),
    name: decodeURIComponent(name),
    ...(username ? { username: decodeURIComponent(username) } : {}),
    ...(password ? { password: decodeURIComponent(password) } : {}),
    ...(db ? { db: Number(db) } : {}),
    ...(sentinelPassword ? { sentinelPassword } : {}),
  }
}
