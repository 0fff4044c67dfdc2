/**
 * `npm start`: local PostgreSQL and Redis if none are given, migrations, the first project, then one web and one worker
 * process; stops all in order. Keeps all data under DATA_DIR.
 */
import { once } from 'node:events'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { join, resolve } from 'node:path'
import { type Config, readConfig } from '../shared/core/config/config.ts'
import { credentialsFile, readCredentials, toEnvironment, writeCredentials } from './credentials.ts'
import { followFailures } from './follow-failures.ts'
import { prepare } from './migrate.ts'
import { startPostgres } from './postgres.ts'
import { findNotedProcess, terminateLeftover, writeProcessNote } from './processes.ts'
import { nodeArguments } from './procfile.ts'
import { startRedis } from './redis.ts'
import { freePort, type Program, readLastError, type Service, startService } from './service.ts'
import { requireDatabase, requireRedis } from './stores.ts'

const ROOT = resolve(import.meta.dirname, '..')
const NAMES = ['web', 'worker', 'redis', 'postgres'] as const
type Name = (typeof NAMES)[number]

/** Below 30 s in total. Requests waiting for a bot need the worker, so web stops first. */
const STOP_MS = { processes: 24_000, web: 12_000, store: 2500 }

const running = new Map<Name, Service>()
let stopping: Promise<void> | undefined

async function main(): Promise<void> {
  const env = { ...process.env }
  if (env.PORT?.trim() === '0') env.PORT = String(await freePort())
  // Placeholder URLs for local stores; other settings are checked before any start.
  const first = readConfig({
    ...env,
    DATABASE_URL: env.DATABASE_URL || 'local',
    REDIS_URL: env.REDIS_URL || 'local',
  })
  for (const doubt of first.warnings) console.error(doubt)
  const folder = resolve(first.dataDir)
  env.DATA_DIR = folder
  takeFolder(folder)
  await endSurvivors(folder)
  await requireFreePort(first.port)

  await openStores(folder, env)
  const isFirst = await prepareWith(folder, env)
  const config = readConfig(env)
  await startProcesses(config, folder, env)

  const place = credentialsFile(folder)
  const hint = isFirst && existsSync(place) ? `; the super admin's credentials are in ${place}` : ''
  console.log(`Botica is ready at ${config.baseUrl}${hint}`)
}

function takeFolder(folder: string): void {
  const note = join(folder, 'start.json')
  try {
    mkdirSync(folder, { recursive: true, mode: 0o711 })
  } catch (error) {
    throw new Error(
      `The data folder ${folder} cannot be made: ${errorMessage(error)}; see DATA_DIR`,
    )
  }
  const other = findNotedProcess(note)
  if (other !== undefined) {
    throw new Error(
      `Botica already runs on the data in ${folder} (process ${other}); stop it first, or set DATA_DIR`,
    )
  }
  try {
    writeProcessNote(note, process.pid)
  } catch (error) {
    throw new Error(
      `The data folder ${folder} cannot be written: ${errorMessage(error)}; see DATA_DIR`,
    )
  }
  process.once('exit', () => rmSync(note, { force: true }))
}

/** Ends children of a killed `npm start`, to free their port and data. */
async function endSurvivors(folder: string): Promise<void> {
  for (const name of NAMES) {
    const signal = name === 'postgres' ? 'SIGINT' : 'SIGTERM'
    await terminateLeftover(join(folder, name, 'process.json'), signal)
  }
}

async function requireFreePort(port: number): Promise<void> {
  const server = createServer().listen(port)
  try {
    await once(server, 'listening')
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (code === 'EADDRINUSE') throw new Error(`Port ${port} is in use; set PORT to a free one`)
    throw new Error(`Port ${port} cannot be used: ${errorMessage(error)}; set PORT to another one`)
  }
  server.close()
  await once(server, 'close')
}

