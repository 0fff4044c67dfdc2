import t from 'tap'
import {
  aRun,
  failureText,
  handler,
  limits,
  openTestExecutors,
  run,
} from '../../../fixtures/bots/runs.ts'

const executors = await openTestExecutors(t)

async function aShortBot(code: string, parts: Parameters<typeof aRun>[1] = {}) {
  const bot = aRun(code, { inputKind: 'text', ...parts })
  for (let i = 0; i < 60; i++) {
    const { status } = await run(executors, { ...bot, input: 'short' })
    if (status !== 'ok') throw new Error('A short run failed')
  }
  return (input: string, more: object = {}) => run(executors, { ...bot, input, ...more })
}

t.test('short runs answer, fail, log and wait like long ones', async (t) => {
  const ask = await aShortBot(
    handler(`
      console.log('got', event.input)
      if (event.input === 'throw') throw new Error('no such thing')
      if (event.input === 'wait') await new Promise((end) => setTimeout(end, 20))
      if (event.input === 'call') return (await medplum.readResource('Patient', '1')).id
      return event.input
    `),
  )
  t.match(await ask('short'), { status: 'ok', kind: 'string', body: 'short', log: /got short/ })
  t.equal(failureText(await ask('throw')), 'no such thing')
  t.match(await ask('wait'), { status: 'ok', body: 'wait', log: /got wait/ })
  const many = await Promise.all(Array.from({ length: 50 }, (_, i) => ask(`${i}`)))
  t.same(
    many.map(({ body }) => body),
    Array.from({ length: 50 }, (_, i) => `${i}`),
  )
})

t.test('gives a run that turns out longer its full time, before and after a pause', async (t) => {
  const busy = 'const end = Date.now() + 150; while (Date.now() < end);'
  const ask = await aShortBot(
    handler(`
      if (event.input === 'at once') { ${busy} }
      if (event.input === 'later') { await null; ${busy} }
      console.log('once')
      return event.input
    `),
  )
  for (const input of ['at once', 'later']) {
    const { status, body, log } = await ask(input)
    t.match({ status, body }, { status: 'ok', body: input })
    t.equal(log.match(/once$/gm)?.length, 1, 'logs each line once')
  }
  t.match(await ask('short'), { status: 'ok', body: 'short' })
})

t.test('repeats no worker call of a run that exceeded the short time', async (t) => {
  const asked: string[] = []
  const bot = aRun(
    handler(`
      if (event.input === 'long') {
        const patient = medplum.createResource({ resourceType: 'Patient' })
        const end = Date.now() + 150
        while (Date.now() < end);
        await patient
      }
      return event.input
    `),
    { inputKind: 'text' },
  )
  const host = async ({ kind, payload }: { kind: string; payload: string }) => {
    asked.push(`${kind} ${JSON.parse(payload).method}`)
    return JSON.stringify({ status: 201, headers: {}, body: '{"resourceType":"Patient","id":"1"}' })
  }
  const ask = (input: string) => run(executors, { ...bot, input }, host)
  for (let i = 0; i < 60; i++) await ask('short')
  t.match(await ask('long'), { status: 'ok', body: 'long' })
  t.same(asked, ['fhir POST'])
})

t.test('restarts a run that takes too long unless it had an effect', async (t) => {
  const asked: string[] = []
  const bot = aRun(
    handler(`
      const first = medplum.readResource('Patient', '1')
      const isLong = event.input.startsWith('long')
      const write = () => medplum.createResource({ resourceType: 'Basic' })
      if (event.input === 'long, behind a pause and a write') await write()
      if (event.input.includes('pause')) await new Promise((end) => setTimeout(end, 5))
      if (event.input === 'long, during a write') write()
      await first
      if (event.input === 'long, behind a write') await write()
      for (const end = Date.now() + (isLong ? 150 : 0); Date.now() < end; );
      return event.input
    `),
    { inputKind: 'text' },
  )
  const host = async ({ payload }: { payload: string }) => {
    asked.push(JSON.parse(payload).method)
    return JSON.stringify({
      status: 200,
      headers: {},
      body: '{"resourceType":"Patient","id":"1"}',
    })
  }
  for (const [input, writes] of [
    ['long', 0],
    ['long, behind a pause', 0],
    ['long, behind a pause and a write', 1],
    ['long, during a write', 1],
    ['long, behind a write', 1],
  ] as const) {
    const ask = (text: string) => run(executors, { ...bot, input: text }, host)
    for (let i = 0; i < 200; i++) await ask('short')
    asked.length = 0
    t.match(await ask(input), { status: 'ok', body: input })
    t.equal(asked.filter((method) => method === 'POST').length, writes, input)
  }
})

t.test('ends hostile short runs as other hostile runs', async (t) => {
  const ask = await aShortBot(
    handler(`
      if (event.input === 'spin') for (;;);
      if (event.input === 'spin later') { await null; for (;;); }
      if (event.input === 'spin on a timer') {
        await new Promise((end) => setTimeout(end, 1))
        for (;;);
      }
      if (event.input === 'spin on an answer') {
        await medplum.readResource('Patient', '1').catch(() => {})
        for (;;);
      }
      if (event.input === 'promises') { const next = () => Promise.resolve().then(next); await next() }
      if (event.input === 'fill') { const all = []; for (;;) all.push(new Array(1000).fill(1.5)) }
      if (event.input === 'deep') { const down = () => down(); down() }
      return event.input
    `),
    { limits: { ...limits, memoryMb: 16 } },
  )
  const short = { limits: { ...limits, memoryMb: 16, wallMs: 500 } }
  for (const input of ['spin', 'spin later', 'spin on an answer', 'spin on a timer', 'promises']) {
    t.ok(['memory', 'timeout'].includes(String((await ask(input, short)).failure)), input)
    // Short runs again, so that the next hostile one starts the same way.
    for (let i = 0; i < 200; i++) await ask('short')
  }
  t.match(failureText(await ask('deep')), /call stack/)
  t.ok(['memory', 'timeout'].includes(String((await ask('fill')).failure)), 'limits memory')
  t.match(await ask('short'), { status: 'ok', body: 'short' })
})
