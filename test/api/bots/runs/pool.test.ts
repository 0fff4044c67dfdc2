import t from 'tap'
import { openBotica, type Tenant, until } from '../../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../../fixtures/bots/gates.ts'
import { openLine } from '../../../fixtures/bots/line.ts'

const SLOTS = 4
const CROWD = 50
const PATIENCE_MS = 90_000
const botica = await openBotica(t, {
  worker: true,
  env: { WORKER_CONCURRENCY: String(SLOTS), EXECUTE_WAIT_MS: '110000', BOT_TIMEOUT_MS: '100000' },
})
const { admin } = botica
const { config } = botica.services
const line = openLine(t, config.redisUrl)

const waiting = handler(`const from = Date.now()
  ${AT_GATE}
  await new Promise((resolve) => setTimeout(resolve, event.input.ms))
  return { from, to: Date.now() }`)
const busy = handler(`const from = Date.now()
  while (Date.now() < from + event.input.ms);
  return { from, to: Date.now() }`)

const limit = (name: string, valueInteger: number) => ({
  extension: [{ url: `${botica.baseUrl}fhir/StructureDefinition/bot-${name}`, valueInteger }],
})

async function setConcurrency({ project }: Tenant, valueInteger: number): Promise<void> {
  const current = await botica.superAdmin.get(`Project/${project.id}`)
  const systemSetting = [{ name: 'botConcurrency', valueInteger }]
  const put = await botica.superAdmin.put(`Project/${project.id}`, {
    ...current.body,
    systemSetting,
  })
  if (put.status !== 200) throw new Error(put.text)
}

const inLine = () => line.getJobCountByTypes('waiting', 'prioritized', 'delayed')

/** Starts no run before all are queued, however slowly they arrive. */
async function lineUp(count: number, ask: () => Promise<Span[]>): Promise<() => Promise<Span[]>> {
  const before = await inLine()
  await line.pause()
  const asked = ask()
  await until(async () => (await inLine()) - before >= count, PATIENCE_MS)
  return () => asked
}

interface Span {
  readonly from: number
  readonly to: number
}

function overlap(spans: readonly Span[]): number {
  return Math.max(
    ...spans.map(({ from }) => spans.filter((one) => one.from <= from && from < one.to).length),
  )
}

interface Many {
  readonly count: number
  readonly ms: number
  readonly gate?: string | undefined
}

function many(tenant: Tenant, id: string, { count, ms, gate }: Many): Promise<Span[]> {
  return Promise.all(
    Array.from({ length: count }, async () => {
      const { status, body, text } = await execute(tenant.admin, id, { ms, gate })
      if (status !== 200) throw new Error(`${status} ${text}`)
      return body as Untyped as Span
    }),
  )
}

t.test('runs any number of waiting runs without slots unless a cap is set', async (t) => {
  const tenant = await botica.createTenant()
  const id = await aBot(tenant, waiting)
  const { gate, open } = aGate(tenant.admin)
  const ended = await lineUp(CROWD, () => many(tenant, id, { count: CROWD, ms: 0, gate }))
  await line.resume()
  const path = `/admin/projects/${tenant.project.id}/bots/stats`
  const underWay = async () => (await tenant.admin.get<Untyped>(path)).body.slotsUsed
  await until(async () => (await underWay()) === CROWD, PATIENCE_MS)
  await open()
  const spans = await ended()
  t.ok(overlap(spans) >= 10 * SLOTS, `runs ${overlap(spans)} at once in ${SLOTS} slots`)
})

t.test('resets the state of a bot between runs on request', async (t) => {
  const code = 'let runs = 0; exports.handler = async () => ++runs'
  const url = `${botica.baseUrl}fhir/StructureDefinition/bot-fresh`
  const fields = { extension: [{ url, valueBoolean: true }] }
  const id = await aBot(botica, code, { fields })
  for (let n = 0; n < 3; n++) t.equal((await execute(admin, id)).text, '1')
})

t.test('limits concurrent runs of a bot without delaying others', async (t) => {
  const id = await aBot(botica, waiting, { fields: limit('maxConcurrency', 2) })
  const other = await aBot(botica, handler('return { from: Date.now(), to: Date.now() }'))
  await execute(admin, other)
  const { gate, open } = aGate(admin)
  const crowd = await lineUp(60, () => many(botica, id, { count: 60, ms: 50, gate }))
  const lone = await lineUp(1, () => many(botica, other, { count: 1, ms: 0 }))
  await line.resume()
  const [beside] = await lone()
  await open()
  const spans = await crowd()
  t.ok(overlap(spans) <= 2, `runs ${overlap(spans)} at once`)
  const after = spans.filter(({ from }) => from > (beside?.to ?? 0)).length
  t.ok(after >= 58, `${after} runs started after the other`)
})

t.test('limits concurrent runs of a Project by its setting', async (t) => {
  const tenant = await botica.createTenant()
  await setConcurrency(tenant, 3)
  const ids = [await aBot(tenant, waiting), await aBot(tenant, waiting)]
  const spans = await Promise.all(ids.map((id) => many(tenant, id, { count: 15, ms: 100 })))
  const most = overlap(spans.flat())
  t.ok(most <= 3, `runs ${most} at once`)
})

t.test('does not delay a run by many runs of another Project', async (t) => {
  const [crowded, calm] = [await botica.createTenant(), await botica.createTenant()]
  const crowd = await aBot(crowded, busy)
  const alone = await aBot(calm, busy)
  await many(calm, alone, { count: 1, ms: 0 })
  const others = await lineUp(100, () => many(crowded, crowd, { count: 100, ms: 20 }))
  const lone = await lineUp(1, () => many(calm, alone, { count: 1, ms: 0 }))
  await line.resume()
  const [[own], spans] = await Promise.all([lone(), others()])
  const first = spans.filter(({ from }) => from < (own?.from ?? 0)).length
  t.ok(first <= 8 * SLOTS, `${first} runs started first`)
})
