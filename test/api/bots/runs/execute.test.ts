import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import {
  aBot,
  deploy,
  eventually,
  execute,
  handler,
  type Untyped,
} from '../../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica
const HL7 = 'x-application/hl7-v2+er7'
const ADT = 'MSH|^~\\&|A|B|C|D|20261101||ADT^A01|77|P|2.5.1\rPID|1||1234'

const patient = { fields: { timeout: 120 } }
const echo = await aBot(botica, handler('return event.input'), patient)

t.test('parses input by its content type', async (t) => {
  const describe = await aBot(
    botica,
    handler(`const { input } = event
      return JSON.stringify([input?.constructor?.name, typeof input === 'object' ? input : String(input)])`),
  )
  const cases: readonly (readonly [string, string | Uint8Array, unknown])[] = [
    ['text/plain', 'Hello', ['String', 'Hello']],
    ['text/plain; charset=utf-8', 'Grüße', ['String', 'Grüße']],
    ['application/json', '{"a":[1]}', ['Object', { a: [1] }]],
    ['application/json', '[1,2]', ['Array', [1, 2]]],
    ['application/json', '"x"', ['String', 'x']],
    ['application/x-www-form-urlencoded', 'a=1&b=x+y', ['Object', { a: '1', b: 'x y' }]],
    [
      'application/fhir+json',
      '{"resourceType":"Patient"}',
      ['Object', { resourceType: 'Patient' }],
    ],
    ['application/vnd.x+json', '{"a":1}', ['Object', { a: 1 }]],
    ['application/xml', '<a/>', ['String', '<a/>']],
    ['application/octet-stream', new Uint8Array([0, 255]), ['Uint8Array', { 0: 0, 1: 255 }]],
  ]
  for (const [type, body, expected] of cases) {
    const answer = await admin.post(`Bot/${describe}/$execute`, body, { 'Content-Type': type })
    t.equal(answer.status, 200, type)
    t.same(JSON.parse(answer.text), expected, `${type} ${body}`)
  }
  const none = await admin.post(`Bot/${describe}/$execute`)
  t.same(JSON.parse(none.text), ['Object', {}], 'has no body')
})

t.test('passes HL7 as a message, and returns its acknowledgement as text', async (t) => {
  const ack = await aBot(botica, handler('return event.input.buildAck()'))
  const answer = await admin.post(`Bot/${ack}/$execute`, ADT, { 'Content-Type': HL7 })
  t.equal(answer.status, 200)
  t.match(answer.headers.get('content-type'), HL7)
  t.match(answer.text, /^MSH\|\^~\\&\|C\|D\|A\|B\|.*\rMSA\|AA\|77\|OK/s)
})

t.test('decodes HL7 and text by their declared character set', async (t) => {
  const family = await aBot(
    botica,
    handler(`return event.input?.getSegment?.('PID').getField(5).toString() ?? event.input`),
    patient,
  )
  const message = (name: string, charset = '') => {
    const header = `MSH|^~\\&|A|B|C|D|20261101||ADT^A01|77|P|2.5.1||||||${charset}`
    return Buffer.from(`${header}\rPID|1||1||${name}`, 'latin1')
  }
  const euro = String.fromCharCode(0x80)
  const accepted: [string, Buffer, string][] = [
    [`${HL7}; charset=ISO-8859-1`, message('Mü\xdf'), 'Müß'],
    [`${HL7};charset="windows-1252"`, message(euro), '€'],
    [`${HL7}; charset=utf-8`, Buffer.from(message('X').toString().replace('X', 'Müß')), 'Müß'],
    [`${HL7}; charset=us-ascii`, message('Mue'), 'Mue'],
    [HL7, message('Mü', '8859/1'), 'Mü'],
    [HL7, Buffer.from(message('X', '8859/1').toString().replace('X', 'Mü')), 'Mü'],
    ['text/plain; charset=iso-8859-1', Buffer.from('Grüße', 'latin1'), 'Grüße'],
  ]
  for (const [type, body, text] of accepted) {
    const answer = await admin.post(`Bot/${family}/$execute`, body, { 'Content-Type': type })
    t.match(answer, { status: 200, text }, type)
  }
  const refused: [string, Buffer, number, string][] = [
    [`${HL7}; charset=shift_jis`, message('X'), 415, 'not in shift_jis'],
    [HL7, message('Mü', 'ISO IR87'), 415, 'not in iso ir87'],
    ['text/plain; charset=utf-16', message('X'), 415, 'not in utf-16'],
    [HL7, message('Mü'), 400, 'Content could not be parsed'],
    [`${HL7}; charset=utf-8`, message('Mü', '8859/1'), 400, 'Content could not be parsed'],
  ]
  for (const [type, body, status, text] of refused) {
    const headers = { 'Content-Type': type }
    const answer = await admin.post<Untyped>(`Bot/${family}/$execute`, body, headers)
    t.equal(answer.status, status, type)
    t.match(answer.body.issue[0].details.text, text)
  }
})

