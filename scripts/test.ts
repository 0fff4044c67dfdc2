/**
 * `npm test -- [--watch] [option of tap …] [file or folder …]`: starts, migrates and seeds a throw-away PostgreSQL and
 * Redis, then runs tap on the files, by default test/unit and test/api. TEST_DATABASE_URL and TEST_REDIS_URL replace
 * them; DATABASE_URL and REDIS_URL are ignored, since tests write. `--watch` keeps both and runs the files again after
 * each change and each Enter. The last line counts assertions.
 */
import type { ChildProcess } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import { globSync, rmSync, statSync, watch } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { stripVTControlCharacters } from 'node:util'
import { readConfig } from '../shared/core/config/config.ts'
import { temporaryFolder } from './account.ts'
import { readCredentials, toEnvironment } from './credentials.ts'
import { distribute } from './distribute.ts'
import { prepare } from './migrate.ts'
import { copyDatabase, startPostgres } from './postgres.ts'
import { startRedis } from './redis.ts'
import { type Service, spawnGroup } from './service.ts'

const ROOT = resolve(import.meta.dirname, '..')
const STOP_MS = 5000
const WATCHED = ['server', 'shared', 'worker', 'scripts', 'test', 'examples', 'docs']
/** Most tests wait for a process or a database. */
const JOBS = Math.ceil(2.5 * availableParallelism())
/** An editor may write a file in several steps. */
const SETTLE_MS = 50
/** Spares each file the record of its modules, which takes longer than their import and serves only coverage. */
const UNRECORDED = '--import=data:text/javascript,process.env._TAPJS_PROCESSINFO_EXCLUDE_="/./"'
/** Holds the totals at the end of tap's output. */
const TAIL_CHARS = 4000
const NONE = '0 passed, 1 failed'

const isWatching = process.argv.includes('--watch')
const given = process.argv.slice(2).filter((arg) => arg !== '--watch')
const options = given.filter((arg) => arg.startsWith('-'))
const paths = given.filter((arg) => !arg.startsWith('-'))
const services: Service[] = []
const keep = (service: Service) => services.push(service)
const changes = new EventEmitter()
let isInterrupted = false
let tap: ChildProcess | undefined

/** Returns the last line. */
async function main(folder: string): Promise<string> {
  const args = [`--jobs=${JOBS}`, ...options, ...testFiles()]
  const env = await environment(folder)
  for (;;) {
    const change = isWatching ? once(changes, 'change') : undefined
    const totals = await runTap(args, env)
    if (change === undefined || isInterrupted) return totals
    console.log(`${totals}\nWaiting for a change or Enter; Ctrl-C ends`)
    await change
    await delay(SETTLE_MS)
  }
}

/** Starts the services; returns the variables of the test processes. */
async function environment(folder: string): Promise<NodeJS.ProcessEnv> {
  const env: NodeJS.ProcessEnv = {
    // Reporters that write to a pipe print each finished file only if CI is set.
    CI: '1',
    ...(process.stdout.isTTY ? { FORCE_COLOR: '1' } : {}),
    ...process.env,
    ...toEnvironment(readCredentials(folder, {})),
    DATA_DIR: folder,
    // The log goes to standard output, which is a test file's report.
    LOG_LEVEL: process.env.LOG_LEVEL ?? 'silent',
    WAITS: JSON.stringify({ drainMs: 0, sweepMs: 1000, retryMs: 100, passwordCost: 12 }),
    // Coverage is exact only for code compiled in the same process.
    ...(options.includes('--no-disable-coverage')
      ? { NODE_DISABLE_COMPILE_CACHE: '1' }
      : {
          NODE_COMPILE_CACHE: join(ROOT, 'node_modules/.cache/compile'),
          NODE_OPTIONS: `${process.env.NODE_OPTIONS ?? ''} ${UNRECORDED}`,
        }),
  }
  const { TEST_DATABASE_URL: postgresUrl, TEST_REDIS_URL: redisUrl } = process.env
  const inFolder = (name: string) => ({ folder: join(folder, name), durable: false })
  const postgres = { ...inFolder('postgres'), sharedBuffersMb: 256 }
  const [{ url }, redis] = await Promise.all([
    postgresUrl ? { url: postgresUrl } : startPostgres(postgres, keep),
    redisUrl ? { url: redisUrl } : startRedis(inFolder('redis'), keep),
  ])
  Object.assign(env, { DATABASE_URL: url, REDIS_URL: redis.url })
  await prepare(readConfig(env))
  if (env.TEST_ONE_DATABASE) await distribute(url, () => undefined)
  // External servers may have more connections than a copy allows.
  if (!postgresUrl) env.TEST_TEMPLATE = await copyDatabase(url)
  return env
}

/** Runs tap, then ends the processes that files leave. Counts a failure if tap failed or ended without totals. */
async function runTap(args: readonly string[], env: NodeJS.ProcessEnv): Promise<string> {
  if (isInterrupted) return NONE
  tap = spawnGroup('node_modules/.bin/tap', args, { cwd: ROOT, env, stdio: ['pipe', 'inherit'] })
  let output = ''
  tap.stdout?.setEncoding('utf8').on('data', (text: string) => {
    process.stdout.write(text)
    output = (output + text).slice(-TAIL_CHARS)
  })
  const [code] = await once(tap, 'close')
  tap.stdin?.end()
  // For example `# { total: 16, pass: 12, fail: 4 }`.
  const totals = /^# \{ total: .* \}$/m.exec(stripVTControlCharacters(output))?.[0] ?? ''
  const count = (name: string) => Number(new RegExp(`${name}: (\\d+)`).exec(totals)?.[1] ?? 0)
  return `${count('pass')} passed, ${count('fail') || (code === 0 && totals ? 0 : 1)} failed`
}

function testFiles(): readonly string[] {
  const all = paths.length > 0 ? paths : ['test/unit', 'test/api']
  return all.flatMap((path) =>
    statSync(join(ROOT, path)).isDirectory()
      ? globSync(`${path}/**/*.test.ts`, { cwd: ROOT }).sort()
      : [path],
  )
}

/** Ends tap before the files that it runs, otherwise it would start the next ones. Ctrl-C reaches its group only so. */
function interrupt(): void {
  isInterrupted = true
  changes.emit('change')
  if (tap?.kill('SIGKILL')) tap.stdin?.end()
}

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, interrupt)
// A killed npm sends no signal.
const parent = process.ppid
if (process.env.npm_command) setInterval(() => process.ppid === parent || interrupt(), 1000).unref()
if (isWatching) {
  const change = () => changes.emit('change')
  for (const name of WATCHED) watch(join(ROOT, name), { recursive: true }, change)
  process.stdin.on('data', change)
}

const folder = temporaryFolder('botica-test-')
let line = NONE
try {
  line = await main(folder)
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
} finally {
  await Promise.all(services.map((service) => service.stop(STOP_MS)))
  rmSync(folder, { recursive: true, force: true })
}
// The services log their end before it.
console.log(line)
process.exit(/^[1-9].* 0 failed$/.test(line) ? 0 : 1)
