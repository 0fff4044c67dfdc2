/** Checks that PostgreSQL and Redis are reachable before a start. */
import { Client } from 'pg'
import { connectionErrorReason } from '../shared/postgres/pool.ts'
import { createRedis } from '../shared/redis/redis.ts'

/** Throws one sentence with the host, never the password. */
export async function requireDatabase(url: string, isTlsInsecure: boolean): Promise<void> {
  const client = new Client({
    ...(isTlsInsecure ? { ssl: { rejectUnauthorized: false } } : {}),
    connectionString: url,
    connectionTimeoutMillis: 5000,
  })
  client.on('error', () => undefined)
  try {
    await client.connect()
  } catch (error) {
    const reason = connectionErrorReason(error) ?? `${connectionErrorText(error)}; see DATABASE_URL`
    throw new Error(`PostgreSQL at ${hostAndPath(url)} cannot be used: ${reason}`)
  } finally {
    await client.end().catch(() => undefined)
  }
}

/** Throws one sentence with the host, never the password. */
export async function requireRedis(url: string, isTlsInsecure: boolean): Promise<void> {
  const redis = createRedis(url, isTlsInsecure, {
    lazyConnect: true,
    connectTimeout: 5000,
    maxRetriesPerRequest: 0,
    retryStrategy: () => null,
    sentinelRetryStrategy: () => null,
  })
  let reason: unknown
  redis.on('error', (error) => {
    reason = error
  })
  try {
    await redis.connect()
    await redis.ping()
  } catch (error) {
    throw new Error(
      `Redis at ${hostAndPath(url)} cannot be used: ${connectionErrorText(reason ?? error)}; see REDIS_URL`,
    )
  } finally {
    redis.disconnect()
  }
}

function hostAndPath(url: string): string {
  if (!URL.canParse(url)) return 'an address that is none'
  const { host, pathname } = new URL(url)
  return `${host}${pathname}`
}

function connectionErrorText(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  const { code } = error as NodeJS.ErrnoException
  return error.message || code || error.name
}