t.test('rejects content that does not match its type', async (t) => {
  const cases: readonly (readonly [string, string])[] = [
    ['application/json', '{'],
    ['application/fhir+json', 'x'],
    [HL7, 'PID|1'],
  ]
  for (const [type, body] of cases) {
    const answer = await admin.post<Untyped>(`Bot/${echo}/$execute`, body, { 'Content-Type': type })
    t.equal(answer.status, 400, type)
    t.equal(answer.body.issue[0].details.text, 'Content could not be parsed')
  }
})

t.test('runs the bot for all four request forms and an extra path', async (t) => {
  const value = randomUUID()
  const fields = { identifier: [{ system: 'https://example.com/bots', value }] }
  const id = await aBot(botica, handler('return { input: event.input, path: event.path }'), {
    fields,
  })
  const identifier = `https://example.com/bots|${value}`
  const query = `identifier=${encodeURIComponent(identifier)}`
  const json = { 'Content-Type': 'application/json' }
  const byId = await admin.get(`Bot/${id}/$execute?a=1&a=2&b=x`)
  t.same(byId.body, { input: { a: ['1', '2'], b: 'x' } })
  t.same((await execute(admin, id, { a: 1 })).body, { input: { a: 1 } })
  t.same((await admin.get(`Bot/$execute?${query}&a=1`)).body, { input: { identifier, a: '1' } })
  t.same((await admin.post(`Bot/$execute?${query}`, '{"a":1}', json)).body, { input: { a: 1 } })
  t.same((await admin.get(`Bot/${id}/$execute/deep/path`)).body, { input: {}, path: 'deep/path' })
})

t.test('formats a result by its kind', async (t) => {
  const csv = `({ resourceType: 'Binary', contentType: 'text/csv', data: btoa('a,b') })`
  const cases: readonly (readonly [string, string, string | RegExp])[] = [
    ['undefined', 'application/fhir+json', /"id":"ok"/],
    ['({ a: 1.50 })', 'application/json', '{"a":1.5}'],
    ['[1]', 'application/json', '[1]'],
    ['true', 'application/json', 'true'],
    ['42', 'application/json', '42'],
    ['null', 'application/json', 'null'],
    [`'some words'`, 'text/plain', 'some words'],
    [`'{"a":1}'`, 'application/json', '{"a":1}'],
    [`''`, 'text/plain', ''],
    [`({ resourceType: 'Basic' })`, 'application/fhir+json', '{"resourceType":"Basic"}'],
    [`Hl7Message.parse('MSH|^~\\\\&|A')`, HL7, 'MSH|^~\\&|A'],
    [csv, 'application/fhir+json', /"Binary"/],
    [
      `({ resourceType: 'OperationOutcome', issue: [{ severity: 'information', code: 'informational' }] })`,
      'application/fhir+json',
      /"severity":"information"/,
    ],
    [`require('@medplum/core').allOk`, 'application/fhir+json', /"id":"ok"/],
  ]
  for (const [expression, type, body] of cases) {
    const id = await aBot(botica, handler(`return ${expression}`))
    const answer = await execute(admin, id)
    t.equal(answer.status, 200, expression)
    t.match(answer.headers.get('content-type'), type, expression)
    t.match(answer.text, body, expression)
  }
  const binary = await aBot(botica, handler(`return ${csv}`))
  const asGet = await admin.get(`Bot/${binary}/$execute`)
  t.equal(asGet.headers.get('content-type'), 'text/csv')
  t.equal(asGet.text, 'a,b')
  const fhir = await admin.get(`Bot/${binary}/$execute`, { Accept: 'application/fhir+json' })
  t.match(fhir.body, { resourceType: 'Binary' })
  const text = await admin.post(`Bot/${echo}/$execute`, '{"a":1}', { 'Content-Type': 'text/plain' })
  t.match(text.headers.get('content-type'), 'text/plain', 'keeps text that looks like JSON')
})

