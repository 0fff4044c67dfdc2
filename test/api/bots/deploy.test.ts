import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, deploy, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica

t.test('runs every module format and language', async (t) => {
  const codes: readonly (readonly [string, string, string])[] = [
    ['CommonJS', 'index.js', `exports.handler = async (medplum, event) => event.input.a`],
    ['module.exports', 'index.cjs', `module.exports = { handler: async (m, e) => e.input.a }`],
    ['a function as module.exports', 'index.js', `module.exports = async (m, e) => e.input.a`],
    ['an ES module', 'index.js', `export async function handler(m, e) { return e.input.a }`],
    [
      'an ES module on one line',
      'index.js',
      `import{createReference as r}from"@medplum/core";var h=async(m,e)=>e.input.a;export{h as handler};`,
    ],
    [
      'the output of a bundler',
      'index.js',
      `var defined = (to, all) => { for (var name in all) Object.defineProperty(to, name, { get: all[name] }) }
       defined(exports, { handler: () => handler }); async function handler(m, e) { return e.input.a }`,
    ],
    ['a default export', 'index.mjs', `export default async (m, e) => e.input.a`],
    [
      'TypeScript whose types are imported like values',
      'index.ts',
      `import { BotEvent, MedplumClient, getReferenceString } from '@medplum/core'
       import { Patient } from '@medplum/fhirtypes'
       export async function handler(medplum: MedplumClient, event: BotEvent<{ a: number }>): Promise<any> {
         const patient: Patient = { resourceType: 'Patient', id: 'x' } as Patient
         return getReferenceString(patient as any) === 'Patient/x' ? event.input.a : undefined
       }`,
    ],
  ]
  for (const [name, filename, code] of codes) {
    const id = await aBot(botica, code, { filename })
    const answer = await execute(admin, id, { a: 7 })
    t.equal(answer.status, 200, name)
    t.equal(answer.text, '7', name)
  }
})

t.test('keeps deployed TypeScript as the source, and no other code', async (t) => {
  const code = 'export const handler = async (): Promise<number> => 1'
  const id = await aBot(botica, code, { filename: 'one.ts' })
  await deploy(admin, id, handler('return 2'))
  const { sourceCode } = (await admin.get<Untyped>(`Bot/${id}`)).body
  t.match(sourceCode, { contentType: 'text/typescript', title: 'one.ts' })
  t.equal((await admin.get(sourceCode.url)).text, code)
})

t.test('rejects code that cannot run, with its position', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const cases: readonly (readonly [string, string, RegExp])[] = [
    ['index.js', 'exports.handler = async (', /index\.js: Unexpected token \(line 1, column 26\)/],
    ['index.ts', 'export const handler =\nconst x: = 1', /index\.ts: .*\(line 2, column \d+\)/s],
    ['lib.ts', 'enum A { B }\nexport const handler = A', /lib\.ts: .*enum.*\(line 1, column 1\)/s],
    ['lib.ts', 'const a = 1\n  enum B { C }', /lib\.ts: .*enum.*\(line 2, column 3\)/s],
    ['lib.ts', 'const first: string = "long"\nlet b = ;', /lib\.ts: .*\(line 2, column 9\)/s],
    ['lib.ts', 'const a: number = 1', /lib\.ts: there is no export/],
    ['index.js', 'const a = 1', /no export named "handler" \(line 1, column 1\)/],
    ['index.js', 'exports.other = 1', /no export named "handler"/],
    ['index.mjs', 'export const other = 1', /no export named "handler" \(line 1, column 1\)/],
    ['index.mts', 'export const handler = async () => {\n  return 1\n', /\(line 2, column 11\)/],
    [
      'index.mjs',
      `import { Hl7Massage } from '@medplum/core'\nexport const handler = Hl7Massage`,
      /"@medplum\/core" has no "Hl7Massage" \(line 1, column 1\)/,
    ],
    ['index.js', `exports.handler = ${'('.repeat(200_000)}`, /index\.js: /],
  ]
  for (const [filename, code, text] of cases) {
    const answer = await deploy(admin, id, code, filename)
    t.equal(answer.status, 400, code.slice(0, 60))
    t.match(answer.body.issue[0].details.text, text)
  }
  const after = await execute(admin, id)
  t.equal(after.text, '1', 'the previous code still runs')
})

t.test('warns on deploy of a missing module, which fails on import', async (t) => {
  const answered = 'return event.input.a'
  const cases: readonly (readonly [string, string, RegExp, string])[] = [
    [
      'index.js',
      `let enc; try { enc = require('encoding') } catch (error) { enc = error.code }
       exports.handler = async () => enc`,
      /Cannot find module "encoding" \(line 1, column 22\)/,
      'MODULE_NOT_FOUND',
    ],
    [
      'index.js',
      `exports.handler = async (m, event) => { ${answered}; return require('fs') }`,
      /module "fs" \(line 1/,
      '7',
    ],
    [
      'index.js',
      `exports.handler = async () => typeof require('crypto').createCipher`,
      /"crypto" has no "createCipher" \(line 1, column 38\)/,
      'undefined',
    ],
    [
      'index.js',
      `const { createReferense } = require('@medplum/core')
       exports.handler = async () => typeof createReferense`,
      /has no "createReferense"/,
      'undefined',
    ],
    [
      'index.mjs',
      `import fs, { readFileSync } from 'node:fs'
       export const handler = async (m, event) => {
         try { readFileSync('x') } catch (error) { return error.message }
       }`,
      /module "node:fs" \(line 1, column 1\)/,
      "Cannot find module 'node:fs'",
    ],
    ['index.mjs', `export * from 'left-pad'; export const handler = () => 1`, /"left-pad"/, '1'],
  ]
  for (const [filename, code, warning, text] of cases) {
    const id = await aBot(botica)
    const answer = await deploy(admin, id, code, filename)
    t.equal(answer.status, 200, code)
    t.equal(answer.body.issue[0].details.text, 'All OK')
    t.match(answer.body.issue[1], { severity: 'warning', details: { text: warning } })
    t.equal((await execute(admin, id, { a: 7 })).text, text)
  }
})

t.test('reports errors by file, line and column of the source', async (t) => {
  const code = `const first: string = 'x'
export async function handler(medplum: any, event: any): Promise<void> {
  if (first) throw new Error('here')
}`
  const id = await aBot(botica, code, { filename: 'lib.ts' })
  t.equal((await execute(admin, id)).status, 400)
  const found = async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    return JSON.stringify(body.parameter ?? [])
  }
  await until(async () => (await found()).includes('handler (lib.ts:3:20)'), 60_000)
})

