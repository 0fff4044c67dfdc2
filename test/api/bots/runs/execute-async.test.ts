import { randomUUID } from 'node:crypto'
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
import { AT_GATE, aGate } from '../../../fixtures/bots/gates.ts'

const botica = await openBotica(t, { env: { QUEUE_BACKLOG_MAX: '20', EXECUTE_WAIT_MS: '110000' } })
const { admin } = botica
const later = { Prefer: 'respond-async' }
const PATIENCE_MS = 60_000
const patient = { fields: { timeout: 300 } }
const waiting = handler(`${AT_GATE}
  return 'attempt ' + event.attempt`)

t.test('queues runs without a worker and returns a status URL', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const late = await execute(admin, id, {}, { Prefer: 'wait=1' })
  const accepted = await execute(admin, id, {}, later)
  t.equal(late.status, 202)
  t.equal(accepted.status, 202)
  await botica.startWorker()
  for (const { headers } of [late, accepted]) {
    const job = await finished(admin, headers.get('content-location'))
    t.equal(job.status, 'completed')
  }
})

t.test('rejects calls after a minute without a worker if they cannot be stored', async (t) => {
  const strict = await openBotica(t, { env: { EXECUTE_DEADLINE: 'fail' } })
  const id = await aBot(strict, handler('return 1'))
  const refused = await execute(strict.admin, id)
  t.equal(refused.status, 503)
  t.ok(Number(refused.headers.get('retry-after')) > 0)
  t.equal(refused.body.issue[0].code, 'transient')
})

t.test('returns a status URL for respond-async, and the result at it', async (t) => {
  const id = await aBot(botica, waiting, patient)
  const { gate, open } = aGate(admin)
  const accepted = await execute(admin, id, { gate }, later)
  t.equal(accepted.status, 202)
  const url = String(accepted.headers.get('content-location'))
  const runId = accepted.headers.get('x-bot-run-id')
  t.equal(url, `${botica.baseUrl}fhir/R4/job/${runId}/status`)
  t.equal(accepted.headers.get('retry-after'), '1')
  t.equal(accepted.headers.get('preference-applied'), 'respond-async')
  t.match(accepted.body, { id: 'accepted', issue: [{ diagnostics: url }] })
  const running = await admin.get(url)
  t.equal(running.status, 202)
  t.equal(running.headers.get('content-location'), url)
  t.equal((await admin.get(url.replace('/status', '/result'))).status, 409)
  await open()
  const job = await finished(admin, url)
  t.match(job, {
    resourceType: 'AsyncJob',
    status: 'completed',
    request: `${botica.baseUrl}fhir/R4/Bot/${id}/$execute`,
    output: {
      resourceType: 'Parameters',
      parameter: [
        { name: 'responseBody', valueString: 'attempt 1' },
        { name: 'contentType', valueString: /^text\/plain/ },
        { name: 'runId', valueString: runId },
      ],
    },
  })
  const result = await admin.get(url.replace('/status', '/result'))
  t.equal(result.status, 200)
  t.match(result.headers.get('content-type'), 'text/plain')
  t.equal(result.text, 'attempt 1')
})

t.test('reports an asynchronous run as active when it has started', async (t) => {
  const id = await aBot(botica, waiting, patient)
  const { gate, open } = aGate(admin)
  const accepted = await execute(admin, id, { gate }, later)
  const url = String(accepted.headers.get('content-location'))
  const statuses = new Set<number>()
  const active = await eventually(async () => {
    const { status, body } = await admin.get<Untyped>(url)
    statuses.add(status)
    return body.status === 'active' ? body : undefined
  })
  t.same([...statuses], [202])
  t.match(active, { id: accepted.headers.get('x-bot-run-id'), meta: { versionId: '2' } })
  t.match(await admin.get(`AsyncJob/${active.id}`), { body: { status: 'active' } })
  await open()
  t.match(await finished(admin, url), { status: 'completed', meta: { versionId: '3' } })
})

