/** Imports helpers of the launcher, to find its processes and secrets. */
import '../fixtures/services/bare-spawn.ts'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, rmSync, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../scripts/account.ts'
import { readCredentials } from '../../scripts/credentials.ts'
import { findNotedProcess, freePort } from '../../scripts/service.ts'
import { makeTenant, until } from '../fixtures/botica.ts'
import { aBot, execute, handler } from '../fixtures/bots/bots.ts'
import { signIn } from '../fixtures/client.ts'

const ROOT = join(import.meta.dirname, '../..')
const NAMES = ['web', 'worker', 'redis', 'postgres']

const folder = temporaryFolder('botica-start-')
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const port = await freePort()
const baseUrl = `http://localhost:${port}/`

interface Run {
  readonly process: ChildProcess
  readonly output: string
}

/** Resolves at the line that reports readiness, or at exit. */
async function start(env: Record<string, string> = {}): Promise<Run> {
  const {
    DATABASE_URL,
    REDIS_URL,
    SUPER_ADMIN_CLIENT_ID,
    SUPER_ADMIN_CLIENT_SECRET,
    SUPER_ADMIN_PASSWORD,
    ...rest
  } = process.env
  const child = spawn(process.execPath, ['scripts/start.ts'], {
    cwd: ROOT,
    env: { ...rest, NODE_OPTIONS: '', DATA_DIR: folder, PORT: String(port), ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  t.teardown(() => child.kill('SIGTERM'))
  let output = ''
  const ready = new Promise<void>((resolve) => {
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (data) => {
        output += data
        if (output.includes('ready at')) resolve()
      })
    }
  })
  await Promise.race([ready, once(child, 'close')])
  return { process: child, output }
}

async function end(run: Run, signal: NodeJS.Signals): Promise<number | null> {
  const closed = once(run.process, 'close')
  run.process.kill(signal)
  const [code] = await closed
  return code
}

const survivors = () =>
  NAMES.filter((name) => findNotedProcess(join(folder, name, 'process.json')) !== undefined)

t.test('prints address and credentials file in one line on first start', async (t) => {
  const run = await start()
  const file = join(folder, 'credentials.json')
  t.equal(
    run.output,
    `Botica is ready at ${baseUrl}; the super admin's credentials are in ${file}\n`,
  )
  t.equal(statSync(file).mode & 0o777, 0o600)
  const { clientId, clientSecret } = JSON.parse(readFileSync(file, 'utf8'))
  const superAdmin = await signIn(baseUrl, clientId, clientSecret)
  t.equal((await superAdmin.get('/auth/me')).status, 200)
  t.match((await superAdmin.get('/healthcheck')).body, { ok: true, workers: true })

  await t.test('rejects a second start on the same data', async (t) => {
    const second = await start()
    t.match(second.output, /^Botica already runs on the data in .*\n$/)
    t.equal(second.process.exitCode, 1)
  })

  await t.test('stops all started processes on SIGTERM', async (t) => {
    t.equal(await end(run, 'SIGTERM'), 0)
    t.same(survivors(), [])
  })
})

t.test('prints one line for each failed run and request', async (t) => {
  const run = await start({ BATCH_TIMEOUT_MS: '1', LOG_LEVEL: 'info' })
  let output = ''
  run.process.stdout?.on('data', (data) => {
    output += data
  })
  const { clientId, clientSecret } = readCredentials(folder, {})
  const superAdmin = await signIn(baseUrl, clientId, clientSecret)
  const tenant = await makeTenant(baseUrl, superAdmin, 'Terminal')
  const id = await aBot(tenant, handler('throw new Error("a secret of a patient")'))
  const failed = await execute(tenant.admin, id)
  const request = { method: 'POST', url: 'Patient' }
  const entry = Array.from({ length: 50 }, () => ({
    resource: { resourceType: 'Patient' },
    request,
  }))
  const late = await tenant.admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  t.equal(late.status, 504)
  await until(async () => output.split('\n').length > 2, 60_000)
  const runId = failed.headers.get('x-bot-run-id')
  const [place, requestId] = [`project ${tenant.project.id}`, late.headers.get('x-request-id')]
  const lines = output
    .trim()
    .split('\n')
    .map((line) => line.replace(/ \d[\d.]* ms/, ' some ms'))
  t.same(lines.toSorted(), [
    `Bot ${id} failed, thrown, after some ms (run ${runId}, ${place})`,
    `POST /fhir/R4 answered 504 after some ms (request ${requestId}, ${place})`,
  ])
  t.equal(await end(run, 'SIGTERM'), 0)
})

t.test('starts again on the data of a killed start, whose processes end with it', async (t) => {
  const killed = await start()
  t.equal(killed.output, `Botica is ready at ${baseUrl}\n`)
  await end(killed, 'SIGKILL')
  await until(async () => survivors().length === 0, 60_000)

  const again = await start()
  await end(again, 'SIGKILL')
  const run = await start()
  t.equal(run.output, `Botica is ready at ${baseUrl}\n`)
  t.equal(await end(run, 'SIGINT'), 0)
})

t.test('stops everything with one sentence when a process dies', async (t) => {
  const run = await start()
  let output = ''
  run.process.stderr?.on('data', (data) => {
    output += data
  })
  const closed = once(run.process, 'close')
  process.kill(findNotedProcess(join(folder, 'worker', 'process.json')) ?? 0, 'SIGKILL')
  const [code] = await closed
  t.equal(code, 1)
  t.match(output, /^The worker ended by SIGKILL.*\n$/)
  t.same(survivors(), [])
})

t.test('reports an impossible start in one sentence', async (t) => {
  const taken = createServer().listen(0)
  await once(taken, 'listening')
  t.teardown(() => taken.close())
  const address = taken.address()
  const takenPort = String(typeof address === 'object' ? address?.port : '')
  const cases: [string, Record<string, string>, RegExp][] = [
    ['a port in use', { PORT: takenPort }, /^Port \d+ is in use; set PORT to a free one\n$/],
    [
      'a database that is not there',
      { DATABASE_URL: 'postgres://me:my-secret@127.0.0.1:1/none' },
      /^PostgreSQL at 127.0.0.1:1\/none cannot be used: connect ECONNREFUSED [^\n]*\n$/,
    ],
    ['a data folder that is a file', { DATA_DIR: '/etc/passwd' }, /^The data folder [^\n]*\n$/],
    ['a setting out of range', { DATABASE_POOL: '0' }, /^DATABASE_POOL is "0"; [^\n]*\n$/],
  ]
  for (const [name, env, expected] of cases) {
    await t.test(name, async (t) => {
      const run = await start(env)
      t.match(run.output, expected)
      t.equal(run.process.exitCode, 1)
      t.notMatch(run.output, 'my-secret')
    })
  }
})
