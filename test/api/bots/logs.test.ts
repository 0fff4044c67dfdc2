/** Imports `listen` to stop web within the test. */
import t from 'tap'
import { listen } from '../../../server/listen.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Client } from '../../fixtures/client.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica
/** Enough for a request on a busy machine. */
const DRAIN_MS = 5000

interface Heard {
  readonly type: string
  readonly data: Untyped
}

interface Listener {
  readonly heard: readonly Heard[]
  wait(fits: (event: Heard) => boolean): Promise<Heard>
  /** Resolves at the end of the stream; rejects when it is cut off. */
  readonly over: Promise<void>
  close(): void
}

async function follow(
  client: Client,
  id: string,
  baseUrl = botica.baseUrl,
  more: Readonly<Record<string, string>> = {},
): Promise<Listener> {
  const controller = new AbortController()
  const response = await fetch(new URL(`fhir/R4/Bot/${id}/$logs`, baseUrl), {
    headers: { Authorization: `Bearer ${client.token}`, Accept: 'text/event-stream', ...more },
    signal: controller.signal,
  })
  if (response.status !== 200) throw new Error(`$logs answered ${response.status}`)
  const heard: Heard[] = []
  const start = Promise.withResolvers<void>()
  const read = async () => {
    let text = ''
    for await (const chunk of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
      const parts = (text + chunk).split('\n\n')
      text = parts.pop() ?? ''
      start.resolve()
      for (const part of parts) {
        const [, type, data] = /^event: (\w+)\ndata: (.*)$/.exec(part) ?? []
        if (type !== undefined) heard.push({ type, data: JSON.parse(data ?? '') })
      }
    }
  }
  const over = read()
  over.catch(() => undefined)
  t.teardown(() => controller.abort())
  await start.promise
  return {
    heard,
    over,
    wait: (fits) => eventually(async () => heard.find(fits)),
    close: () => controller.abort(),
  }
}

const isEnd = ({ type }: Heard) => type === 'end'
const joinLog = ({ heard }: Listener) =>
  heard.flatMap(({ type, data }) => (type === 'log' ? data.text : [])).join('')

t.test('streams lines during the run, then its result', async (t) => {
  const id = await aBot(
    botica,
    handler(`
      console.log('first')
      while ((await medplum.search('Patient', { identifier: event.input.go })).entry === undefined) {
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
      console.warn('second')`),
    { fields: { timeout: 60 } },
  )
  const listener = await follow(admin, id)
  const running = execute(admin, id, { go: 's|go' })
  await listener.wait(({ type, data }) => type === 'log' && data.text.includes('first'))
  t.notOk(listener.heard.some(isEnd))
  await admin.post('Patient', {
    resourceType: 'Patient',
    identifier: [{ system: 's', value: 'go' }],
  })
  const answer = await running
  await listener.wait(isEnd)
  const runId = answer.headers.get('x-bot-run-id')
  t.match(listener.heard[0], {
    type: 'start',
    data: {
      runId,
      attempt: 1,
      requester: `ClientApplication/${botica.adminCredentials.id}`,
      started: /Z$/,
    },
  })
  t.match(listener.heard.at(-1)?.data, { runId, status: 'ok', durationMs: Number, cpuMs: Number })
  t.match(joinLog(listener), /^\S+Z INFO first\n\S+Z WARN second\n$/)
})

t.test('streams short runs, failures and long logs completely', async (t) => {
  const id = await aBot(
    botica,
    handler(`for (let i = 0; i < event.input.lines; i++) console.log('line', i)
      if (event.input.fail) throw new Error('no bed left')`),
  )
  const listener = await follow(admin, id)
  await execute(admin, id, { lines: 3 })
  await execute(admin, id, { lines: 1, fail: true })
  await eventually(async () => (listener.heard.filter(isEnd).length === 2 ? true : undefined))
  const types = listener.heard.map(({ type }) => type)
  t.same(
    types.filter((type, at) => type !== 'log' || types[at - 1] !== 'log'),
    ['start', 'log', 'end', 'start', 'log', 'end'],
  )
  t.match(joinLog(listener), /line 0\n.*line 1\n.*line 2\n.*line 0\n.*ERROR Error: no bed left/)
  t.equal(listener.heard.at(-1)?.data.status, 'thrown')
})

