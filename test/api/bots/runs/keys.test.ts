import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../../fixtures/bots/bots.ts'

const botica = await openBotica(t, { worker: 'process' })
await botica.startWorker()
const { admin } = botica
const LATER = { Prefer: 'respond-async' }

function extension(name: string, value: object): object {
  return { url: `urn:botica:bot-${name}`, ...value }
}

/** The bot records the begin and end of each run in a resource. */
const TELL = handler(`const { key, number } = event.input
  const begun = Date.now()
  await new Promise((resolve) => setTimeout(resolve, 5 + (number % 3) * 10))
  await medplum.createResource({ resourceType: 'Basic', code: { text: 'told' },
    identifier: [{ system: 'urn:told:' + event.bot.reference, value: JSON.stringify({ key, number, begun, ended: Date.now() }) }] })`)

interface Told {
  readonly key: string
  readonly number: number
  readonly begun: number
  readonly ended: number
}

function told(bot: string, count: number): Promise<readonly Told[]> {
  return eventually(async () => {
    const { body } = await admin.get<Untyped>(`Basic?identifier=urn:told:Bot/${bot}|&_count=1000`)
    const entries: readonly Untyped[] = body.entry ?? []
    return entries.length === count
      ? entries.map(({ resource }) => JSON.parse(resource.identifier[0].value))
      : undefined
  })
}

t.test('runs those of one key one at a time, in the order of arrival', async (t) => {
  const fields = { extension: [extension('concurrencyKey', { valueString: 'key' })] }
  const id = await aBot(botica, TELL, { fields })
  const KEYS = 10
  const EACH = 20
  for (let number = 0; number < EACH; number++) {
    const calls = Array.from({ length: KEYS }, (_, key) =>
      execute(admin, id, { key: `k${key}`, number }, LATER),
    )
    for (const { status } of await Promise.all(calls)) t.equal(status, 202)
  }
  const all = await told(id, KEYS * EACH)
  for (const [key, runs] of Map.groupBy(all, (one) => one.key)) {
    const inTime = runs.toSorted((a, b) => a.begun - b.begun)
    t.same(
      inTime.map(({ number }) => number),
      Array.from({ length: EACH }, (_, number) => number),
      `${key} in order`,
    )
    const overlaps = inTime.filter(({ begun }, index) => begun < (inTime[index - 1]?.ended ?? 0))
    t.same(overlaps, [], `${key} without overlaps`)
  }
})

t.test('takes the key from a header or an HL7 field', async (t) => {
  const code = handler(`const began = Date.now()
    await new Promise((resolve) => setTimeout(resolve, 300))
    return { began, ended: Date.now() }`)
  const pairs: readonly [key: string, body: string, type: string, headers: object][] = [
    ['header:X-Patient', '{}', 'application/json', { 'X-Patient': '7' }],
    ['hl7:PID-3.1', 'MSH|^~\\&|A\rPID|1||42^^^H', 'x-application/hl7-v2+er7', {}],
  ]
  for (const [key, body, type, headers] of pairs) {
    const fields = { extension: [extension('concurrencyKey', { valueString: key })] }
    const id = await aBot(botica, code, { fields })
    const call = () =>
      admin.post<Untyped>(`Bot/${id}/$execute`, body, { 'Content-Type': type, ...headers })
    const [first, second] = (await Promise.all([call(), call()])).map((answer) => answer.body)
    const [early, late] = first.began < second.began ? [first, second] : [second, first]
    t.ok(late.began >= early.ended, key)
  }
})

t.test(
  'runs without a key when the header of the key is missing, also for names of members',
  async (t) => {
    for (const name of ['X-Patient', 'constructor', '__proto__', 'toString']) {
      const fields = { extension: [extension('concurrencyKey', { valueString: `header:${name}` })] }
      const id = await aBot(botica, handler('return event.input'), { fields })
      t.same((await execute(admin, id, { a: 1 })).body, { a: 1 }, name)
    }
  },
)

t.test('continues after a waiting run was cancelled', async (t) => {
  const fields = { extension: [extension('concurrencyKey', { valueString: 'key' })] }
  const id = await aBot(botica, TELL, { fields })
  const answers = []
  for (let number = 0; number < 4; number++) {
    answers.push(await execute(admin, id, { key: 'a', number }, LATER))
  }
  await admin.del(answers[2]?.headers.get('content-location') ?? '')
  const rest = await told(id, 3)
  t.same(rest.map(({ number }) => number).sort(), [0, 1, 3])
})

