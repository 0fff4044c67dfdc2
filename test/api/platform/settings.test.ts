/** Imports the reader of settings, which processes call before they listen. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { describeSettings, readConfig } from '../../../shared/core/config/config.ts'

const ROOT = join(import.meta.dirname, '../../..')
const stores = { DATABASE_URL: 'postgres://x/x', REDIS_URL: 'redis://x' }
const folder = mkdtempSync(join(tmpdir(), 'botica-settings-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))

async function run(command: string, args: string[], env: NodeJS.ProcessEnv) {
  const child = spawn(command, args, { cwd: ROOT, env, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  child.stdout.on('data', (data) => (output += data))
  child.stderr.on('data', (data) => (output += data))
  const [code] = await once(child, 'close')
  return { code, output }
}

t.test('names the intended setting for a similar variable', async (t) => {
  const cases: readonly (readonly [string, string | undefined])[] = [
    ['WORKER_CONCURENCY', 'WORKER_CONCURRENCY'],
    ['DATABSE_POOL', 'DATABASE_POOL'],
    ['METRIC_TOKEN', 'METRICS_TOKEN'],
    ['BASEURL', 'BASE_URL'],
    ['PORTS', 'PORT'],
    ['PATH', undefined],
    ['PWD', undefined],
    ['REDIS_TLS_URL', undefined],
    ['TEST_DATABASE_URL', undefined],
    ['HEROKU_POSTGRESQL_AMBER_URL', undefined],
    ['NODE_ENV', undefined],
    ['WORKER_CONCURRENCY', undefined],
  ]
  for (const [name, meant] of cases) {
    const { warnings } = readConfig({ ...stores, [name]: '7' })
    const expected = meant && `${name} is not a setting; did you mean ${meant}?`
    t.same(warnings, expected === undefined ? [] : [expected], name)
  }
})

t.test('prints the intended setting at start and in the release step', async (t) => {
  const env = {
    ...process.env,
    NODE_OPTIONS: '',
    METRIC_TOKEN: 'x',
    DATABASE_URL: 'postgres://x:1/x',
  }
  const ran = await run(process.execPath, ['scripts/migrate.ts'], env)
  t.match(ran, {
    code: 1,
    output: /^METRIC_TOKEN is not a setting; did you mean METRICS_TOKEN\?\n/,
  })
})

t.test('rejects a query in BASE_URL, and warns about a path', async (t) => {
  for (const wrong of ['https://h.org/?a=b', 'https://h.org/#a']) {
    t.throws(
      () => readConfig({ ...stores, BASE_URL: wrong }),
      { message: `BASE_URL is "${wrong}"; paths are appended to it, so it must be https://h.org/` },
      wrong,
    )
  }
  t.equal(readConfig({ ...stores, BASE_URL: 'https://h.org' }).baseUrl, 'https://h.org/')
  const below = readConfig({ ...stores, BASE_URL: 'https://h.org/fhir' })
  t.equal(below.baseUrl, 'https://h.org/fhir/')
  t.match(below.warnings, [/^BASE_URL has the path \/fhir; the proxy/])
})

t.test('rejects unknown features of new projects', async (t) => {
  t.throws(() => readConfig({ ...stores, DEFAULT_PROJECT_FEATURES: 'bots,corn' }), {
    message: /^DEFAULT_PROJECT_FEATURES names "corn"; it may name bots, cron, /,
  })
})

t.test('describes the allowed values of each setting', async (t) => {
  const settings = describeSettings()
  t.ok(settings.size > 60)
  t.match(settings.get('PORT'), {
    form: 'whole number between 0 and 65535',
    byDefault: '8103',
  })
})

t.test('exits at start without Node 24, with the required version', async (t) => {
  mkdirSync(join(folder, 'scripts'))
  mkdirSync(join(folder, 'node_modules/.bin'), { recursive: true })
  cpSync(join(ROOT, 'scripts/setup.sh'), join(folder, 'scripts/setup.sh'))
  const lock = '{}'
  for (const file of ['package-lock.json', 'node_modules/.package-lock.installed']) {
    writeFileSync(join(folder, file), lock)
  }
  for (const [name, code] of [
    ['tap', 0],
    ['node', 1],
  ] as const) {
    const file = join(folder, 'node_modules/.bin', name)
    writeFileSync(file, `#!/bin/sh\nexit ${code}\n`)
    chmodSync(file, 0o755)
  }
  t.match(await run('sh', [join(folder, 'scripts/setup.sh')], process.env), {
    code: 1,
    output: /^Node 24 or newer is needed; /,
  })
})
