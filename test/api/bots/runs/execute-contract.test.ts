import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import {
  aBot,
  eventually,
  execute,
  finished,
  handler,
  type Untyped,
} from '../../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: true, env: { MAX_BODY_BYTES: '65536' } })
const { admin } = botica
const HL7 = 'x-application/hl7-v2+er7'
const MESSAGE = 'MSH|^~\\&|A\rPID|1'

t.test('passes input and content type of the request', async (t) => {
  const id = await aBot(
    botica,
    handler(`const { input, contentType } = event
      const text = input instanceof Uint8Array ? [...input] : String(input?.constructor === Object ? JSON.stringify(input) : input)
      return { kind: input?.constructor?.name, text, contentType: contentType ?? 'none' }`),
  )
  const cases: readonly [type: string, body: string | Uint8Array, kind: string, text: unknown][] = [
    ['text/plain', 'a', 'String', 'a'],
    ['TEXT/PLAIN; charset=utf-8', 'é', 'String', 'é'],
    ['application/json;charset=utf-8', '{"a":1}', 'Object', '{"a":1}'],
    ['application/json', 'null', '', 'null'],
    ['application/json', '42', 'Number', '42'],
    ['application/x-www-form-urlencoded', 'a=1&a=2&b=%26', 'Object', '{"a":["1","2"],"b":"&"}'],
    ['application/fhir+json', '{"resourceType":"Basic"}', 'Object', '{"resourceType":"Basic"}'],
    [`${HL7}; charset=utf-8`, MESSAGE, 'Hl7Message', MESSAGE],
    ['text/csv', 'a,b', 'String', 'a,b'],
    ['text/xml', '<a/>', 'String', '<a/>'],
    ['application/fhir+xml', '<a/>', 'String', '<a/>'],
    ['image/png', new Uint8Array([137, 80]), 'Uint8Array', [137, 80]],
  ]
  for (const [type, body, kind, text] of cases) {
    const answer = await admin.post<Untyped>(`Bot/${id}/$execute`, body, { 'Content-Type': type })
    const expected = { ...(kind === '' ? {} : { kind }), text, contentType: type }
    t.same(answer.body, expected, type)
  }
  const got = await admin.get<Untyped>(`Bot/${id}/$execute?a=1`)
  t.same(got.body, { kind: 'Object', text: '{"a":"1"}', contentType: 'none' })
})

t.test('returns 413 for a body that is too large', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const answer = await execute(admin, id, 'x'.repeat(70_000))
  t.equal(answer.status, 413)
  t.match(answer.body.issue[0], { code: 'too-long', details: { text: 'File too large' } })
})

t.test('returns a string in the type of the request, or by its content', async (t) => {
  const id = await aBot(botica, handler('return String(event.headers["x-say"])'))
  const cases: readonly [type: string, body: string, says: string, answered: RegExp][] = [
    ['text/plain', 'x', '{"a":1}', /^text\/plain/],
    [HL7, MESSAGE, 'MSA', /^x-application\/hl7-v2\+er7/],
    [HL7, MESSAGE, '{"a":1}', /^x-application\/hl7-v2\+er7/],
    ['application/json', '{}', '[1]', /^application\/json/],
    ['application/json', '{}', '"quoted"', /^application\/json/],
    ['application/json', '{}', 'words', /^text\/plain; charset=utf-8$/],
    ['application/fhir+json', '{"resourceType":"Basic"}', '{broken', /^text\/plain/],
  ]
  for (const [type, body, says, answered] of cases) {
    const headers = { 'Content-Type': type, 'X-Say': says }
    const answer = await admin.post(`Bot/${id}/$execute`, body, headers)
    t.equal(answer.status, 200, says)
    t.match(answer.headers.get('content-type'), answered, `${type} ${says}`)
    t.equal(answer.text, says)
  }
})