t.test('spreads runs by the rate of their bot', async (t) => {
  const fields = { extension: [extension('rate', { valueString: '10/s' })] }
  const id = await aBot(botica, TELL, { fields })
  const sent = Date.now()
  const numbers = Array.from({ length: 12 }, (_, number) => number)
  await Promise.all(numbers.map((number) => execute(admin, id, { number }, LATER)))
  const begun = (await told(id, 12)).map((one) => one.begun).sort()
  // A start that comes late may be made up for within a tenth of a second.
  t.ok((begun.at(-1) ?? 0) - sent >= 1000, 'twelve runs take a second')
})

t.test('rejects runs beyond the queue of the rate', async (t) => {
  const limits = [
    extension('rate', { valueString: '1/min' }),
    extension('rateQueue', { valueInteger: 2 }),
  ]
  const id = await aBot(botica, TELL, { fields: { extension: limits } })
  t.equal((await execute(admin, id, { number: 0 })).status, 200)
  const waiting = [
    await execute(admin, id, { number: 1 }, LATER),
    await execute(admin, id, { number: 2 }, LATER),
  ]
  for (const { status } of waiting) t.equal(status, 202)
  const rejected = await execute(admin, id, { number: 3 }, LATER)
  t.equal(rejected.status, 429)
  t.equal(rejected.headers.get('retry-after'), '60')

  const url = waiting[0]?.headers.get('content-location') ?? ''
  t.equal((await admin.del(url)).status, 202)
  const next = await execute(admin, id, { number: 4 }, LATER)
  t.equal(next.status, 202, 'a cancelled run makes room')
  const last = [...waiting.slice(1), next].map((one) => one.headers.get('content-location') ?? '')
  for (const one of last) await admin.del(one)
})

t.test('shows the reason of a wait in runs and stats', async (t) => {
  const fields = { extension: [extension('concurrencyKey', { valueString: 'key' })] }
  const code = handler('await new Promise((resolve) => setTimeout(resolve, 200))')
  const id = await aBot(botica, code, { fields })
  await Promise.all([1, 2].map(() => execute(admin, id, { key: 'a' })))
  const runs = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    return body.parameter?.length === 2 ? body.parameter : undefined
  })
  const [last, first] = runs.map(({ part }: Untyped) =>
    Object.fromEntries(
      part.map(({ name, ...value }: Untyped) => [name, Object.values(value)[0]] as const),
    ),
  )
  t.equal(last.waitedFor, 'key')
  t.ok(last.waitedMs > 0)
  t.match(last.key, /^[\w-]{22}$/)
  t.equal(last.key, first.key)
  const { project } = botica
  const held = await eventually(async () => {
    const { body } = await admin.get<Untyped>(`/admin/projects/${project.id}/bots/stats`)
    const mine = body.bots?.find(({ bot }: Untyped) => bot.reference === `Bot/${id}`)
    return mine?.held.key
  })
  t.match(held, { count: 1 })
})

t.test('rejects keys and rates that cannot be read', async (t) => {
  const id = await aBot(botica, TELL)
  const { body } = await admin.get<Untyped>(`Bot/${id}`)
  for (const wrong of [
    extension('concurrencyKey', { valueString: 'a(' }),
    extension('concurrencyKey', { valueInteger: 1 }),
    extension('keyConcurrency', { valueInteger: 0 }),
    extension('keyConcurrency', { valueInteger: 2 }),
    extension('rateQueue', { valueInteger: 2 }),
    extension('rate', { valueString: '0/s' }),
    extension('rate', { valueString: '5 per day' }),
    extension('rateQueue', { valueInteger: 0 }),
    extension('debounce', { valueInteger: 0 }),
    extension('debounce', { valueString: '5' }),
    extension('debounce', { valueInteger: 4000 }),
  ]) {
    const answer = await admin.put<Untyped>(`Bot/${id}`, { ...body, extension: [wrong] })
    t.equal(answer.status, 400, JSON.stringify(wrong))
    t.match(answer.body.issue[0].expression?.[0], /^Bot\.extension\[0\]/)
  }
})
