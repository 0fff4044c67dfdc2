import t from 'tap'
import { aRun, handler, openTestExecutors, run } from '../../fixtures/bots/runs.ts'

const executors = await openTestExecutors(t)

async function runForLog(code: string, changes: object = {}): Promise<string> {
  const { log } = await run(executors, aRun(code, changes))
  return log.replace(/^\S+Z /gm, '')
}

t.test('logs a failure with the stack lines of the bot', async (t) => {
  const code = [
    'function read(text) {',
    '  return JSON.parse(text)',
    '}',
    'exports.handler = async (medplum, event) => {',
    '  await null',
    "  return read('{')",
    '}',
  ].join('\n')
  t.match(
    await runForLog(code),
    /^ERROR SyntaxError: .*\n {4}at JSON\.parse \(<anonymous>\)\n {4}at read \(bot\.js:2:15\)\n {4}at exports\.handler \(bot\.js:6:10\)\n$/,
  )
})

t.test('reports file, line and column of a top-level failure in both module formats', async (t) => {
  const lines = ['function inner() { nothing.here }', '   inner()']
  const frames =
    /^ERROR ReferenceError: nothing is not defined\n {4}at inner \(lib\.ts:1:20\)\n {4}at .*lib\.ts:2:4\)?\n$/
  const script = [...lines, 'exports.handler = () => 1'].join('\n')
  t.match(await runForLog(script, { file: 'lib.ts' }), frames)
  const module = [...lines, 'export const handler = () => 1'].join('\n')
  t.match(await runForLog(module, { file: 'lib.ts', format: 'module' }), frames)
  const broken = await runForLog('export const handler = () => {', {
    file: 'lib.mjs',
    format: 'module',
  })
  t.match(broken, /^ERROR SyntaxError: Unexpected end of input \[lib\.mjs:1:31\]\n$/)
})

t.test('omits sandbox frames for every kind of failure', async (t) => {
  const bodies = [
    `await medplum.readResource('Patient', '1')`,
    `await fetch('https://example.com/')`,
    `new URL('nonsense')`,
    `Hl7Message.parse('nonsense')`,
    `structuredClone(() => 1)`,
    `require('fs')`,
  ]
  for (const body of bodies) {
    const log = await runForLog(handler(`\n  ${body}\n`))
    t.match(log, /^ERROR \S*Error.*\n.*bot\.js:2:/s, body)
    t.notMatch(log, /botica|isolated-vm|node:/, body)
  }
})

t.test('reports lines of modules, too', async (t) => {
  const code = `export const handler = async () => {\n  throw new RangeError('far')\n}`
  t.match(await runForLog(code, { format: 'module' }), /^ERROR RangeError: far\n.*bot\.js:2:9\)\n$/)
})

t.test('logs the cause of an error after it', async (t) => {
  const code = handler(`
    const inner = new TypeError('inner', { cause: 'text' })
    console.warn(new Error('seen', { cause: inner }))
    const own = new Error('own')
    own.cause = own
    throw own`)
  const log = await runForLog(code)
  t.match(log, /^WARN Error: seen\n {4}at .*\nCaused by: TypeError: inner\n {4}at /)
  t.equal(log.match(/Caused by: Error: own/g)?.length, 4, 'ends at a cycle')
})

t.test('formats values as JSON with limited depth and length', async (t) => {
  const cases: readonly (readonly [string, string])[] = [
    [`'text', 1, true, null, undefined`, 'text 1 true null undefined'],
    [`{ a: ['x', { b: new Date(0) }] }`, '{"a":["x",{"b":"1970-01-01T00:00:00.000Z"}]}'],
    [`() => 1, Symbol('s'), 5n`, '[function] Symbol(s) 5'],
    [
      `{ a: { b: { c: { d: { e: { f: { g: 1 } } } } } } }`,
      '{"a":{"b":{"c":{"d":{"e":{"f":{…}}}}}}}',
    ],
    [`[[[[[[[1]]]]]]]`, '[[[[[[[…]]]]]]]'],
    [`Array(200).fill(1)`, `[${'1,'.repeat(100)}…]`],
    [`(() => { const a = {}; a.a = a; return a })()`, '{"a":{"a":{"a":{"a":{"a":{"a":{…}}}}}}}'],
    [`{ get a() { throw 1 } }`, '[unprintable]'],
    [`new URL('https://example.com/x')`, '"https://example.com/x"'],
  ]
  for (const [values, line] of cases) {
    t.equal(await runForLog(handler(`console.log(${values})`)), `INFO ${line}\n`, values)
  }
})