t.test('returns 400 with the limit and the run id for every ended run', async (t) => {
  const bigEnough = [
    { url: `${botica.baseUrl}fhir/StructureDefinition/bot-memoryMb`, valueInteger: 16 },
    { url: `${botica.baseUrl}fhir/StructureDefinition/bot-cpuMs`, valueInteger: 60_000 },
  ]
  const cases: readonly [
    body: string,
    fields: Record<string, unknown>,
    code: string,
    text: string | RegExp,
  ][] = [
    ['await new Promise(() => {})', { timeout: 1 }, 'timeout', 'Bot timed out after 1 s'],
    [
      'const a = []; for (;;) a.push([a.length])',
      { timeout: 60, extension: bigEnough },
      'too-costly',
      'Bot exceeded memory limit of 16 MB',
    ],
    ['return "x".repeat(6291457)', {}, 'too-costly', 'Bot result is larger than 6 MB'],
    ['return () => 1', {}, 'invalid', /could not be serialized/],
    ['throw null', {}, 'invalid', 'null'],
    ['throw { message: "of an object" }', {}, 'invalid', 'of an object'],
    ['throw Object.assign(new Error("x"), { status: 500 })', {}, 'invalid', 'x'],
  ]
  for (const [body, fields, code, text] of cases) {
    const answer = await execute(admin, await aBot(botica, handler(body), { fields }))
    t.equal(answer.status, 400, body)
    t.match(answer.headers.get('content-type'), 'application/fhir+json')
    const [issue] = answer.body.issue
    t.match(issue, { severity: 'error', code, details: { text } }, body)
    t.equal(issue.diagnostics, answer.headers.get('x-bot-run-id'), body)
  }
})

t.test('records one failed run when an outcome of a bot cannot be read', async (t) => {
  const deep = 'let deep = {}; for (let i = 0; i < 2000; i++) deep = { extension: [deep] }'
  for (const code of [
    `return { resourceType: 'OperationOutcome', toJSON: () => null }`,
    `${deep}; throw { resourceType: 'OperationOutcome', issue: [deep] }`,
  ]) {
    const id = await aBot(botica, handler(code))
    const answer = await execute(admin, id)
    t.equal(answer.status, 400, code)
    t.match(answer.body.issue[0].details.text, /could not be serialized/)
    const later = await execute(admin, id, {}, { Prefer: 'respond-async' })
    const job = await finished(admin, later.headers.get('content-location'))
    t.equal(job.status, 'error', code)
    const statuses = await eventually(async () => {
      const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
      const runs: Untyped[] = body.parameter ?? []
      return runs.length < 2 ? undefined : runs.map(({ part }) => part[1].valueCode)
    })
    t.same(statuses, ['result', 'result'])
  }
})

t.test('rejects a zero limit on every path', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const { body } = await admin.get<Untyped>(`Bot/${id}`)
  const memory = `${botica.baseUrl}fhir/StructureDefinition/bot-memoryMb`
  const wrong: readonly [fields: object, expression: string][] = [
    [{ timeout: 0 }, 'Bot.timeout'],
    [{ timeout: -5 }, 'Bot.timeout'],
    [
      {
        extension: [
          { url: 'urn:x', valueCode: 'x' },
          { url: memory, valueInteger: 0 },
        ],
      },
      'Bot.extension[1]',
    ],
    [{ extension: [{ url: memory, valueString: '64' }] }, 'Bot.extension[0]'],
  ]
  const { id: _, ...unnamed } = body
  for (const [fields, expression] of wrong) {
    const refused = {
      status: 400,
      body: { issue: [{ code: 'invalid', expression: [expression] }] },
    }
    t.match(await admin.put(`Bot/${id}`, { ...body, ...fields }), refused)
    t.match(await admin.post('Bot', { ...unnamed, ...fields }), refused)
  }
  const patch = [{ op: 'add', path: '/timeout', value: 0 }]
  t.equal((await admin.patch(`Bot/${id}`, patch)).status, 400)
  t.equal((await admin.put(`Bot/${id}`, { ...body, timeout: 100_000 })).status, 200, 'is capped')
  t.equal((await execute(admin, id)).text, '1')
})