t.test('answers with the status of a returned outcome, and counts the run as failed', async (t) => {
  const cases: readonly (readonly [string, string, number])[] = [
    ['not-found', 'not-found', 404],
    ['forbidden', 'forbidden', 403],
    ['conflict', 'conflict', 409],
    ['gone', 'deleted', 410],
    ['business-rule', 'business-rule', 422],
    ['too-many-requests', 'throttled', 429],
    ['', 'invalid', 400],
    ['', 'exception', 500],
  ]
  for (const [name, code, status] of cases) {
    const outcome = {
      resourceType: 'OperationOutcome',
      ...(name === '' ? {} : { id: name }),
      issue: [{ severity: 'error', code, details: { text: 'As the bot says' } }],
    }
    const id = await aBot(botica, handler(`return ${JSON.stringify(outcome)}`))
    const answer = await execute(admin, id)
    t.equal(answer.status, status, `${name} ${code}`)
    t.same(answer.body, outcome)
    await eventually(async () => {
      const { text } = await admin.get(`Bot/${id}/$runs`)
      return (text.includes('returned') && text.includes('As the bot says')) || undefined
    })
  }
})

t.test('ends the AsyncJob with the error that the bot returned', async (t) => {
  const outcome = `{ resourceType: 'OperationOutcome', id: 'not-found', issue: [{ severity: 'error', code: 'not-found' }] }`
  const id = await aBot(botica, handler(`return ${outcome}`))
  const accepted = await admin.post<Untyped>(`Bot/${id}/$execute`, {}, { Prefer: 'respond-async' })
  t.equal(accepted.status, 202)
  const url = accepted.headers.get('content-location') ?? ''
  const { body, text } = await eventually(async () => {
    const answer = await admin.get(url)
    return answer.status === 200 ? answer : undefined
  })
  t.match(body, { status: 'error' })
  t.match(text, '"not-found"')
})

t.test('returns 400 with an outcome and the run id for a failed bot', async (t) => {
  const cases: readonly (readonly [string, unknown])[] = [
    [`throw new Error('no way')`, { code: 'invalid', details: { text: 'no way' } }],
    [`throw 'words'`, { details: { text: 'words' } }],
    [
      `const { OperationOutcomeError, notFound } = require('@medplum/core')
       throw new OperationOutcomeError(notFound)`,
      { code: 'not-found' },
    ],
    [`return await medplum.readResource('Patient', '${randomUUID()}')`, { code: 'not-found' }],
    ['const a = {}; a.a = a; return a', { details: { text: /could not be serialized/ } }],
    [`return 'x'.repeat(6291457)`, { code: 'too-costly' }],
  ]
  for (const [body, issue] of cases) {
    const answer = await execute(admin, await aBot(botica, handler(body)))
    t.equal(answer.status, 400, body)
    t.match(answer.body.issue[0], issue, body)
    t.equal(answer.body.issue[0].diagnostics, answer.headers.get('x-bot-run-id'), body)
  }
})

t.test('limits a run without affecting others', async (t) => {
  const slow = await aBot(botica, handler('await new Promise(() => {})'), {
    fields: { timeout: 1 },
  })
  const loop = await aBot(botica, handler('for (;;);'), { fields: { timeout: 1 } })
  const flood = await aBot(
    botica,
    handler('const all = []; for (;;) all.push(new Array(1000).fill({}))'),
    {
      fields: {
        timeout: 60,
        extension: [
          {
            url: `${botica.baseUrl}fhir/StructureDefinition/bot-cpuMs`,
            valueInteger: 60_000,
          },
        ],
      },
    },
  )
  const [ended, looped, flooded, ...neighbours] = await Promise.all([
    execute(admin, slow),
    execute(admin, loop),
    execute(admin, flood),
    ...[1, 2, 3].map((n) => execute(admin, echo, n)),
  ])
  for (const answer of [ended, looped]) {
    t.equal(answer.status, 400)
    t.match(answer.body.issue[0], { code: 'timeout', details: { text: 'Bot timed out after 1 s' } })
  }
  t.equal(flooded.status, 400)
  t.match(flooded.body.issue[0], {
    code: 'too-costly',
    details: { text: 'Bot exceeded memory limit of 128 MB' },
  })
  t.same(
    neighbours.map(({ text }) => text),
    ['1', '2', '3'],
  )
})

t.test('rejects a bot that cannot be found or run', async (t) => {
  const cases: readonly (readonly [string, number, string])[] = [
    ['Bot/$execute', 400, 'Must specify bot ID or identifier.'],
    [`Bot/${randomUUID()}/$execute`, 404, 'Not found'],
    ['Bot/$execute?identifier=a%7Cnobody', 404, 'Not found'],
    ['Bot/$execute?identifier=nobody', 404, 'Not found'],
    [`Bot/${await aBot(botica)}/$execute`, 400, 'No executable code'],
    [
      `Bot/${await aBot(botica, undefined, { fields: { executableCode: { url: 'https://x/' } } })}/$execute`,
      400,
      'Executable code is not a Binary',
    ],
  ]
  for (const [path, status, text] of cases) {
    const answer = await admin.post<Untyped>(path, {})
    t.equal(answer.status, status, path)
    t.equal(answer.body.issue[0].details.text, text)
  }
  const other = await botica.createTenant()
  t.equal((await execute(other.admin, echo)).status, 404, 'of another Project')
  t.equal((await execute(botica.anonymous, echo)).status, 401)
})

