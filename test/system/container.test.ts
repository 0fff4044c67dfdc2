/**
 * The image of the Dockerfile in a container engine: without root, on a read-only file system, with 512 MB. TEST_IMAGE
 * names an image to run instead of building it.
 */
import { randomUUID } from 'node:crypto'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../scripts/account.ts'
import { startPostgres } from '../../scripts/postgres.ts'
import { startRedis } from '../../scripts/redis.ts'
import { freePort, nodeArguments } from '../../scripts/service.ts'
import { makeTenant, type Tenant, until } from '../fixtures/botica.ts'
import { aBot, execute, finished, handler, type Untyped } from '../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../fixtures/bots/gates.ts'
import { createClient, signIn } from '../fixtures/client.ts'
import { follow, makeClone, readSteps, toPattern } from '../fixtures/page.ts'
import { aPatient } from '../fixtures/resources.ts'
import { findEngine, openEngine, SMALL_FOLDER } from './platform/engine.ts'

const MOST_MB = 95
const READY_MS = 120_000
const RUNS = 6

const name = findEngine()
if (name === undefined) {
  t.pass('neither docker nor podman works here with the base image')
  process.exit(0)
}
t.setTimeout(1_200_000)
const engine = openEngine(t, name)
const folder = temporaryFolder('botica-container-')
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const [postgres, redis] = await Promise.all([
  startPostgres({ folder: join(folder, 'postgres'), sharedBuffersMb: 64, durable: false }),
  startRedis({ folder: join(folder, 'redis'), durable: false }),
])
t.teardown(() => Promise.all([postgres.stop(), redis.stop()]))
const port = await freePort()
const baseUrl = `http://127.0.0.1:${port}/`
const credentials = { clientId: randomUUID(), clientSecret: randomUUID() }
const env = {
  PORT: String(port),
  BASE_URL: baseUrl,
  DATABASE_URL: postgres.url,
  REDIS_URL: redis.url,
  SUPER_ADMIN_PASSWORD: randomUUID(),
  SUPER_ADMIN_CLIENT_ID: credentials.clientId,
  SUPER_ADMIN_CLIENT_SECRET: credentials.clientSecret,
  BOT_INPUT_ARCHIVE: 'true',
}
const startWorker = () => engine.start(t, env, 'node', ...nodeArguments('worker'))
const isReady = (url: string) => async () =>
  (await fetch(`${url}healthcheck`).catch(() => undefined))?.ok === true

const release = engine.start(t, env, 'node', 'scripts/migrate.ts', '--who')
if (release.wait() !== 0) throw new Error(release.logs())
const web = engine.start(t, env)
let worker = startWorker()
await until(isReady(baseUrl), READY_MS).catch((error) => {
  throw new Error(`${web.logs()}${worker.logs()}`, { cause: error })
})
const superAdmin = await signIn(baseUrl, credentials.clientId, credentials.clientSecret)
const tenant: Tenant = await makeTenant(baseUrl, superAdmin, 'Container')

t.test(`adds at most ${MOST_MB} MB to its base image`, async (t) => {
  const megabytes = (engine.sizes.whole - engine.sizes.base) / 1e6
  t.ok(megabytes > 20 && megabytes <= MOST_MB, `${megabytes} MB`)
})

t.test('runs without root, on a file system that it cannot write', async (t) => {
  t.equal(web.exec('id', '-un'), 'node')
  t.throws(() => web.exec('touch', '/app/file'))
  t.throws(() => web.exec('touch', '/home/node/file'))
})

t.test('runs the commands of the first hour', async (t) => {
  const clone = mkdtempSync(join(tmpdir(), 'botica-container-hour-'))
  t.teardown(() => rmSync(clone, { recursive: true, force: true }))
  makeClone(clone, credentials)
  const steps = readSteps('docs/first-hour.md')
  for (const { command, expected, printed, code } of await follow(t, steps, {
    folder: clone,
    baseUrl,
  })) {
    t.equal(code, 0, `${command}\n${printed}`)
    if (expected !== undefined) t.match(printed.trim(), toPattern(expected), command)
  }
})

const GATED = handler(`${AT_GATE} return 'attempt ' + event.attempt`)
const TIMEOUT = { fields: { timeout: 300 } }

/** Returns when this number of runs is in progress. */
async function running(queue: string, count: number): Promise<void> {
  const metric = new RegExp(
    `^queue_jobs\\{[^}]*queue="${queue}"[^}]*state="active"[^}]*\\} ${count}$`,
    'm',
  )
  await until(async () => {
    const metrics = await (await fetch(`${baseUrl}metrics`)).text()
    return metric.test(metrics)
  }, READY_MS)
}

t.test('finishes a run whose worker was killed', async (t) => {
  const gate = aGate(tenant.admin)
  const bot = await aBot(tenant, GATED, TIMEOUT)
  const accepted = await execute(tenant.admin, bot, gate, { Prefer: 'respond-async' })
  t.equal(accepted.status, 202)
  await running('bots-async', 1)
  worker.kill()
  worker = startWorker()
  await gate.open()
  const job = await finished(tenant.admin, accepted.headers.get('content-location'))
  t.match(job.output.parameter[0], { valueString: 'attempt 2' })
})

t.test('answers the calls in progress when another container takes over', async (t) => {
  const gate = aGate(tenant.admin)
  const bot = await aBot(tenant, GATED, TIMEOUT)
  const nextPort = await freePort()
  const nextUrl = `http://127.0.0.1:${nextPort}/`
  const next = engine.start(t, { ...env, PORT: String(nextPort), DATA_DIR: SMALL_FOLDER })
  await until(isReady(nextUrl), READY_MS)
  const calls = Array.from({ length: RUNS }, () => execute(tenant.admin, bot, gate))
  await running('bots-sync', RUNS)
  const stopped = web.stop()
  const other = createClient(nextUrl, tenant.admin.token)
  await aGate(other, gate.gate).open()
  for (const { status } of await Promise.all(calls)) t.equal(status, 200)
  t.equal(await stopped, 0, web.logs().slice(-2000))

  await t.test('rejects only content for which the disk has no space', async (t) => {
    const large = new Uint8Array(12_000_000)
    const type = { 'Content-Type': 'application/octet-stream' }
    const answer = await other.post<Untyped>('Binary', large, type)
    t.match(answer, { status: 503, body: { resourceType: 'OperationOutcome' } })
    t.equal((await other.post('Patient', aPatient())).status, 201)
    t.equal((await other.post('Binary', new Uint8Array(1000), type)).status, 201)
  })

  t.equal(await next.stop(), 0)
  t.equal(await worker.stop(), 0, worker.logs().slice(-2000))
})