t.test('masks secrets', async (t) => {
  const other = await botica.createTenant()
  const secret = [{ name: 'KEY', valueString: 'very-secret-value' }]
  const current = await botica.superAdmin.get<Untyped>(`Project/${other.project.id}`)
  await botica.superAdmin.put(`Project/${other.project.id}`, { ...current.body, secret })
  const id = await aBot(other, handler('console.log("key", event.secrets.KEY?.valueString)'))
  const listener = await follow(other.admin, id)
  await eventually(async () => {
    await execute(other.admin, id)
    return joinLog(listener).includes('key ***') ? true : undefined
  })
  t.notMatch(JSON.stringify(listener.heard), /very-secret/)
})

t.test('streams only to admins of the Project, and only its own runs', async (t) => {
  const id = await aBot(botica, handler('console.log(event.input.who)'), {
    fields: { runAsUser: true },
  })
  const member = await botica.createMember()
  const other = await botica.createTenant()
  t.equal((await member.client.get(`Bot/${id}/$logs`)).status, 403)
  t.equal((await other.admin.get(`Bot/${id}/$logs`)).status, 404)
  t.equal((await botica.anonymous.get(`Bot/${id}/$logs`)).status, 401)
  const batch = await admin.post<Untyped>('', {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'GET', url: `Bot/${id}/$logs` } }],
  })
  t.match(batch.body.entry[0].response.status, /^400/)
  const asBot = await aBot(botica, handler(`return await medplum.get('fhir/R4/Bot/${id}/$logs')`))
  t.equal((await execute(admin, asBot)).status, 400)

  const current = await botica.superAdmin.get<Untyped>(`Project/${other.project.id}`)
  await botica.superAdmin.put(`Project/${other.project.id}`, {
    ...current.body,
    link: [{ project: { reference: `Project/${botica.project.id}` } }],
  })
  const listener = await follow(admin, id)
  await eventually(async () =>
    (await execute(other.admin, id, { who: 'theirs' })).status === 200 ? true : undefined,
  )
  await execute(admin, id, { who: 'ours' })
  await listener.wait(isEnd)
  t.match(joinLog(listener), /^\S+ INFO ours\n$/)
})

t.test('ends the stream of a listener that loses access', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const member = await botica.createMember()
  const found = await admin.get<Untyped>(`ProjectMembership?profile=ClientApplication/${member.id}`)
  const membership = found.body.entry[0].resource
  const url = `ProjectMembership/${membership.id}`
  await botica.superAdmin.put(url, { ...membership, admin: true })
  const listener = await eventually(() => follow(member.client, id).catch(() => undefined))
  const acting = { 'X-Medplum-On-Behalf-Of': `ClientApplication/${member.id}` }
  const represented = await follow(admin, id, botica.baseUrl, acting)
  await botica.superAdmin.put(url, { ...membership, admin: false })
  for (const { over, heard } of [listener, represented]) {
    await over
    t.same(heard, [{ type: 'close', data: { reason: 'revoked' } }])
  }
})

t.test('ends streams cleanly on web shutdown', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const web = await listen(botica.services, 0)
  const listener = await follow(admin, id, `http://127.0.0.1:${web.port}/`)
  const startedAt = Date.now()
  await web.stop(300_000)
  await listener.over
  t.ok(Date.now() - startedAt < 150_000, 'long before the forced close')
})

t.test('ends a stream that begins while web shuts down', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const web = await listen(botica.services, 0)
  const stopping = web.stop(60_000, DRAIN_MS)
  const listener = await follow(admin, id, `http://127.0.0.1:${web.port}/`)
  await stopping
  await t.resolves(listener.over)
})
