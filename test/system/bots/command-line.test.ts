/** `botica …` on a running service, as a bot author uses it, with its folder in the repository. */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { hasChromium, openPage } from '../../fixtures/http/chromium.ts'
import { click, reads, signInOn } from '../../fixtures/http/console.ts'

const root = join(import.meta.dirname, '../../..')
const botica = await openBotica(t, { worker: 'process', env: { BOT_INPUT_ARCHIVE: 'true' } })
// Packages are resolved from parent folders.
mkdirSync(join(root, '.test-data'), { recursive: true })
const home = mkdtempSync(join(root, '.test-data', 'botica-'))
t.teardown(() => rmSync(home, { recursive: true, force: true }))
const folder = join(home, 'greeter')
const LONG_MS = 60_000

interface Run {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

function start(words: readonly string[], end: (run: Run) => void = () => {}): ChildProcess {
  const own = { ...process.env, NODE_OPTIONS: '', BASE_URL: botica.baseUrl }
  const args = [
    '--disable-warning=ExperimentalWarning',
    join(root, 'scripts/cli/botica.ts'),
    ...words,
  ]
  return execFile(process.execPath, args, { cwd: home, env: own }, (error, stdout, stderr) => {
    end({ code: error === null ? 0 : Number(error.code ?? 1), stdout, stderr })
  })
}

/** Runs in the folder of the bot, except `init` and commands with another folder. */
function run(...words: string[]): Promise<Run> {
  return new Promise((resolve) => start(['--folder', folder, ...words], resolve))
}

function write(name: string, text: string): string {
  const file = join(home, name)
  writeFileSync(file, text)
  return file
}

t.test('creates a project, a deploy client and a working bot with init', async (t) => {
  const made = await run('init', 'greeter', '--name', 'Greetings')
  t.equal(made.code, 0, made.stderr)
  t.match(made.stdout, /^Project [\da-f-]{36}, client [\da-f-]{36}, bot [\da-f-]{36}\n/)
  t.match(readFileSync(join(folder, '.env'), 'utf8'), /^MEDPLUM_BASE_URL=.*\nMEDPLUM_CLIENT_ID=/)

  const answer = await run('call', join(folder, 'person.json'))
  t.equal(answer.code, 0, answer.stderr)
  t.match(JSON.parse(answer.stdout), { name: [{ family: 'Chalmers', given: ['Peter'] }] })

  const other = await run('init', 'greeter', '--name', 'Others')
  t.match(other, { code: 1, stderr: /greeter has a bot already/ })
})

t.test(
  'rejects a folder with files that init would overwrite, before it creates anything',
  async (t) => {
    const count = async () =>
      (await botica.superAdmin.get<{ total: number }>('Project?_summary=count')).body.total
    const before = await count()
    mkdirSync(join(home, 'app'))
    for (const name of ['.env', '.gitignore']) write(`app/${name}`, 'mine')
    const refused = await run('init', 'app')
    t.match(refused, { code: 1, stderr: /app has \.env and \.gitignore already/ })
    t.equal(readFileSync(join(home, 'app/.env'), 'utf8'), 'mine')
    t.equal(await count(), before)
  },
)

t.test('prints sign-in instructions with init, again for a folder that has a bot', async (t) => {
  const file = join(folder, '.env')
  t.equal(statSync(file).mode & 0o777, 0o600)
  const [, email = '', password = ''] =
    /CONSOLE_EMAIL=(.*)\nCONSOLE_PASSWORD=(.*)\n/.exec(readFileSync(file, 'utf8')) ?? []
  const again = await run('init', 'greeter')
  t.equal(again.code, 0, again.stderr)
  t.match(again.stdout, `e-mail    ${email}\n  password  ${password}\n`)

  const second = await run('init', 'second')
  t.equal(second.code, 0, second.stderr)
  t.match(second.stdout, /e-mail {4}bot-author-/)
  t.notMatch(second.stdout, email, 'uses another person for another project')

  if (!hasChromium()) return
  const page = await openPage(t)
  await page.goto(`${botica.baseUrl}console/bots`)
  await signInOn(page, email, password)
  await reads(page, 'Greetings')
  await click(page, 'greeter')
  await page.shows(`/bots\\/[\\da-f-]{36}/.test(location.pathname)`)
  await page.goto(`${botica.baseUrl}console/`)
  await reads(page, 'Bot Author')
  await page.shows(
    `[...document.querySelectorAll('nav a')].some((one) => one.textContent === 'Members')`,
  )
})

t.test('passes the generated test of the folder', async (t) => {
  const { code, stdout, stderr } = await run('test')
  t.equal(code, 0, stderr + stdout)
  t.match(stdout, /a person is stored as a Patient/)
})

t.test('lists a failed run, and replays it after a fix', async (t) => {
  const failed = await run('call', write('half.json', '{"family":"Jones"}'))
  t.match(failed, { code: 1, stdout: '' })
  t.match(failed.stderr, /^Invalid null value .*Patient\.name\[0\]\.given\[0\]/)

  const [line = ''] = (await run('runs')).stdout.split('\n')
  t.match(line.split('\t'), [/^[\da-f-]{36}$/, 'thrown', /Z$/, /^[\d.]+$/, 'Invalid null value'])
  const [latest] = JSON.parse((await run('runs', '--json', '--count', '1')).stdout)
  t.match(latest, { runId: line.split('\t')[0], replayable: true, log: /ERROR .*\n.*bot\.ts:/s })

  const source = join(folder, 'bot.ts')
  const code = readFileSync(source, 'utf8')
  writeFileSync(source, code.replace('given: [given]', 'given: given ? [given] : []'))
  t.match(await run('deploy'), { code: 0, stderr: 'deployed bot.ts\n' })
  const replayed = await run('replay', latest.runId)
  t.equal(replayed.code, 0, replayed.stderr)
  t.match(JSON.parse(replayed.stdout), { name: [{ family: 'Jones' }] })
  t.match(await run('replay', '00000000-0000-4000-8000-000000000000'), {
    code: 1,
    stderr: /^Not found/,
  })
})

t.test('sends requests with api, and prints the response or parts of it', async (t) => {
  const patient = '{"resourceType": "Patient", "name": [{"family": "Quist", "given": ["A", "B"]}]}'
  const made = await run('api', 'POST', 'Patient', patient, '--select', 'name.given | name.family')
  t.match(made, { code: 0, stdout: 'A\nB\nQuist\n' }, made.stderr)
  const file = write('patient.json', patient)
  const id = (await run('api', 'post', 'Patient', file, '--select', 'id')).stdout.trim()
  const patch = '[{"op": "add", "path": "/gender", "value": "other"}]'
  const patched = await run('api', 'PATCH', `Patient/${id}`, patch, '--include')
  t.match(patched.stdout, /^200 OK\n(?:[\w-]+: .*\n)*etag: W\/"2"\n/)
  t.match(patched.stdout, '\n\n{\n  "resourceType": "Patient"')
  const address = `${botica.baseUrl}fhir/R4/Patient/${id}`
  t.equal((await run('api', 'GET', address, '--select', 'gender')).stdout, 'other\n')
  const me = await run('api', 'GET', '/auth/me', '--select', 'profile.resourceType')
  t.equal(me.stdout, 'ClientApplication\n')
  for (const foreign of ['///127.0.0.2:1/x', '/http://127.0.0.2:1/x', 'http://127.0.0.2:1/x']) {
    t.match(await run('api', 'GET', foreign), { code: 1, stderr: /is not an address of/ }, foreign)
  }
})

t.test('waits for the result of an asynchronous request with api --wait', async (t) => {
  const manifest = await run('api', 'GET', '$export?_type=Patient', '--wait')
  const [{ url = '' } = {}] = JSON.parse(manifest.stdout).output
  const { stdout } = await run('api', 'GET', url)
  const [line = ''] = stdout.split('\n')
  t.match(JSON.parse(line), { resourceType: 'Patient' })
  const lenient = ['--header', 'Prefer: handling=lenient']
  const odd = await run('api', 'GET', '$export?_type=Patient&colour=red', '--wait', ...lenient)
  t.match(JSON.parse(odd.stdout), { error: [{ count: 1 }] }, odd.stderr)
})

t.test('uses another client with api --as', async (t) => {
  const { id, secret } = await botica.createMember()
  const file = write('member.json', JSON.stringify({ id, secret }))
  const { stdout } = await run('api', 'GET', '/auth/me', '--as', file, '--select', 'profile.id')
  t.equal(stdout, `${id}\n`)
  const empty = write('empty.json', '{}')
  const none = await run('api', 'GET', '/auth/me', '--as', empty)
  t.match(none, { code: 1, stderr: /empty\.json must have "id" and "secret" of a client/ })
})

t.test('prints the outcome of a rejected request with api, and exits with 1', async (t) => {
  const absent = await run('api', 'GET', 'Patient/none')
  t.match(absent, { code: 1, stdout: '', stderr: /^Not found/ })
  const foreign = await run('api', 'GET', 'https://example.org/fhir/R4/Patient')
  t.match(foreign, { code: 1, stderr: /is not an address of/ })
  const header = await run('api', 'GET', 'Patient', '--header', 'Prefer')
  t.match(header, { code: 1, stderr: /must have the form "Name: value"/ })
})

t.test('deploys on each save with dev and shows the log of runs', async (t) => {
  const source = join(folder, 'bot.ts')
  const dev = start(['--folder', folder, 'dev'])
  const ended = new Promise((resolve) => dev.once('close', resolve))
  const said = { out: '', err: '' }
  dev.stdout?.on('data', (text) => (said.out += text))
  dev.stderr?.on('data', (text) => (said.err += text))
  try {
    await until(async () => said.err.includes('waiting for changes'), LONG_MS)
    writeFileSync(source, 'export const handler = ;')
    await until(async () => /bot\.ts: .*line 1, column 24/.test(said.err), LONG_MS)
    writeFileSync(
      source,
      `export async function handler() { console.log('seen live'); return 'a\\rb' }`,
    )
    await until(async () => said.err.split('deployed bot.ts').length === 3, LONG_MS)
    // The worker learns of the listener within seconds.
    const printed = new Set<string>()
    await until(async () => {
      printed.add((await run('call', join(folder, 'person.json'))).stdout)
      return /INFO seen live/.test(said.out)
    }, LONG_MS)
    t.same([...printed], ['a\rb\n'])
    await until(async () => /run [\da-f]{8} ok in/.test(said.err), LONG_MS)
  } finally {
    dev.kill('SIGINT')
    await ended
  }
})

t.test('runs in the local sandbox with run, with log and result on separate streams', async (t) => {
  const messages = join(root, 'test/data/hl7v2')
  const [message = ''] = readdirSync(messages).filter((name) => /^ADT.*A01.*\.hl7$/.test(name))
  const admit = ['run', join(root, 'examples/admit.ts'), '--input', join(messages, message)]
  let admitted = await run(...admit)
  // A busy executor does not wait until it has measured the heap.
  await until(async () => {
    if (admitted.code !== 0 || admitted.stderr.includes('heap')) return true
    admitted = await run(...admit)
    return false
  }, LONG_MS)
  t.equal(admitted.code, 0, admitted.stderr)
  t.match(admitted.stdout, /^MSH\|.*\rMSA\|AA\|/)
  t.match(
    admitted.stderr,
    /ok in [\d.]+ ms, CPU [\d.]+ ms, heap [\d.]+ MB, \d+ requests in [\d.]+ ms/,
  )

  const code = `import type { BotEvent, MedplumClient } from '@medplum/core'
    export async function handler(medplum: MedplumClient, event: BotEvent) {
      console.log('got', event.input.n)
      const { meta } = await medplum.createResource({ resourceType: 'Patient' })
      const { status } = await fetch(medplum.getBaseUrl() + 'healthcheck')
      return { author: meta.author.reference, status, token: medplum.getAccessToken !== undefined }
    }`
  const mine = await run('run', write('mine.ts', code), '--input', write('in.json', '{"n":7}'))
  t.equal(mine.code, 0, mine.stderr)
  t.match(JSON.parse(mine.stdout), { author: /^ClientApplication\//, status: 200, token: true })
  t.match(mine.stderr, /INFO got 7\n/)
  t.match(mine.stderr, /2 requests in/)
})

t.test('exits with a code when a run in the sandbox fails', async (t) => {
  const cases: readonly [name: string, code: string, says: RegExp, seconds?: string][] = [
    [
      'throws.js',
      'exports.handler = async () => { throw new Error("no bed left") }',
      /^no bed left$/m,
    ],
    [
      'loops.js',
      'exports.handler = async () => { for (;;); }',
      /^Bot (timed out|exceeded CPU)/m,
      '1',
    ],
    ['wrong.ts', 'export const handler = ;', /^wrong\.ts: .*line 1, column 24/m],
    ['needs.js', 'exports.handler = require("fs")', /^Cannot find module 'fs'/m],
  ]
  for (const [name, code, says, seconds = '60'] of cases) {
    const ran = await run('run', write(name, code), '--timeout', seconds)
    t.match(ran, { code: 1, stdout: '' }, name)
    t.match(ran.stderr, says)
  }
  t.match(await run('run', join(home, 'none.js')), { code: 1, stderr: /no such file/ })
})

t.test('reports errors in one line without Node warnings', async (t) => {
  const cases: readonly [words: string[], says: RegExp][] = [
    [['runs', '--count', 'x'], /^error: option '--count <number>' argument 'x' is invalid/],
    [['fly'], /^error: unknown command 'fly'/],
    [['--folder', '/none', 'runs'], /^No medplum\.config\.json in \/none; make a bot by/],
    [
      ['init', 'elsewhere', '--url', 'http://127.0.0.1:9/'],
      /^No service answers at http:\/\/127\.0\.0\.1:9; is `npm start` running\?\n$/,
    ],
    [['init', 'other', '--project', 'none'], /^Not found/],
  ]
  for (const [words, says] of cases) {
    const { code, stderr, stdout } = await run(...words)
    t.match({ code, stdout, stderr }, { code: 1, stdout: '', stderr: says }, words.join(' '))
  }
  for (const command of [
    '',
    'init',
    'dev',
    'deploy',
    'call',
    'run',
    'test',
    'logs',
    'runs',
    'replay',
  ]) {
    const { code, stderr, stdout } = await run(...[command, '--help'].filter((word) => word !== ''))
    t.match({ code, stdout, stderr }, { code: 0, stdout: /^Usage: botica /, stderr: '' }, command)
  }
})

t.test('prints a table with terminal line ends to a terminal', async (t) => {
  const words = (name: string) =>
    `${process.execPath} --disable-warning=ExperimentalWarning ${root}/scripts/cli/botica.ts -f ${folder} ${name}`
  const inTerminal = (name: string): Promise<string> =>
    new Promise((resolve, reject) => {
      const args = ['-qec', words(name), '/dev/null']
      const shown: Buffer[] = []
      const terminal = spawn('script', args, { stdio: ['ignore', 'pipe', 'inherit'] })
      terminal.stdout.on('data', (chunk) => shown.push(chunk))
      terminal.once('error', reject)
      terminal.once('close', () => resolve(Buffer.concat(shown).toString()))
    })
  t.match(await inTerminal('runs'), /│ \(index\) │ run/)
  t.match(await inTerminal(`call ${folder}/person.json`), /^a\r\nb\r\n$/)
})