t.test('masks secrets as JSON, as numbers and within other secrets', async (t) => {
  const key = '-----BEGIN KEY-----\nMIIEvQ\n-----END "KEY"-----'
  const secrets = {
    PART: { name: 'PART', valueString: 'password' },
    WHOLE: { name: 'WHOLE', valueString: 'password-of-production' },
    KEY: { name: 'KEY', valueString: key },
    ACCOUNT: { name: 'ACCOUNT', valueInteger: 1234567890 },
    RATE: { name: 'RATE', valueDecimal: 0.12345678 },
    PIN: { name: 'PIN', valueInteger: 1234 },
  }
  const event = JSON.stringify({ context: {}, secrets })
  const code = handler(`
    console.log(event.secrets)
    const [whole, key, account] = ['WHOLE', 'KEY', 'ACCOUNT'].map((name) => event.secrets[name])
    console.log('at', whole.valueString, account.valueInteger, 'with', key.valueString)
    throw new Error(JSON.stringify([key.valueString]))`)
  const log = await runForLog(code, { event })
  t.match(log, '"WHOLE":{"name":"WHOLE","valueString":"***"}')
  t.match(log, '"KEY":{"name":"KEY","valueString":"***"}')
  t.match(log, '"ACCOUNT":{"name":"ACCOUNT","valueInteger":***}')
  t.match(log, '"PIN":{"name":"PIN","valueInteger":1234}')
  t.match(log, 'INFO at *** *** with ***\n')
  t.match(log, 'ERROR Error: ["***"]\n')
  t.notMatch(log, /production|MIIEvQ|1234567890|0\.12345678/)
})

t.test('masks secrets everywhere', async (t) => {
  const secrets = {
    KEY: { name: 'KEY', valueString: 'hunter2hunter2' },
    SHORT: { name: 'SHORT', valueString: 'seven77' },
    FLAG: { name: 'FLAG', valueBoolean: true },
  }
  const event = JSON.stringify({ context: {}, secrets })
  const code = handler(`
    console.log({ deep: ['a hunter2hunter2 b'] }, 'hunter2hunter2hunter2hunter2', 'seven77')
    throw new Error('no hunter2hunter2', { cause: new Error('hunter2hunter2') })`)
  const log = await runForLog(code, { event })
  t.match(log, 'INFO {"deep":["a *** b"]} ****** seven77\n')
  t.match(log, 'ERROR Error: no ***\n')
  t.match(log, 'Caused by: Error: ***\n')
  t.notMatch(log, 'hunter2')
})

t.test('masks secrets where an error text is cut', async (t) => {
  const secret = 'hunter2-'.repeat(10)
  const event = JSON.stringify({ context: {}, secrets: { KEY: { valueString: secret } } })
  const bodies = [4096, 8192, 65_536].flatMap((cut) => {
    const lines = `'${'a'.repeat(50)}\\n'.repeat(${Math.floor(cut / 51)} - 1) + 'a'.repeat(20)`
    return [`'a'.repeat(${cut - 60})`, lines].flatMap((start) => [
      `throw new Error(${start} + event.secrets.KEY.valueString + 'b'.repeat(70_000))`,
      `throw ${start} + event.secrets.KEY.valueString`,
      `console.error(new Error(${start} + event.secrets.KEY.valueString))`,
      `console.log({ a: ${start} + event.secrets.KEY.valueString })`,
    ])
  })
  for (const body of [...bodies, `throw new Error(event.secrets.KEY.valueString.repeat(1000))`]) {
    const result = await run(executors, aRun(handler(body), { event }))
    t.notMatch(result.log, 'hunter2', body)
    t.notMatch(result.body, 'hunter2', body)
  }
})
