/**
 * `npm test -- [--full] [--bail] [--jobs=<number>] [--coverage] [[--together] <file> …]`: starts, migrates and seeds a
 * throw-away PostgreSQL and Redis, then runs the files. TEST_DATABASE_URL and TEST_REDIS_URL replace them; DATABASE_URL
 * and REDIS_URL are ignored, since tests write. `--full` runs randomized tests to full depth, `--together` runs the
 * files in one process. The last line counts assertions.
 */
import { spawn } from 'node:child_process'
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { crc32 } from 'node:zlib'
import { readConfig } from '../shared/core/config/config.ts'
import { temporaryFolder } from './account.ts'
import { readCredentials, toEnvironment } from './credentials.ts'
import { distribute } from './distribute.ts'
import { prepare } from './migrate.ts'
import { copyDatabase, startPostgres } from './postgres.ts'
import { startRedis } from './redis.ts'
import type { Service } from './service.ts'
import { type FileEnd, runFiles } from './test/files.ts'
import { cpuSeconds } from './test/process.ts'

const ROOT = resolve(import.meta.dirname, '..')
const STOP_MS = 5000
const FILES_PER_CORE = 2.5
const SLOWEST = 10
const TIMES = join(ROOT, '.tap/times.txt')

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    full: { type: 'boolean', default: false },
    bail: { type: 'boolean', default: false },
    coverage: { type: 'boolean', default: false },
    jobs: { type: 'string', default: String(Math.ceil(availableParallelism() * FILES_PER_CORE)) },
    together: { type: 'boolean', default: false },
  },
})
const seed = process.env.TEST_SEED ?? String(randomInt(2 ** 31))
const services: Service[] = []
const interrupted = new AbortController()

async function main(folder: string): Promise<number> {
  const env: NodeJS.ProcessEnv = {
    ...process.env,
    ...toEnvironment(readCredentials(folder, {})),
    DATA_DIR: folder,
    // The log goes to standard output, which is a test file's report.
    LOG_LEVEL: process.env.LOG_LEVEL ?? 'silent',
    TEST_DEPTH: options.full ? 'full' : 'slice',
    TEST_SEED: seed,
    WAITS: JSON.stringify({ drainMs: 0, sweepMs: 1000, retryMs: 100, passwordCost: 12 }),
    ...compileCache(),
  }
  const [postgres, redis] = await Promise.all([databaseUrl(folder), redisUrl(folder)])
  env.DATABASE_URL = postgres
  env.REDIS_URL = redis
  await prepare(readConfig(env))
  if (env.TEST_ONE_DATABASE) await distribute(postgres, () => undefined)
  if (interrupted.signal.aborted) return 1
  // External servers may have more connections than a copy allows.
  if (!process.env.TEST_DATABASE_URL) env.TEST_TEMPLATE = await copyDatabase(postgres)
  if (options.coverage) return await cover(env)

  const ends = await runFiles(batches(), {
    cwd: ROOT,
    env,
    jobs: Math.max(1, Number(options.jobs)),
    isBail: options.bail,
    signal: interrupted.signal,
    onEnd: ({ file, ms, cpuS, passed, failed }) =>
      console.log(
        `${failed > 0 ? 'FAIL' : 'pass'} ${seconds(ms)} ${seconds(cpuS * 1000)}  ${file} (${passed})`,
      ),
  })
  for (const failure of ends.flatMap(({ failures }) => failures)) console.log(`\n${failure}`)
  if (ends.length > SLOWEST) reportTimes(ends)
  if (!options.full) console.log(`Slices of the cases by TEST_SEED=${seed}; all of them by --full`)
  // The kernel counts the time of ended children.
  await stopServices()
  console.log(`${cpuSeconds().toFixed()} s of the processor`)
  const [passed, failed] = [sumAssertions(ends, 'passed'), sumAssertions(ends, 'failed')]
  console.log(`${passed} passed, ${failed} failed`)
  return failed === 0 && passed > 0 && !interrupted.signal.aborted ? 0 : 1
}

/**
 * Expensive files, of which a third runs unless `--full`: they end processes, wait for leases, measure memory, or run
 * the whole product end to end; and the slowest folders.
 */
const DRAWN = [
  /(?:faults|chaos|races|memory)\.test\.ts$/,
  /test\/console\/|docs\/pages|bots\/(?:example-bots|command-line|demo)|openapi-lint|system\/start/,
  /test\/(?:bots\/runs|export|graphql|import|platform|search\/(?:oracle|plans)|subscriptions|system\/promises)\//,
]
const GUARDS =
  /access|hostile|security|isolation|policy|outbound|\/(?:execute|graphql|export|import|subscriptions)\.test/