/** Starts local stores for missing URLs; writes them into `env`. */
async function openStores(folder: string, env: NodeJS.ProcessEnv): Promise<void> {
  const local: Promise<void>[] = []
  if (!env.DATABASE_URL) {
    const options = { folder: join(folder, 'postgres'), sharedBuffersMb: 512, durable: true }
    const started = startPostgres(options, (service) => keep('postgres', service))
    local.push(
      started.then(({ url }) => {
        env.DATABASE_URL = url
      }),
    )
  }
  if (!env.REDIS_URL) {
    const options = { folder: join(folder, 'redis'), durable: true }
    const started = startRedis(options, (service) => keep('redis', service))
    local.push(
      started.then(({ url }) => {
        env.REDIS_URL = url
      }),
    )
  }
  await Promise.all(local)
  const { databaseUrl, databaseTlsInsecure, redisUrl, redisTlsInsecure } = readConfig(env)
  await Promise.all([
    requireDatabase(databaseUrl, databaseTlsInsecure),
    requireRedis(redisUrl, redisTlsInsecure),
  ])
}

/** Migrates and seeds; true when the super admin was created now, with the stored credentials. */
async function prepareWith(folder: string, env: NodeJS.ProcessEnv): Promise<boolean> {
  const credentials = readCredentials(folder, env)
  const isNew = !existsSync(credentialsFile(folder))
  const { SUPER_ADMIN_PASSWORD, SUPER_ADMIN_CLIENT_ID, SUPER_ADMIN_CLIENT_SECRET } = env
  const isGiven = SUPER_ADMIN_PASSWORD && SUPER_ADMIN_CLIENT_ID && SUPER_ADMIN_CLIENT_SECRET
  // Before seeding: a start killed in between must not lose credentials known to the database.
  if (isNew && !isGiven) writeCredentials(folder, credentials)
  const isFirst = await prepare(readConfig({ ...env, ...toEnvironment(credentials) }))
  if (isNew && !isFirst) rmSync(credentialsFile(folder), { force: true })
  return isFirst
}

async function startProcesses(
  config: Config,
  folder: string,
  env: NodeJS.ProcessEnv,
): Promise<void> {
  const url = `http://127.0.0.1:${config.port}/`
  const start = async (name: 'web' | 'worker', isReady: () => Promise<boolean>) => {
    const place = join(folder, name)
    mkdirSync(place, { recursive: true, mode: 0o700 })
    const program: Program = {
      name: name === 'web' ? 'The web process' : 'The worker',
      url,
      command: process.execPath,
      args: nodeArguments(name),
      cwd: ROOT,
      env,
      folder: place,
      account: undefined,
      stopSignal: 'SIGTERM',
      isReady,
    }
    await startService(program, (service) => {
      keep(name, service)
      followFailures(join(place, 'log'), console.log)
    })
  }
  await Promise.all([
    start('web', () => answers(`${url}livez`)),
    start('worker', () => answers(`${url}healthcheck`)),
  ])
}

/** Stops all processes when one ends by itself. */
function keep(name: Name, service: Service): void {
  running.set(name, service)
  if (stopping) void service.stop(STOP_MS.store)
  void service.ended.then((how) => {
    if (!stopping) void fail(`${service.name} ended ${how}: ${readLastError(service.folder)}`)
  })
}

async function answers(url: string): Promise<boolean> {
  try {
    const response = await fetch(url, { signal: AbortSignal.timeout(5000) })
    const body = await response.text()
    return response.ok && !body.includes('"workers":false')
  } catch {
    return false
  }
}

function stopAll(): Promise<void> {
  stopping ??= stopInOrder()
  return stopping
}

async function stopInOrder(): Promise<void> {
  const deadline = Date.now() + STOP_MS.processes
  await running.get('web')?.stop(STOP_MS.web)
  await running.get('worker')?.stop(deadline - Date.now())
  await running.get('redis')?.stop(STOP_MS.store)
  await running.get('postgres')?.stop(STOP_MS.store)
}

async function fail(sentence: string): Promise<void> {
  console.error(sentence)
  await stopAll()
  process.exit(1)
}

function errorMessage(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => void stopAll().then(() => process.exit(0)))
}
try {
  await main()
} catch (error) {
  if (!stopping) await fail(errorMessage(error))
}
