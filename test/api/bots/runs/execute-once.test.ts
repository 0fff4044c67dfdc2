/** `Idempotency-Key` on `$execute`: the bot has its effect once despite failures of worker and caller. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot, eventually, execute, handler, type Untyped } from '../../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../../fixtures/bots/gates.ts'

const botica = await openBotica(t, { env: { EXECUTE_WAIT_MS: '110000' } })
const { admin } = botica
const fields = { timeout: 300 }
const countPatients = async () => (await admin.get<Untyped>('Patient')).body.entry?.length ?? 0
const withKey = () => ({ 'Idempotency-Key': randomUUID() })

t.test('has one effect of a keyed run when its worker is killed', async (t) => {
  const worker = await botica.startWorker()
  const code = `const { id } = await medplum.createResource({ resourceType: 'Patient' })
    if (event.input.waits) await new Promise(() => {})
    return id`
  const bot = await aBot(botica, handler(code), { fields })
  const key = withKey()
  const first = execute(admin, bot, { waits: true }, key)
  await eventually(async () => ((await countPatients()) === 1 ? true : undefined))
  t.equal((await execute(admin, bot, { waits: true }, key)).status, 409, 'while it runs')
  const killed = once(worker, 'close')
  worker.kill('SIGKILL')
  await killed
  await botica.startWorker()
  const interrupted = await first
  t.equal(interrupted.status, 500)
  const again = await execute(admin, bot, { waits: true }, key)
  t.equal(again.status, 500)
  t.equal(again.text, interrupted.text)
  t.equal(again.headers.get('x-bot-run-id'), interrupted.headers.get('x-bot-run-id'))
  t.equal((await execute(admin, bot, { waits: false }, key)).status, 422, 'another body')
  t.equal(await countPatients(), 1)
  t.equal((await execute(admin, bot, { waits: false }, withKey())).status, 200, 'another key')
  t.equal(await countPatients(), 2)
})

t.test('returns the response of the same run to a caller that reconnects', async (t) => {
  const code = `await medplum.createResource({ resourceType: 'Patient' }); ${AT_GATE} return event.runId`
  const bot = await aBot(botica, handler(code), { fields })
  const before = await countPatients()
  const { gate, open } = aGate(admin)
  const headers = { ...withKey(), 'Content-Type': 'application/json' }
  const leaving = new AbortController()
  const left = fetch(`${botica.baseUrl}fhir/R4/Bot/${bot}/$execute`, {
    method: 'POST',
    headers: { ...headers, Authorization: `Bearer ${admin.token}` },
    body: JSON.stringify({ gate }),
    signal: leaving.signal,
  })
  await eventually(async () => ((await countPatients()) === before + 1 ? true : undefined))
  leaving.abort()
  await t.rejects(left)
  t.equal((await execute(admin, bot, { gate }, headers)).status, 409)
  await open()
  const answer = await eventually(async () => {
    const found = await execute(admin, bot, { gate }, headers)
    return found.status === 409 ? undefined : found
  })
  t.equal(answer.status, 200)
  t.equal(answer.text, answer.headers.get('x-bot-run-id'))
  t.equal(await countPatients(), before + 1)
})
