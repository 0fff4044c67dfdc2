import { createServer, type RequestListener } from 'node:http'
import { createGzip } from 'node:zlib'
import t, { type Test } from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../../fixtures/bots/bots.ts'
import { listen } from '../../../fixtures/http/listening.ts'
import { openSdk } from '../../../fixtures/sdk.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { BOT_RESULT_MAX_BYTES: '40000000', BOT_FETCH: 'all', EXECUTE_WAIT_MS: '1500' },
})
const { admin } = botica
/** Waits beyond the service's limit of an answer, which a busy machine may need. */
/** For answers that a busy machine gives later than after EXECUTE_WAIT_MS. */
const PATIENT = { Prefer: 'wait=100' }
const EVENTS = { Accept: 'text/event-stream', ...PATIENT }
const fields = { streamingEnabled: true }

interface Streamed {
  readonly response: Response
  /** Reads the next text; undefined at the end. */
  next(): Promise<string | undefined>
  rest(): Promise<string>
  leave(): void
}

/** Calls a bot as a client that reads the answer piece by piece. */
async function stream(
  botId: string,
  input: unknown = {},
  headers: Record<string, string> = EVENTS,
): Promise<Streamed> {
  const controller = new AbortController()
  const response = await fetch(new URL(`fhir/R4/Bot/${botId}/$execute`, botica.baseUrl), {
    method: 'POST',
    body: JSON.stringify(input),
    headers: {
      Authorization: `Bearer ${admin.token}`,
      'Content-Type': 'application/json',
      ...headers,
    },
    signal: controller.signal,
  })
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader()
  const next = async () => (await reader?.read())?.value
  return {
    response,
    next,
    async rest() {
      let text = ''
      for (let part = await next(); part !== undefined; part = await next()) text += part
      return text
    },
    leave: () => controller.abort(),
  }
}

