/** A local Redis for `npm start` and `npm test`. */
import { randomBytes } from 'node:crypto'
import { lstatSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import type { RedisOptions as RedisClientOptions } from 'ioredis'
import { createRedis } from '../shared/redis/redis.ts'
import { programsFolder, serviceAccount, serviceFolder } from './account.ts'
import {
  findOnPath,
  freePort,
  isExecutable,
  type OnSpawn,
  type Program,
  type Service,
  startService,
} from './service.ts'

interface RedisOptions {
  readonly folder: string
  readonly durable: boolean
  /** A free port by default; pass an earlier one for clients that keep using it. */
  readonly port?: number
  readonly password?: string
}

const NO_REDIS =
  'There is no redis-server or valkey-server here; install one (`apt-get install redis-server`, `dnf install valkey` or `brew install valkey`), or set REDIS_URL to a running one'

export async function startRedis(options: RedisOptions, onSpawn?: OnSpawn): Promise<Service> {
  const command = findServer()
  if (command === undefined) throw new Error(NO_REDIS)
  const folder = serviceFolder(options.folder)
  const port = options.port ?? (await freePort())
  const password = options.password ?? randomBytes(24).toString('base64url')
  const url = `redis://:${password}@127.0.0.1:${port}`
  const program: Program = {
    name: 'Redis',
    url,
    command,
    args: ['-'],
    input: [
      `port ${port}`,
      'bind 127.0.0.1',
      `dir ${JSON.stringify(folder)}`,
      `requirepass ${password}`,
      `appendonly ${options.durable ? 'yes' : 'no'}`,
      'save ""',
      'maxmemory-policy noeviction',
      'databases 256',
      '',
    ].join('\n'),
    env: { LANG: 'C.UTF-8', TZ: 'UTC' },
    folder,
    account: serviceAccount(),
    // While loading a large append-only file, Redis answers PING with an error.
    check: () => pingRedis(url, false, { enableReadyCheck: false }),
  }
  return await startService(program, onSpawn)
}

/** Finds an installed server, or the one that scripts/setup.sh has unpacked. */
export function findServer(): string | undefined {
  const installed = findOnPath('redis-server') ?? findOnPath('valkey-server') ?? linkServer()
  if (installed !== undefined) return installed
  const unpacked = join(programsFolder(), 'redis/redis-server')
  return isExecutable(unpacked) ? unpacked : undefined
}

/**
 * Debian's redis-tools contains the server as redis-check-rdb, which acts by the name it is called with. The
 * redis-server package would add a system service on port 6379.
 */
function linkServer(): string | undefined {
  const program = findOnPath('redis-check-rdb')
  if (program === undefined) return undefined
  const link = join(programsFolder(), 'redis-server')
  if (lstatSync(link, { throwIfNoEntry: false }) === undefined) symlinkSync(program, link)
  return link
}

/** Rejects if Redis is unreachable, or rejects the credentials. */
export async function pingRedis(
  url: string,
  isTlsInsecure: boolean,
  options: RedisClientOptions = {},
): Promise<void> {
  const redis = createRedis(url, isTlsInsecure, {
    lazyConnect: true,
    connectTimeout: 5000,
    maxRetriesPerRequest: 0,
    retryStrategy: () => null,
    sentinelRetryStrategy: () => null,
    ...options,
  })
  let reason: unknown
  redis.on('error', (error) => {
    reason = error
  })
  try {
    await redis.connect()
    await redis.ping()
  } catch (error) {
    throw reason ?? error
  } finally {
    redis.disconnect()
  }
}