t.test('compiles TypeScript after code that is nested too deeply', async (t) => {
  const id = await aBot(botica)
  const deep = `export const handler = () => ${'('.repeat(20_000)}1${')'.repeat(20_000)}`
  const refused = await deploy(admin, id, deep, 'index.ts')
  t.equal(refused.status, 400)
  t.match(refused.body.issue[0].details.text, 'index.ts: the code is nested too deeply')
  const code = 'export const handler = async (): Promise<number> => 1'
  t.equal((await deploy(admin, id, code, 'index.ts')).status, 200)
  t.equal((await execute(admin, id)).text, '1')
})

t.test('answers ok to a deploy and references the code in the Bot', async (t) => {
  const id = await aBot(botica)
  const answer = await deploy(admin, id, handler('return 1'), 'src/my-bot.js')
  t.equal(answer.status, 200)
  t.match(answer.body, { resourceType: 'OperationOutcome', id: 'ok' })
  t.equal(answer.body.issue[0].details.text, 'All OK')
  const bot = await admin.get<Untyped>(`Bot/${id}`)
  t.match(bot.body.executableCode, { contentType: 'text/javascript', title: 'my-bot.js' })
  t.match(bot.body.executableCode.url, /\/storage\/[0-9a-f-]{36}\/1\?Expires=/)
})

t.test('accepts Parameters, and validates existing code without new code', async (t) => {
  const id = await aBot(botica)
  const missing = await admin.post<Untyped>(`Bot/${id}/$deploy`, {})
  t.equal(missing.status, 400)
  t.equal(missing.body.issue[0].details.text, 'Bot missing executable code')
  const answer = await admin.post(`Bot/${id}/$deploy`, {
    resourceType: 'Parameters',
    parameter: [
      { name: 'code', valueString: handler('return 2') },
      { name: 'filename', valueString: 'index.js' },
    ],
  })
  t.equal(answer.status, 200)
  t.equal((await admin.post(`Bot/${id}/$deploy`, {})).status, 200)
  t.equal((await execute(admin, id)).text, '2')
})

t.test('rejects bodies that are not a deployment', async (t) => {
  const id = await aBot(botica)
  const json = { 'Content-Type': 'application/json' }
  for (const body of ['{', '[]', '"x"', '{"code":1}', '{"code":"1","filename":{}}']) {
    const answer = await admin.post(`Bot/${id}/$deploy`, body, json)
    t.equal(answer.status, 400, body)
  }
  const large = await deploy(admin, id, `${handler('')}//${'x'.repeat(5 * 1024 * 1024)}`)
  t.equal(large.status, 400)
  t.equal(large.body.issue[0].details.text, 'Bot code too large')
  const fits = `${handler('return 3')}//`
  const largest = await deploy(admin, id, fits.padEnd(5 * 1024 * 1024, 'x'))
  t.equal(largest.status, 200)
})

t.test('requires read and write access to the bot for a deploy', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const other = await botica.createTenant()
  t.equal((await deploy(other.admin, id, handler('return 2'))).status, 404)
  t.equal((await deploy(botica.anonymous, id, handler('return 2'))).status, 401)
  t.equal((await execute(admin, id)).text, '1')
})

t.test(
  'deploys and runs code with long runs of blanks and words, and many imports, at once',
  async (t) => {
    const many = 200_000
    const imports = Array.from({ length: many / 20 }, (_, i) => `import { a${i} } from 'x'\n`)
    const codes: readonly (readonly [code: string, filename: string])[] = [
      [`${'\n'.repeat(many)}${handler('return 1')}`, 'index.js'],
      [`// import${' '.repeat(many)}x\n${handler('return 1')}`, 'index.js'],
      [`// ${'require'.repeat(many / 4)}\n${handler('return 1')}`, 'index.js'],
      [`${imports.join('')}export const handler = async () => 1`, 'index.ts'],
    ]
    const id = await aBot(botica)
    const started = performance.now()
    for (const [code, filename] of codes) {
      const deployed = await deploy(admin, id, code, filename)
      t.equal(deployed.status, 200, deployed.text)
      t.equal((await execute(admin, id)).text, '1')
    }
    t.ok(performance.now() - started < 20_000)
  },
)

t.test('runs new code immediately in the deploying process', async (t) => {
  const id = await aBot(botica)
  for (const text of ['1', '2', '3', '4']) {
    await deploy(admin, id, handler(`return ${text}`))
    t.equal((await execute(admin, id)).text, text)
  }
})

t.test('runs new code in other processes soon', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const url = `${await botica.startWeb()}fhir/R4/Bot/${id}/$execute`
  const ran = async () => (await admin.post<Untyped>(url, {})).text
  t.equal(await ran(), '1')
  await deploy(admin, id, handler('return 2'))
  await until(async () => (await ran()) === '2', 60_000)
  t.equal(await ran(), '2')
})
