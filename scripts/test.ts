/**
 * `npm test [-- --full] [-- tap's arguments]`: a PostgreSQL and a Redis of its own in a throw-away folder,
 * migrated and seeded once, then tap. TEST_DATABASE_URL and TEST_REDIS_URL replace them; DATABASE_URL and
 * REDIS_URL are left alone, since tests write. `--full` takes tests that draw their cases by a seed to
 * their full depth. The last line says how many assertions passed and failed.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join, resolve } from 'node:path'
import { readConfig } from '../shared/config/config.ts'
import { temporaryFolder } from './account.ts'
import { asEnvironment, readCredentials } from './credentials.ts'
import { prepare } from './migrate.ts'
import { copyDatabase, startPostgres } from './postgres.ts'
import { startRedis } from './redis.ts'
import type { Service } from './service.ts'
import { readCounts, readFailures, readTimes } from './tap-report.ts'

const ROOT = resolve(import.meta.dirname, '..')
const STOP_MS = 5000
/** Test files wait more than they work: for ticks, leases, processes that start. */
const FILES_PER_CORE = 1.5
const SLOWEST = 10
const TIMES = join(ROOT, '.tap/times.txt')

const isFull = process.argv.includes('--full')
const seed = process.env.TEST_SEED ?? String(randomInt(2 ** 31))
const given = process.argv.slice(2).filter((argument) => argument !== '--full')
const services: Service[] = []
let tap: ChildProcess | undefined
let isInterrupted = false

async function main(folder: string): Promise<number> {
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    ...asEnvironment(readCredentials(folder, {})),
    DATA_DIR: folder,
    // The log goes to standard output, which in a test file is its report to tap.
    LOG_LEVEL: process.env.LOG_LEVEL ?? 'silent',
    TEST_DEPTH: isFull ? 'full' : 'slice',
    TEST_SEED: seed,
    ...compileCache(),
  }
  const [postgres, redis] = await Promise.all([databaseUrl(folder), redisUrl(folder)])
  env.DATABASE_URL = postgres
  env.REDIS_URL = redis
  await prepare(readConfig(env))
  if (isInterrupted) return 1
  // Somebody else's server may have more connections than a copy allows.
  if (!process.env.TEST_DATABASE_URL) env.TEST_TEMPLATE = await copyDatabase(postgres)

  const results = join(folder, 'results.tap')
  const jobs = Math.max(2, Math.ceil(availableParallelism() * FILES_PER_CORE))
  const options = ['--reporter=base', `--output-file=${results}`, `--jobs=${jobs}`]
  tap = spawn('tap', [...options, ...given], {
    cwd: ROOT,
    env: {
      ...env,
      PATH: `${join(ROOT, 'node_modules/.bin')}:${env.PATH}`,
      // tap's reporter redraws its lines, unless it believes itself in a build.
      ...(process.stdout.isTTY ? {} : { CI: 'true' }),
    },
    stdio: 'inherit',
  })
  const [code] = await once(tap, 'close')
  const report = existsSync(results) ? readFileSync(results, 'utf8') : ''
  // Where it does not redraw its lines, the reporter keeps the differences to itself.
  if (!process.stdout.isTTY) console.log(readFailures(report).join('\n\n'))
  reportTimes(report)
  if (!isFull) console.log(`Slices of the cases by TEST_SEED=${seed}; all of them by --full`)
  const counts = readCounts(report)
  // A run that tap calls failed for a reason of its own, a bail-out say, shows as one failure.
  const failed = code !== 0 && counts.passed > 0 ? Math.max(counts.failed, 1) : counts.failed
  console.log(`${counts.passed} passed, ${failed} failed`)
  return code === 0 && failed === 0 && counts.passed > 0 ? 0 : 1
}

/** Coverage is exact only for code that V8 compiles in the process that runs it. */
function compileCache(): NodeJS.ProcessEnv {
  if (given.includes('--no-disable-coverage')) return { NODE_DISABLE_COMPILE_CACHE: '1' }
  return { NODE_COMPILE_CACHE: join(ROOT, 'node_modules/.cache/compile') }
}

/** The table of all files goes to a file, the head of it to the screen. */
function reportTimes(report: string): void {
  const lines = readTimes(report).map(
    ({ file, ms }) => `${(ms / 1000).toFixed(1).padStart(7)} s  ${file}`,
  )
  if (lines.length <= SLOWEST) return
  writeFileSync(TIMES, `${lines.join('\n')}\n`)
  console.log(`The slowest files, all of them in ${TIMES}:\n${lines.slice(0, SLOWEST).join('\n')}`)
}

async function databaseUrl(folder: string): Promise<string> {
  if (process.env.TEST_DATABASE_URL) return process.env.TEST_DATABASE_URL
  const options = { folder: join(folder, 'postgres'), sharedBuffersMb: 256, durable: false }
  return (await startPostgres(options, keep)).url
}

async function redisUrl(folder: string): Promise<string> {
  if (process.env.TEST_REDIS_URL) return process.env.TEST_REDIS_URL
  return (await startRedis({ folder: join(folder, 'redis'), durable: false }, keep)).url
}

function keep(service: Service): void {
  services.push(service)
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => {
    isInterrupted = true
    tap?.kill(signal)
  })
}

const folder = temporaryFolder('botica-test-')
try {
  process.exitCode = await main(folder)
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exitCode = 1
} finally {
  await Promise.all(services.map((service) => service.stop(STOP_MS)))
  rmSync(folder, { recursive: true, force: true })
}
