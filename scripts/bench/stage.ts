/** Throw-away PostgreSQL and Redis with durable settings, migrated, for one bench run. */
import { randomBytes, randomUUID } from 'node:crypto'
import { rm } from 'node:fs/promises'
import path from 'node:path'
import { type Config, readConfig } from '../../shared/config/config.ts'
import { createLogger } from '../../shared/log.ts'
import { openServices } from '../../shared/open-services.ts'
import type { Services } from '../../shared/services.ts'
import { temporaryFolder } from '../account.ts'
import { prepare } from '../migrate.ts'
import { startPostgres } from '../postgres.ts'
import { startRedis } from '../redis.ts'

export interface Stage {
  /** Settings for child processes. */
  readonly env: NodeJS.ProcessEnv
  readonly config: Config
  readonly services: Services
  close(): Promise<void>
}

const STOP_MS = 5000

/** fsync is on, as in production: a bench without it would flatter the writes. */
export async function openStage(settings: NodeJS.ProcessEnv = {}): Promise<Stage> {
  const folder = temporaryFolder('botica-bench-')
  const [postgres, redis] = await Promise.all([
    startPostgres({ folder: path.join(folder, 'postgres'), sharedBuffersMb: 1024, durable: true }),
    startRedis({ folder: path.join(folder, 'redis'), durable: true }),
  ])
  const env = {
    ...process.env,
    DATABASE_URL: postgres.url,
    REDIS_URL: redis.url,
    DATA_DIR: folder,
    LOG_LEVEL: 'warn',
    RATE_LIMIT_PER_MINUTE: '0',
    SUPER_ADMIN_CLIENT_ID: randomUUID(),
    SUPER_ADMIN_CLIENT_SECRET: randomBytes(32).toString('hex'),
    SUPER_ADMIN_PASSWORD: randomBytes(16).toString('hex'),
    ...settings,
  }
  const config = readConfig(env)
  await prepare(config)
  const services = await openServices(config, createLogger('warn', 'script'))
  return {
    env,
    config,
    services,
    async close() {
      await services.close()
      await Promise.all([postgres.stop(STOP_MS), redis.stop(STOP_MS)])
      await rm(folder, { recursive: true, force: true })
    },
  }
}