function allFiles(): string[] {
  const files = globSync('test/**/*.test.ts', { cwd: ROOT })
  return options.full ? files : files.filter((file) => !isCostly(file) || isDrawn(file))
}

const isCostly = (file: string) => !GUARDS.test(file) && DRAWN.some((pattern) => pattern.test(file))
const isDrawn = (file: string) => crc32(`${seed} ${file}`) % 3 === 0

const seconds = (ms: number) => `${(ms / 1000).toFixed(1).padStart(7)} s`

function sumAssertions(ends: readonly FileEnd[], what: 'passed' | 'failed'): number {
  return ends.reduce((sum, end) => sum + end[what], 0)
}

/**
 * Files in a separate process: those that change it or inspect more than settings, watch module loading, or have a
 * folder, which tap names after all files of the process.
 */
const APART =
  /\bprocess\.(?!env\b)|\bprocess\.env(?:\.\w+|\[.*\])? \??\??= |\bglobalThis\b|node:child_process|node:worker_threads|node:v8|\/waits\/|\bloadEngine\b|\btestdir\b/
/** Long files run separately: others of a batch would wait. */
const LONG_S = 20
const BATCH_S = 50
const BATCH_FILES = 8
/** Files known to take a minute or more, used without recorded times, as in a fresh clone. */
const SLOW =
  /(?:ledger|identity\/changes|replicas|docs\/pages|-memory|web-sockets-access|large-bodies|oracle\/order)\.test\.ts$|faults\.test|\/promises\/|\/console\/|command-line|identity\/cli|execut|system\/start|binary\/storage/

/** Groups files by process, which saves startup time; longest first. */
function batches(): readonly (readonly string[])[] {
  if (positionals.length > 0)
    return options.together ? [positionals] : positionals.map((file) => [file])
  const seconds = timesBefore()
  const files = allFiles().sort((a, b) => (a < b ? 1 : -1))
  const expectedSeconds = (file: string) =>
    seconds.get(file) ?? (SLOW.test(file) ? 2 * BATCH_S : BATCH_S / BATCH_FILES)
  const isApart = (file: string) =>
    expectedSeconds(file) > LONG_S || APART.test(readFileSync(join(ROOT, file), 'utf8'))
  const [apart, others] = [files.filter(isApart), files.filter((file) => !isApart(file))]
  const found = apart.map((file) => ({ files: [file], s: expectedSeconds(file) }))
  let last = { files: [] as string[], s: BATCH_S }
  for (const file of others) {
    if (last.s + expectedSeconds(file) > BATCH_S || last.files.length === BATCH_FILES) {
      last = { files: [], s: 0 }
      found.push(last)
    }
    last.files.push(file)
    last.s += expectedSeconds(file)
  }
  return found.sort((a, b) => b.s - a.s).map(({ files }) => files)
}

function timesBefore(): ReadonlyMap<string, number> {
  const table = existsSync(TIMES) ? readFileSync(TIMES, 'utf8') : ''
  return new Map(
    [...table.matchAll(/^ *([\d.]+) s .* (\S+)$/gm)].map(([, s, file = '']) => [file, Number(s)]),
  )
}

/** tap's runner tracks coverage; its own report ends with it. */
async function cover(env: NodeJS.ProcessEnv): Promise<number> {
  const args = ['--no-disable-coverage', '--allow-incomplete-coverage', `--jobs=${options.jobs}`]
  const tap = spawn(join(ROOT, 'node_modules/.bin/tap'), [...args, ...positionals], {
    cwd: ROOT,
    env,
    stdio: 'inherit',
  })
  interrupted.signal.addEventListener('abort', () => tap.kill(interrupted.signal.reason))
  const [code] = await once(tap, 'close')
  return code ?? 1
}

/** Coverage is exact only for code compiled in the same process. */
function compileCache(): NodeJS.ProcessEnv {
  if (options.coverage) return { NODE_DISABLE_COMPILE_CACHE: '1' }
  return { NODE_COMPILE_CACHE: join(ROOT, 'node_modules/.cache/compile') }
}

function reportTimes(ends: readonly FileEnd[]): void {
  const bySlowness = ends.toSorted((a, b) => b.ms - a.ms)
  const lines = bySlowness.map(
    ({ file, ms, cpuS }) => `${seconds(ms)} ${seconds(cpuS * 1000)}  ${file}`,
  )
  mkdirSync(dirname(TIMES), { recursive: true })
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

async function stopServices(): Promise<void> {
  await Promise.all(services.splice(0).map((service) => service.stop(STOP_MS)))
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => interrupted.abort(signal))
}

const folder = temporaryFolder('botica-test-')
try {
  process.exitCode = await main(folder)
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exitCode = 1
} finally {
  await stopServices()
  rmSync(folder, { recursive: true, force: true })
}
