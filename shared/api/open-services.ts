/** Opens the services of a process; closes them in reverse order. */
import { setTimeout as delay } from 'node:timers/promises'
import { createDevices } from '../access/credentials/devices.ts'
import { createHashing } from '../access/credentials/hashing.ts'
import { createSignedUrls } from '../access/credentials/signed-urls.ts'
import { createTokens } from '../access/credentials/tokens.ts'
import { invalidateCaches, sizeWithin } from '../core/cache.ts'
import type { Config } from '../core/config/config.ts'
import { ConfigError } from '../core/config/reader.ts'
import { timings } from '../core/config/waits.ts'
import { makePrototypesFast } from '../core/fast-prototypes.ts'
import type { Logger } from '../core/log.ts'
import { openPrincipals } from '../identity/principals.ts'
import { openProfiles } from '../identity/profiles.ts'
import { openSigningKeys } from '../identity/signing-keys.ts'
import { openProgramRights } from '../identity/write-rules.ts'
import { openStorage } from '../outbound/storage/disk.ts'
import { withFailureCount } from '../outbound/storage/storage.ts'
import { type Database, openDatabase } from '../postgres/database.ts'
import { connectionErrorReason } from '../postgres/pool.ts'
import { openReplicas, type Replicas } from '../postgres/replicas.ts'
import { checkPooler, connectionRoom } from '../postgres/sessions.ts'
import { openQueues } from '../queue/queue.ts'
import { openBus } from '../redis/bus.ts'
import { openChanges } from '../redis/changes.ts'
import { createLimiter } from '../redis/limiter.ts'
import { endStart, openRedis, type Redis, redisConfigError, untilReady } from '../redis/redis.ts'
import { createAnnouncer } from '../redis/wakes.ts'
import type { Services } from '../request/services.ts'
import { openRepository } from '../store/open-repository.ts'
import { openOwnParameters } from '../store/rows/custom-parameters.ts'
import { writeFeatures } from './write-features.ts'

/** A startup error, as one sentence for the operator. */
export class StartError extends Error {}

/** Ends the process with the reason why it could not start: a sentence for the operator, or the stack of a fault. */
export function exitUnstarted(error: unknown): void {
  const isPlain = error instanceof ConfigError || error instanceof StartError
  const text = error instanceof Error && !isPlain ? error.stack : String((error as Error).message)
  process.stderr.write(`${text}\n`, () => process.exit(1))
}

const RETRY_MS = 1000
const RECENT_OF_WEB_MB = 128
const RECENT_OF_WORKER_MB = 32

/** Waits up to 30 s for PostgreSQL and Redis. Errors: StartError, ConfigError. */
export async function openServices(config: Config, log: Logger, isWeb = false): Promise<Services> {
  makePrototypesFast()
  for (const doubt of config.warnings) log.warn(doubt)
  await using opened = new AsyncDisposableStack()
  const database = openDatabase(config, log)
  opened.defer(() => database.close())
  await untilAnswering(database, log)
  await requireSessions(config, database, log)
  await requireTables(database)
  const redis = openRedis(config, 'request', log)
  opened.defer(() => redis.disconnect())
  await requireRedis(redis, log)
  const bus = await openBus(config, redis, log)
  opened.defer(() => bus.close())
  const changes = await openChanges(bus, redis)
  const ownParameters = openOwnParameters(database)
  changes.follow(ownParameters.follow)
  changes.follow(invalidateCaches)
  const programRights = await openProgramRights(database, ownParameters, config)
  const replicas = openConfiguredReplicas({ config, redis, log }, database)
  opened.defer(async () => replicas?.close())
  const features = writeFeatures({ ...config, programRights, report: changes.report })
  const recentSize = sizeOfRecent(config, isWeb)
  const options = { ownParameters, log, announce: createAnnouncer(bus), replicas, recentSize }
  const repository = await openRepository(database, features, options)
  const principals = await openPrincipals(database, repository, {
    own: ownParameters,
    log,
    options: config,
  })
  const keys = await openSigningKeys(config, database, repository, log)
  opened.defer(() => keys.close())
  const storage = withFailureCount(await openStorage(config))
  opened.defer(() => storage.close())
  const queues = await openQueues(config, bus, log)
  opened.defer(() => queues.close())
  endStart(redis, config)
  const closing = opened.move()
  return {
    config,
    log,
    database,
    repository,
    replicas,
    principals,
    profiles: openProfiles(repository, principals, log),
    tokens: createTokens(config.baseUrl, keys),
    signedUrls: createSignedUrls(config.baseUrl, keys),
    devices: createDevices(keys),
    hashing: createHashing(config.passwordQueueDepth),
    storage,
    redis,
    bus,
    changes,
    queues,
    load: createLimiter('load', redis, log),
    wrongSecrets: createLimiter('wrong-secrets', redis, log),
    close: () => closing.disposeAsync(),
  }
}

/** Web also answers searches from its recent versions. */
function sizeOfRecent({ webMemoryMb, workerMemoryMb }: Config, isWeb: boolean): number {
  return isWeb
    ? sizeWithin(webMemoryMb, RECENT_OF_WEB_MB)
    : sizeWithin(workerMemoryMb, RECENT_OF_WORKER_MB)
}

function openConfiguredReplicas(
  opened: Pick<Services, 'config' | 'redis' | 'log'>,
  database: Database,
): Replicas | undefined {
  const { databaseReadUrls: urls } = opened.config
  return urls.length === 0 ? undefined : openReplicas(urls, database, opened)
}

async function requireRedis(redis: Redis, log: Logger): Promise<void> {
  await untilReady(redis, log).catch((error: Error) => {
    throw new StartError(error.message)
  })
  const problem = await redisConfigError(redis)
  if (problem !== undefined) throw new StartError(problem)
}

/** Waits for PostgreSQL; logs one line per second. */
async function untilAnswering(database: Database, log: Logger): Promise<void> {
  const deadline = Date.now() + timings.startMs
  for (;;) {
    try {
      await database.ping()
      return
    } catch (error) {
      const reason = connectionErrorReason(error)
      if (reason !== undefined) {
        throw new StartError(`PostgreSQL refuses the connection: ${reason}`)
      }
      if (Date.now() >= deadline) {
        throw new StartError('PostgreSQL does not answer; check DATABASE_URL')
      }
      log.warn('Waiting for PostgreSQL')
      await delay(RETRY_MS)
    }
  }
}

async function requireSessions(config: Config, database: Database, log: Logger): Promise<void> {
  const isPooled = config.databaseDirectUrl !== undefined
  const refusal = await checkPooler(database, isPooled)
  if (refusal !== undefined) throw new StartError(refusal)
  // A pooler has more connections than PostgreSQL.
  if (isPooled) return
  const { most, used } = await connectionRoom(database)
  const { databasePool } = config
  if (databasePool > most) {
    throw new StartError(
      `DATABASE_POOL is ${databasePool}, and PostgreSQL lets this account have ${most} connections: lower it`,
    )
  }
  if (used + databasePool > most)
    log.warn({ used, most, databasePool }, 'PostgreSQL may run out of connections')
}

async function requireTables(database: Database): Promise<void> {
  const rows = await database.query<{ found: boolean }>({
    text: `select to_regclass('version') is not null and to_regclass('search_key_salt') is not null as found`,
  })
  if (rows[0]?.found !== true) {
    throw new StartError('The database has no tables yet; run `node scripts/migrate.ts` first')
  }
}