/** Returns the record of a run when it has ended. */
function readRecord(botId: string, { response }: Pick<Streamed, 'response'>): Promise<Untyped> {
  const runId = response.headers.get('x-bot-run-id')
  return eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${botId}/$runs?runId=${runId}`)
    const [run] = body.parameter ?? []
    return run && Object.fromEntries(run.part.map((part: Untyped) => [part.name, valueIn(part)]))
  })
}

function valueIn(part: Untyped): unknown {
  const [name] = Object.keys(part).filter((key) => key.startsWith('value'))
  return part[name ?? '']
}

t.test('sends the parts of an answer while the run goes on', async (t) => {
  const id = await aBot(
    botica,
    handler(`const { responseStream: out } = event
      out.startStreaming(201, { 'Content-Type': 'text/event-stream', Connection: 'keep-alive', 'Cache-Control': 'no-cache' })
      for (const gate of ['a', 'b']) {
        await out.write('data: ' + gate + '\\n\\n')
        while ((await medplum.searchResources('Basic', 'code=urn:gate|' + gate)).length === 0) {
          await new Promise((resolve) => setTimeout(resolve, 20))
        }
      }
      out.write(new TextEncoder().encode('data: 😀\\n\\n'))
      out.end()
      return 'ignored'`),
    { fields },
  )
  const answer = await stream(id)
  const { status, headers } = answer.response
  t.equal(status, 201)
  t.match(headers.get('content-type'), /^text\/event-stream/)
  t.equal(headers.get('cache-control'), 'no-cache')
  t.ok(headers.get('x-bot-run-id'))
  const open = (code: string) =>
    admin.create({ resourceType: 'Basic', code: { coding: [{ system: 'urn:gate', code }] } })
  t.equal(await answer.next(), 'data: a\n\n', 'before the bot continues')
  await open('a')
  t.equal(await answer.next(), 'data: b\n\n')
  await open('b')
  t.equal(await answer.rest(), 'data: 😀\n\n')
  t.match(await readRecord(id, answer), { status: 'ok', streamedStatus: 201, streamedBytes: 30 })
})

t.test('answers as a whole unless bot and caller both want a stream', async (t) => {
  const code = handler('return { streams: event.responseStream !== undefined }')
  const plain = await aBot(botica, code)
  const enabled = await aBot(botica, code, { fields })
  const of = async (id: string, headers: Record<string, string>) =>
    (await execute(admin, id, {}, headers)).body
  t.same(await of(plain, EVENTS), { streams: false })
  t.same(await of(enabled, PATIENT), { streams: false })
  t.same(await of(enabled, { ...EVENTS, 'Idempotency-Key': 'k1' }), { streams: false })
  t.same(await of(enabled, EVENTS), { streams: true }, 'a bot need not stream')
})

t.test('rejects headers and statuses that a bot may not set', async (t) => {
  const id = await aBot(
    botica,
    handler(`const { status, headers } = event.input
      event.responseStream.startStreaming(status, headers)
      await event.responseStream.write('x')`),
    { fields },
  )
  const cases: readonly [status: unknown, headers: Record<string, string>, text: RegExp][] = [
    [200, { 'Set-Cookie': 'a=b' }, /may not set the header set-cookie/],
    [200, { 'Access-Control-Allow-Origin': '*' }, /may not set the header access-control/],
    [200, { 'Content-Language': 'a\r\nSet-Cookie: a=b' }, /content-language has an invalid value/],
    [204, {}, /cannot be streamed with status 204/],
    [101, {}, /cannot be streamed with status 101/],
    ['200 OK', {}, /cannot be streamed with status 200 OK/],
  ]
  for (const [status, headers, text] of cases) {
    const answer = await execute(admin, id, { status, headers }, EVENTS)
    t.equal(answer.status, 400)
    t.match(answer.body.issue[0].details.text, text)
  }
})

t.test('fails a run that writes before it has started the answer', async (t) => {
  const id = await aBot(botica, handler(`await event.responseStream.write('x')`), { fields })
  const answer = await execute(admin, id, {}, EVENTS)
  t.equal(answer.status, 400)
  t.match(answer.body.issue[0].details.text, /startStreaming before write/)
})

t.test('cuts an answer whose bot fails, after its last part', async (t) => {
  const id = await aBot(
    botica,
    handler(`event.responseStream.startStreaming(200, {})
      await event.responseStream.write('half')
      throw new Error('model is gone')`),
    { fields },
  )
  const answer = await stream(id)
  t.equal(await answer.next(), 'half')
  await t.rejects(answer.next(), 'the answer is not complete')
  t.match(await readRecord(id, answer), {
    status: 'thrown',
    error: 'model is gone',
    streamedBytes: 4,
  })
})

t.test('cuts an answer at the limits of bytes and time', async (t) => {
  const code = handler(`const { responseStream: out, input } = event
    out.startStreaming(200, { 'Content-Type': 'text/plain' })
    await out.write('x')
    if (input.bytes) for (let n = 0; n < input.bytes; n += 1_000_000) await out.write('x'.repeat(1_000_000))
    else await new Promise(() => {})`)
  const large = await aBot(botica, code, { fields: { ...fields, timeout: 100 } })
  const long = await stream(large, { bytes: 50_000_000 })
  await t.rejects(long.rest())
  t.match(await readRecord(large, long), { status: 'thrown', error: 'A run may stream 38.15 MB' })
  const id = await aBot(botica, code, { fields: { ...fields, timeout: 2 } })
  const late = await stream(id, {})
  await t.rejects(late.rest())
  t.match(await readRecord(id, late), { status: 'timeout', streamedBytes: 1 })
})

t.test('streams for longer than callers wait for a whole answer', async (t) => {
  const id = await aBot(
    botica,
    handler(`event.responseStream.startStreaming(200, {})
      await event.responseStream.write('a')
      await new Promise((resolve) => setTimeout(resolve, 4000))
      await event.responseStream.write('b')`),
    { fields },
  )
  const answer = await stream(id)
  t.equal(await answer.rest(), 'ab')
  t.match(await readRecord(id, answer), { status: 'ok' })
  const jobs = await admin.get<Untyped>(`job/${answer.response.headers.get('x-bot-run-id')}/status`)
  t.equal(jobs.status, 404, 'no AsyncJob')
})

t.test('gives a status URL when the answer does not begin in time', async (t) => {
  const id = await aBot(
    botica,
    handler(`await new Promise((resolve) => setTimeout(resolve, 3000))
      event.responseStream.startStreaming(200, {})
      await event.responseStream.write('a').catch(({ message }) => console.log(message))
      return 'late'`),
    { fields },
  )
  const answer = await execute(admin, id, {}, { Accept: EVENTS.Accept })
  t.equal(answer.status, 202)
  t.match(await readRecord(id, { response: new Response('', { headers: answer.headers }) }), {
    log: /The caller has gone/,
  })
})

t.test('pauses the bot while its caller does not read', async (t) => {
  const id = await aBot(
    botica,
    handler(`const { responseStream: out } = event
      out.startStreaming(200, { 'Content-Type': 'text/plain' })
      const tell = () => medplum.createResource({ resourceType: 'Basic', code: { text: event.runId } })
      for (let n = 0; n < 150; n++) {
        const timer = setTimeout(tell, 500)
        await out.write('x'.repeat(200_000))
        clearTimeout(timer)
      }`),
    { fields: { ...fields, timeout: 100 } },
  )
  const answer = await stream(id)
  const runId = answer.response.headers.get('x-bot-run-id')
  await eventually(async () => {
    const { body } = await admin.get<Untyped>('Basic?_count=1000')
    return body.entry?.find((entry: Untyped) => entry.resource.code?.text === runId)
  })
  t.equal((await answer.rest()).length, 30_000_000, 'nothing is lost')
  t.match(await readRecord(id, answer), { status: 'ok', streamedBytes: 30_000_000 })
})

t.test('cancels the run when its caller disconnects', async (t) => {
  const id = await aBot(
    botica,
    handler(`event.responseStream.startStreaming(200, {})
      for (;;) {
        await event.responseStream.write('x')
        await new Promise((resolve) => setTimeout(resolve, 20))
      }`),
    { fields: { ...fields, timeout: 100 } },
  )
  const answer = await stream(id)
  t.ok(await answer.next())
  answer.leave()
  t.match(await readRecord(id, answer), { status: 'cancelled' })
})

/** Starts a service outside that answers GETs with `serve`; returns its address. */
async function openService(t: Test, serve: RequestListener): Promise<string> {
  return `http://127.0.0.1:${await listen(t, createServer(serve))}/`
}

