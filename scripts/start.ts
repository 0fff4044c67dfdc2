/**
 * `npm start`: local PostgreSQL and Redis if none are given, migrations, the first project, then one web and one worker
 * process; stops all in order. Keeps all data under DATA_DIR.
 */
import { once } from 'node:events'
import { existsSync, mkdirSync, rmSync } from 'node:fs'
import { createServer } from 'node:net'
import { join, resolve } from 'node:path'
import { readConfig } from '../shared/core/config/config.ts'
import { connectionErrorReason } from '../shared/postgres/pool.ts'
import { credentialsFile, readCredentials, toEnvironment, writeCredentials } from './credentials.ts'
import { prepare } from './migrate.ts'
import { startPostgres, withClient } from './postgres.ts'
import { pingRedis, startRedis } from './redis.ts'
import {
  findNotedProcess,
  followLog,
  freePort,
  type OnSpawn,
  readLastError,
  type Service,
  startProcess,
  terminateLeftover,
  writeProcessNote,
} from './service.ts'

const NAMES = ['web', 'worker', 'redis', 'postgres'] as const
type Name = (typeof NAMES)[number]

/** Below 30 s in total. Requests waiting for a bot need the worker, so web stops first. */
const STOP_MS = { processes: 24_000, web: 12_000, store: 2500 }
const FAILURE = /"msg":"A bot run failed"|"status":5\d\d,.*"msg":"request"/

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
  Object.assign(env, { DATA_DIR: folder, PORT: String(first.port) })
  takeFolder(folder)
  // Children of a killed `npm start` occupy its port and data.
  for (const name of NAMES) {
    const signal = name === 'postgres' ? 'SIGINT' : 'SIGTERM'
    await terminateLeftover(join(folder, name, 'process.json'), signal)
  }
  await requireFreePort(first.port)

  await openStores(folder, env)
  const isFirst = await prepareWith(folder, env)
  const start = (name: 'web' | 'worker') => {
    const keepProcess = keep(name)
    return startProcess(name, join(folder, name), env, (service) => {
      keepProcess(service)
      followLog(service.folder, printFailure)
    })
  }
  await Promise.all([start('web'), start('worker')])

  const place = credentialsFile(folder)
  const hint = isFirst && existsSync(place) ? `; the super admin's credentials are in ${place}` : ''
  console.log(`Botica is ready at ${readConfig(env).baseUrl}${hint}`)
}

function takeFolder(folder: string): void {
  const note = join(folder, 'start.json')
  withFolder(folder, 'made', () => mkdirSync(folder, { recursive: true, mode: 0o711 }))
  const other = findNotedProcess(note)
  if (other !== undefined) {
    throw new Error(
      `Botica already runs on the data in ${folder} (process ${other}); stop it first, or set DATA_DIR`,
    )
  }
  withFolder(folder, 'written', () => writeProcessNote(note, process.pid))
  process.once('exit', () => rmSync(note, { force: true }))
}

function withFolder(folder: string, how: string, work: () => void): void {
  try {
    work()
  } catch (error) {
    throw new Error(
      `The data folder ${folder} cannot be ${how}: ${errorMessage(error)}; see DATA_DIR`,
    )
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

/** Starts local stores for missing URLs, writes them into `env`, and checks that all are reachable. */
async function openStores(folder: string, env: NodeJS.ProcessEnv): Promise<void> {
  const postgres = async () => {
    const options = { folder: join(folder, 'postgres'), sharedBuffersMb: 512, durable: true }
    env.DATABASE_URL ||= (await startPostgres(options, keep('postgres'))).url
  }
  const redis = async () => {
    const options = { folder: join(folder, 'redis'), durable: true }
    env.REDIS_URL ||= (await startRedis(options, keep('redis'))).url
  }
  await Promise.all([postgres(), redis()])
  const { databaseUrl, databaseTlsInsecure, redisUrl, redisTlsInsecure } = readConfig(env)
  const options = {
    ...(databaseTlsInsecure ? { ssl: { rejectUnauthorized: false } } : {}),
    connectionString: databaseUrl,
  }
  await Promise.all([
    withClient(options, async () => undefined).catch((error) => {
      const reason = connectionErrorReason(error) ?? `${errorMessage(error)}; see DATABASE_URL`
      throw new Error(`PostgreSQL at ${hostAndPath(databaseUrl)} cannot be used: ${reason}`)
    }),
    pingRedis(redisUrl, redisTlsInsecure).catch((error) => {
      throw new Error(
        `Redis at ${hostAndPath(redisUrl)} cannot be used: ${errorMessage(error)}; see REDIS_URL`,
      )
    }),
  ])
}

/** Leaves out the password. */
function hostAndPath(url: string): string {
  if (!URL.canParse(url)) return 'an address that is none'
  const { host, pathname } = new URL(url)
  return `${host}${pathname}`
}

/** Migrates and seeds; true when the super admin was created now, with the stored credentials. */
async function prepareWith(folder: string, env: NodeJS.ProcessEnv): Promise<boolean> {
  const credentials = readCredentials(folder, env)
  const isNew = !existsSync(credentialsFile(folder))
  const { SUPER_ADMIN_PASSWORD, SUPER_ADMIN_CLIENT_ID, SUPER_ADMIN_CLIENT_SECRET } = env
  const isGiven = SUPER_ADMIN_PASSWORD && SUPER_ADMIN_CLIENT_ID && SUPER_ADMIN_CLIENT_SECRET
  // Before seeding: a start killed in between must not lose credentials known to the database.
  if (isNew && !isGiven) writeCredentials(folder, credentials)
  const { isFirst } = await prepare(readConfig({ ...env, ...toEnvironment(credentials) }))
  if (isNew && !isFirst) rmSync(credentialsFile(folder), { force: true })
  return isFirst
}

/** Stops all processes when one ends by itself. */
function keep(name: Name): OnSpawn {
  return (service) => {
    running.set(name, service)
    if (stopping) void service.stop(STOP_MS.store)
    void service.ended.then((how) => {
      if (!stopping) void fail(`${service.name} ended ${how}: ${readLastError(service.folder)}`)
    })
  }
}

/** Prints failed runs and requests, a line each. */
function printFailure(line: string): void {
  if (!FAILURE.test(line)) return
  const { msg, method, route, status, ms, ...ids } = JSON.parse(line)
  const { requestId, project = 'none', bot, failure, runId } = ids
  console.log(
    msg === 'request'
      ? `${method} ${route} answered ${status} after ${ms} ms (request ${requestId}, project ${project})`
      : `Bot ${bot} failed, ${failure}, after ${ms} ms (run ${runId}, project ${project})`,
  )
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
  if (!(error instanceof Error)) return String(error)
  return error.message || (error as NodeJS.ErrnoException).code || error.name
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => void stopAll().then(() => process.exit(0)))
}
try {
  await main()
} catch (error) {
  if (!stopping) await fail(errorMessage(error))
}
