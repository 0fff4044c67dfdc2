/** `npm run bot -- run`, as an author uses it: on a running service, in the real sandbox. */
import { execFile } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openBotica } from '../fixtures/botica.ts'
import type { Untyped } from '../fixtures/bots/bots.ts'

const root = join(import.meta.dirname, '../..')
const botica = await openBotica(t)
const { admin, adminCredentials } = botica
const folder = mkdtempSync(join(tmpdir(), 'botica-bot-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))

interface Run {
  readonly code: number
  readonly stdout: string
  readonly stderr: string
}

function bot(words: readonly string[], env: Record<string, string> = {}): Promise<Run> {
  const own = { ...process.env, NODE_OPTIONS: '', BASE_URL: botica.baseUrl, ...env }
  return new Promise((resolve) => {
    const args = ['--disable-warning=ExperimentalWarning', 'scripts/bot.ts', ...words]
    execFile(process.execPath, args, { cwd: root, env: own }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : Number(error.code ?? 1), stdout, stderr })
    })
  })
}

function write(name: string, text: string): string {
  const file = join(folder, name)
  writeFileSync(file, text)
  return file
}

const asClient = { CLIENT_ID: adminCredentials.id, CLIENT_SECRET: adminCredentials.secret }

t.test(
  'a message is answered on the data of the project, by a client that goes again',
  async (t) => {
    const messages = join(root, 'test/data/hl7v2')
    const [message = ''] = readdirSync(messages).filter((name) => /^ADT.*A01.*\.hl7$/.test(name))
    const ran = await bot([
      ...['run', 'examples/admit.ts', '--input', join(messages, message)],
      ...['--project', botica.project.id],
    ])
    t.equal(ran.code, 0, ran.stderr)
    t.match(ran.stdout, /^MSH\|.*\rMSA\|AA\|/)
    t.match(ran.stderr, /ok in [\d.]+ ms, CPU [\d.]+ ms, heap [\d.]+ MB, \d+ requests in [\d.]+ ms/)
    t.equal((await admin.get<Untyped>('Patient?_total=accurate')).body.total, 1)
    const clients = await admin.get<Untyped>('ClientApplication?name=Bot on trial&_total=accurate')
    t.equal(clients.body.total, 0)
  },
)

t.test('result and log go apart, and the bot acts as the client it was given', async (t) => {
  const file = write(
    'mine.ts',
    `import type { BotEvent, MedplumClient } from '@medplum/core'
    export async function handler(medplum: MedplumClient, event: BotEvent) {
      console.log('got', event.input.n)
      const { meta } = await medplum.createResource({ resourceType: 'Patient' })
      const { status } = await fetch(medplum.getBaseUrl() + 'healthcheck')
      return { author: meta.author.reference, status, token: medplum.getAccessToken !== undefined }
    }`,
  )
  const ran = await bot(['run', file, '--input', write('in.json', '{"n":7}')], asClient)
  t.equal(ran.code, 0, ran.stderr)
  const author = `ClientApplication/${adminCredentials.id}`
  t.same(JSON.parse(ran.stdout), { author, status: 200, token: true })
  t.match(ran.stderr, /INFO got 7\n/)
  t.match(ran.stderr, /2 requests in/)
})

t.test('what goes wrong is told, with an exit code', async (t) => {
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
    const ran = await bot(['run', write(name, code), '--timeout', seconds], asClient)
    t.equal(ran.code, 1, name)
    t.match(ran.stderr, says)
    t.equal(ran.stdout, '')
  }
  t.match(await bot(['run']), { code: 1, stderr: /^Usage: / })
  t.match(await bot(['run', join(folder, 'none.js')], asClient), {
    code: 1,
    stderr: /no such file/,
  })
})