t.test('passes the stream of another service through', async (t) => {
  const gate = Promise.withResolvers<void>()
  const url = await openService(t, async (_req, res) => {
    res.writeHead(200, { 'Content-Type': 'text/event-stream' })
    const bytes = Buffer.from('data: gr😀')
    res.write(bytes.subarray(0, -2))
    await gate.promise
    res.end(Buffer.concat([bytes.subarray(-2), Buffer.from('n\n\n')]))
  })
  const id = await aBot(
    botica,
    handler(`const answer = await fetch(event.input.url)
      event.responseStream.startStreaming(answer.status, { 'Content-Type': answer.headers.get('content-type') })
      const reader = answer.body.getReader()
      for (;;) {
        const { done, value } = await reader.read()
        if (done) return
        await event.responseStream.write(value)
      }`),
    { fields },
  )
  const answer = await stream(id, { url })
  t.equal(await answer.next(), 'data: gr')
  gate.resolve()
  t.equal(await answer.rest(), '😀n\n\n')
})

t.test('reads a slow body whole, in parts and by half', async (t) => {
  const gate = Promise.withResolvers<void>()
  const left = Promise.withResolvers<void>()
  const url = await openService(t, async ({ url }, res) => {
    const zip = createGzip()
    res.writeHead(200, { 'Content-Encoding': 'gzip' })
    zip.pipe(res)
    zip.write('{"a":')
    zip.flush()
    if (url === '/endless') res.once('close', left.resolve)
    else {
      await gate.promise
      zip.end('"é"}')
    }
  })
  const id = await aBot(
    botica,
    handler(`const { url } = event.input
      const answers = await Promise.all([fetch(url), fetch(url), fetch(url), fetch(url + 'endless')])
      const half = answers[3].body.getReader()
      const first = new TextDecoder().decode((await half.read()).value)
      await half.cancel()
      await medplum.createResource({ resourceType: 'Basic', code: { text: 'read ' + url } })
      const parts = []
      for await (const part of answers[0].body.pipeThrough(new TextDecoderStream())) parts.push(part)
      const copy = answers[1].clone()
      const whole = [await answers[1].json(), await copy.text(), await answers[2].text()]
      const used = await answers[2].text().catch(({ message }) => message)
      return { first, parts, whole, used }`),
  )
  const running = execute(admin, id, { url }, PATIENT)
  await left.promise
  await eventually(async () => {
    const { body } = await admin.get<Untyped>('Basic?_count=1000')
    return body.entry?.find((entry: Untyped) => entry.resource.code?.text === `read ${url}`)
  })
  gate.resolve()
  t.match((await running).body, {
    first: '{"a":',
    parts: ['{"a":', '"é"}'],
    whole: [{ a: 'é' }, '{"a":"é"}', '{"a":"é"}'],
    used: /already been read/,
  })
})

t.test('streams the answer to an input of a megabyte', async (t) => {
  const id = await aBot(
    botica,
    handler(`event.responseStream.startStreaming(200, {})
      event.responseStream.end(String(event.input.length))`),
    { fields },
  )
  t.equal(await (await stream(id, 'x'.repeat(1_000_000))).rest(), '1000000')
})

t.test("gives the official SDK's caller the streamed text", async (t) => {
  const id = await aBot(
    botica,
    handler(`event.responseStream.startStreaming(200, { 'Content-Type': 'text/event-stream' })
      await event.responseStream.write('data: 1\\n\\n')
      await event.responseStream.end('data: 2\\n\\n')`),
    { fields },
  )
  const sdk = await openSdk(botica)
  const text = await sdk.executeBot(id, {}, 'application/json', { headers: EVENTS })
  t.equal(text, 'data: 1\n\ndata: 2\n\n')
})