t.test('runs the oldest of two bots with one identifier', async (t) => {
  const value = randomUUID()
  const fields = { identifier: [{ system: 's', value }] }
  const oldest = await aBot(botica, handler('return "oldest"'), { fields })
  await aBot(botica, handler('return "youngest"'), { fields })
  await deploy(admin, oldest, handler('return "still oldest"'))
  t.equal((await admin.get(`Bot/$execute?identifier=s%7C${value}`)).text, 'still oldest')
})

t.test('includes the caller in the event and hides private data', async (t) => {
  const id = await aBot(botica, handler('return event'))
  const answer = await execute(admin, id, 1, {
    'X-Mine': 'yes',
    Cookie: 'a=b',
    'X-Forwarded-For': '::1',
  })
  const { requester, headers, runId, attempt, deadline, bot } = answer.body
  t.match(requester.reference, /^ClientApplication\//)
  t.equal(bot.reference, `Bot/${id}`)
  t.equal(runId, answer.headers.get('x-bot-run-id'))
  t.equal(attempt, 1)
  t.ok(deadline > Date.now())
  t.equal(headers['x-mine'], 'yes')
  for (const name of ['authorization', 'cookie', 'x-forwarded-for']) t.notOk(name in headers, name)
})

t.test('allows bots to call bots up to ten levels deep', async (t) => {
  const outer = await aBot(
    botica,
    handler(
      `return await medplum.executeBot('${echo}', { from: event.input.n }, 'application/json')`,
    ),
    patient,
  )
  const answers = await Promise.all(
    Array.from({ length: 12 }, (_, n) => execute(admin, outer, { n })),
  )
  t.same(
    answers.map(({ body }) => body),
    answers.map((_, n) => ({ from: n })),
    'more callers than slots',
  )
  const self = await aBot(botica, undefined, patient)
  await deploy(
    admin,
    self,
    handler(`return await medplum.executeBot('${self}', {}, 'application/json')`),
  )
  const endless = await execute(admin, self)
  t.equal(endless.status, 400)
  t.match(endless.body.issue[0].details.text, /more than 10 deep/)
})

t.test('transfers large inputs and results', async (t) => {
  const input = 'é'.repeat(1_000_000)
  const answer = await execute(admin, echo, { input })
  t.equal(answer.status, 200)
  t.equal(answer.body.input, input)
})

t.test('sends no SQL from web for a warm execute', async (t) => {
  const { database } = botica.services
  let fewest = Infinity
  const deadline = Date.now() + 60_000
  // Background reloads of a session may fall into some runs on a busy machine.
  for (let runs = 0; runs < 10 || (fewest > 0 && Date.now() < deadline); runs++) {
    const before = database.statements
    t.equal((await execute(admin, echo)).status, 200)
    fewest = Math.min(fewest, database.statements - before)
  }
  t.equal(fewest, 0)
})

t.test('stops the run of a caller that disconnects', async (t) => {
  const id = await aBot(botica, handler('await new Promise(() => {})'), {
    fields: { timeout: 300 },
  })
  const controller = new AbortController()
  const asked = fetch(new URL(`fhir/R4/Bot/${id}/$execute`, botica.baseUrl), {
    headers: { Authorization: `Bearer ${admin.token}` },
    signal: controller.signal,
  })
  const active = async () => (await botica.services.queues.depths())['bots-sync']?.active
  await eventually(async () => ((await active()) === 1 ? true : undefined))
  controller.abort()
  await t.rejects(asked)
  await eventually(async () => ((await active()) === 0 ? true : undefined), 60_000)
})

t.test('rejects runs in a Project without bots', async (t) => {
  const other = await botica.createTenant()
  const id = await aBot(other, handler('return 1'))
  const current = await botica.superAdmin.get<Untyped>(`Project/${other.project.id}`)
  await botica.superAdmin.put(`Project/${other.project.id}`, {
    ...current.body,
    features: ['email'],
  })
  const refused = await eventually(async () => {
    const answer = await execute(other.admin, id)
    return answer.status === 400 ? answer : undefined
  })
  t.equal(refused.body.issue[0].details.text, 'Bots not enabled')
})