t.test('stores results of every kind', async (t) => {
  const cases: readonly (readonly [string, string, unknown, string])[] = [
    ['return true', 'completed', { name: 'responseBody', valueBoolean: true }, 'true'],
    ['return 42', 'completed', { name: 'responseBody', valueString: '42' }, '42'],
    ['return { a: 1 }', 'completed', { name: 'responseBody', valueString: '{"a":1}' }, '{"a":1}'],
    [`return 'a\\0b'`, 'completed', { name: 'responseBody', valueString: 'a\ufffdb' }, 'a\ufffdb'],
    [
      `return '{"resourceType":"OperationOutcome","a":' + '['.repeat(5000) + ']'.repeat(5000) + '}'`,
      'completed',
      { name: 'responseBody', valueString: String },
      '"OperationOutcome"',
    ],
    [
      `throw new Error('a\\0b')`,
      'error',
      { name: 'outcome', resource: { issue: [{ details: { text: 'a\ufffdb' } }] } },
      'a\ufffdb',
    ],
    ['return undefined', 'completed', { name: 'outcome', resource: { id: 'ok' } }, '"All OK"'],
    [
      `throw new Error('no way')`,
      'error',
      { name: 'outcome', resource: { issue: [{ details: { text: 'no way' } }] } },
      'no way',
    ],
  ]
  for (const [body, status, parameter, text] of cases) {
    const accepted = await execute(admin, await aBot(botica, handler(body)), {}, later)
    const url = String(accepted.headers.get('content-location'))
    const job = await finished(admin, url)
    t.equal(job.status, status, body)
    t.match(job.output.parameter[0], parameter, body)
    const result = await admin.get(url.replace('/status', '/result'))
    t.equal(result.status, status === 'completed' ? 200 : 400, body)
    t.match(result.text, text)
  }
})

t.test('returns the status URL when the wait ends, and continues the run', async (t) => {
  const id = await aBot(botica, waiting, patient)
  const { gate, open } = aGate(admin)
  const wait = await execute(admin, id, { gate }, { Prefer: 'wait=1' })
  t.equal(wait.status, 202)
  t.equal(wait.headers.get('preference-applied'), 'wait=1')
  await open()
  const job = await finished(admin, wait.headers.get('content-location'))
  t.match(job.output.parameter[0], { valueString: 'attempt 1' })
  const both = await execute(admin, id, {}, { Prefer: 'respond-async, wait=100' })
  t.equal(both.status, 200)
  t.equal(both.text, 'attempt 1')
})

t.test('ignores parameters of other preferences', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  for (const prefer of ['handling=lenient; respond-async', 'return=minimal;wait=0;respond-async']) {
    const answer = await execute(admin, id, {}, { Prefer: prefer })
    t.same([answer.status, answer.text], [200, '1'], prefer)
    t.equal(answer.headers.get('preference-applied'), null, prefer)
  }
  const quoted = await execute(admin, id, {}, { Prefer: 'respond-async; later, WAIT="100"' })
  t.equal(quoted.status, 200)
  t.equal(quoted.headers.get('preference-applied'), 'wait=100')
})

t.test('returns the status URL immediately to a caller that does not wait', async (t) => {
  const id = await aBot(botica, waiting, patient)
  for (let round = 0; round < 5; round++) {
    const { gate, open } = aGate(admin)
    const sent = await execute(admin, id, { gate }, { Prefer: 'wait=0' })
    t.equal(sent.status, 202)
    t.equal(sent.headers.get('preference-applied'), 'wait=0')
    await open()
    const job = await finished(admin, sent.headers.get('content-location'))
    t.match(job.output.parameter[0], { valueString: 'attempt 1' })
  }
})

t.test('cancels a running job early', async (t) => {
  const id = await aBot(botica, waiting, patient)
  const depth = async (state: string) =>
    (await botica.services.queues.depths())['bots-async']?.[state]
  for (const how of ['DELETE', '$cancel']) {
    const accepted = await execute(admin, id, aGate(admin), later)
    const url = String(accepted.headers.get('content-location'))
    await eventually(async () => ((await depth('active')) === 1 ? true : undefined))
    const job = url.split('/').at(-2)
    const answer =
      how === 'DELETE' ? await admin.del(url) : await admin.post(`AsyncJob/${job}/$cancel`)
    t.equal(answer.status, how === 'DELETE' ? 202 : 200)
    await eventually(async () => ((await depth('active')) === 0 ? true : undefined), PATIENCE_MS)
    const status = await admin.get<Untyped>(url)
    t.equal(status.status, 200)
    t.equal(status.body.status, 'cancelled')
    const again = await admin.post<Untyped>(`AsyncJob/${job}/$cancel`)
    t.equal(again.status, 400)
    t.match(again.body.issue[0].details.text, /job had status 'cancelled'/)
  }
})

