/** Imports helpers of `npm start`, to start it on free ports. */
import { type ChildProcess, spawn } from 'node:child_process'
import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { temporaryFolder } from '../../../scripts/account.ts'
import { freePort } from '../../../scripts/service.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import { createClient } from '../../fixtures/client.ts'

const botica = await openBotica(t)
const { admin, project, adminCredentials, baseUrl, services } = botica
const folder = temporaryFolder('botica-seen-')
t.teardown(() => rmSync(folder, { recursive: true, force: true }))

interface Process {
  readonly child: ChildProcess
  readonly url: string
  said(): string
}

async function startWeb(env: NodeJS.ProcessEnv = {}): Promise<Process> {
  const port = await freePort()
  const { redisUrl } = services.config
  const child = spawn(process.execPath, ['server/main.ts'], {
    env: {
      ...process.env,
      REDIS_URL: redisUrl,
      PORT: String(port),
      BASE_URL: baseUrl,
      LOG_LEVEL: 'info',
      ...env,
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  t.teardown(() => child.kill('SIGKILL'))
  let output = ''
  child.stdout.on('data', (data) => {
    output += data
  })
  await until(async () => output.includes('"listening"'), 120_000)
  return { child, url: `http://127.0.0.1:${port}/`, said: () => output }
}

t.test('logs caller, target and run of a request', async (t) => {
  const web = await startWeb()
  const client = createClient(web.url, admin.token)
  const id = await aBot(botica, handler('return 1'))
  const traceId = '0123456789abcdef0123456789abcdef'
  await client.get('Patient', { traceparent: `00-${traceId}-0123456789abcdef-01` })
  const later = await execute(client, id, {}, { Prefer: 'respond-async' })
  t.equal(later.status, 202)
  const findLines = (route: string) =>
    web
      .said()
      .split('\n')
      .filter((line) => line.includes(`"route":"${route}"`))
      .map((line) => JSON.parse(line))
  await until(async () => findLines('/fhir/R4/:type/:id/$execute').length > 0, 60_000)
  const common = { project: project.id, client: adminCredentials.id }
  t.match(findLines('/fhir/R4/:type'), [{ msg: 'request', status: 200, traceId, ...common }])
  t.match(findLines('/fhir/R4/:type/:id/$execute'), [
    { status: 202, bot: id, run: later.headers.get('x-bot-run-id'), ...common },
  ])
})

t.test('reports a process unhealthy without storage or workers, with the reason', async (t) => {
  const storage = join(folder, 'storage')
  const web = await startWeb({
    STORAGE_URL: `file:${storage}`,
    WAITS: JSON.stringify({ outageMs: 500 }),
  })
  const client = createClient(web.url)
  interface Health {
    readonly ok: boolean
    readonly reason?: string
    readonly workers: boolean
  }
  const health = () => client.get<Health>('/healthcheck')
  const first = await health()
  t.match(
    [first.status, first.body.ok, first.body.workers],
    [200, true, false],
    'is healthy at first',
  )
  await until(async () => (await health()).status === 503, 60_000)
  t.match((await health()).body, { ok: false, reason: /^No worker is alive, since \d+ s$/ })

  rmSync(storage, { recursive: true, force: true })
  writeFileSync(storage, 'a file where the folder was')
  await until(async () => /^The storage/.test((await health()).body.reason ?? ''), 60_000)
  const { text } = await client.get('/metrics')
  t.match(text, /^service_up\{part="workers",process="[^"]+"\} 0$/m)
  t.match(text, /^service_up\{part="postgres",process="[^"]+"\} 1$/m)
  t.match(text, /^storage_errors_total\{process="[^"]+"\} [1-9]/m)

  rmSync(storage)
  await botica.startWorker()
  await until(async () => (await health()).body.ok, 60_000)
})