t.test('hides a job from others', async (t) => {
  const accepted = await execute(admin, await aBot(botica, handler('return 1')), {}, later)
  const url = String(accepted.headers.get('content-location'))
  const other = await botica.createTenant()
  t.equal((await other.admin.get(url)).status, 404)
  t.equal((await other.admin.del(url)).status, 404)
  t.equal((await botica.anonymous.get(url)).status, 401)
  t.equal((await admin.get(`job/${randomUUID()}/status`)).status, 404)
  t.equal((await admin.put(url, {})).status, 405)
})

t.test('shows members their own jobs, and admins all', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: '*' }],
  })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const [caller, other, limited] = await Promise.all([
    botica.createMember(),
    botica.createMember(),
    botica.createMember({ accessPolicy }),
  ])
  const own = await execute(limited.client, id, {}, later)
  const { id: ownId } = await finished(limited.client, own.headers.get('content-location'))
  t.equal((await limited.client.get(`AsyncJob/${ownId}`)).status, 200, 'also with a policy')
  const accepted = await execute(caller.client, id, {}, later)
  const job = await finished(caller.client, accepted.headers.get('content-location'))
  const path = `AsyncJob/${job.id}`
  t.equal((await limited.client.get(path)).status, 404)
  for (const client of [caller.client, admin, botica.superAdmin]) {
    t.equal((await client.get(path)).status, 200)
    t.equal((await client.get(`${path}/_history`)).status, 200)
  }
  t.equal((await caller.client.get<Untyped>(`AsyncJob?_id=${job.id}`)).body.entry?.length, 1)
  t.equal((await admin.get<Untyped>(`AsyncJob?_id=${job.id}`)).body.entry?.length, 1)
  t.equal((await other.client.get<Untyped>('AsyncJob')).body.entry, undefined)
  t.equal((await other.client.get(path)).status, 404)
  t.equal((await other.client.get(`${path}/_history`)).status, 404)
  for (const { client } of [caller, other, { client: admin }]) {
    t.equal((await client.put(path, { ...job, status: 'error' })).status, 403)
    t.equal((await client.del(path)).status, 403)
    t.equal((await client.post('AsyncJob', { ...job, id: undefined })).status, 403)
  }
})

t.test('rejects excess runs of one Project only', async (t) => {
  const id = await aBot(botica, waiting, patient)
  const { gate, open } = aGate(admin)
  const runs = Array.from({ length: 21 }, () => execute(admin, id, { gate }))
  await Promise.race(runs)
  await open()
  const answers = await Promise.all(runs)
  const refused = answers.filter(({ status }) => status === 429)
  t.equal(refused.length, 1)
  t.equal(answers.filter(({ status }) => status === 200).length, 20)
  t.match(refused[0]?.headers.get('ratelimit'), /^"bots";r=0;t=([3-9]|\d\d)$/)
  t.ok(Number(refused[0]?.headers.get('retry-after')) >= 3)
  t.equal(refused[0]?.body.issue[0].code, 'throttled')
})

t.test('fails a run at its deadline with EXECUTE_DEADLINE=fail instead of a 202', async (t) => {
  const env = { EXECUTE_DEADLINE: 'fail', EXECUTE_WAIT_MS: '700' }
  const strict = await openBotica(t, { worker: 'process', env })
  const id = await aBot(strict, waiting, patient)
  const answer = await execute(strict.admin, id, aGate(strict.admin))
  t.equal(answer.status, 400)
  t.match(answer.body.issue[0], { code: 'timeout', details: { text: 'Bot timed out after 0.7 s' } })
  const active = async () => (await strict.services.queues.depths())['bots-sync']?.active
  await eventually(async () => ((await active()) === 0 ? true : undefined), PATIENCE_MS)
})
