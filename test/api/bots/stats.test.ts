/** Imports the sweep of jobs, which a worker starts only after days. */
import t from 'tap'
import { removeOldJobs } from '../../../shared/jobs/async-requests.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, finished, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'

const botica = await openBotica(t, { worker: true })
const { admin, superAdmin, project, services } = botica
const path = `/admin/projects/${project.id}/bots/stats`
const PATIENCE_MS = 90_000
const later = { Prefer: 'respond-async' }

t.test('shows administrators the runs of their bots', async (t) => {
  const good = await aBot(botica, handler('return 1'))
  const bad = await aBot(botica, handler('throw new Error("no")'))
  for (let n = 0; n < 3; n++) await execute(admin, good)
  await execute(admin, bad)
  const ofBot = (stats: Untyped, id: string) =>
    stats.bots.find(({ bot }: Untyped) => bot.reference === `Bot/${id}`)
  let stats: Untyped
  await until(async () => {
    stats = (await admin.get<Untyped>(path)).body
    return ofBot(stats, good)?.started === 3 && ofBot(stats, bad)?.started === 1
  }, PATIENCE_MS)
  t.match(ofBot(stats, good), {
    succeeded: 3,
    failed: {},
    queueWait: { count: 3 },
    runTime: { count: 3, sumMs: Number },
  })
  t.match(ofBot(stats, bad), { succeeded: 0, failed: { thrown: 1 } })
  t.match(stats.lanes, { 'bots-sync': { inFlight: 0, oldestWaitingSeconds: 0 } })
})

t.test('counts the runs of labels and of the live code', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const code = handler('throw new Error("no")')
  await admin.post(`Bot/${id}/$deploy`, { code, label: 'staging' })
  const onStaging = () => admin.post(`Bot/${id}/$execute?label=staging`, {})
  await Promise.all([execute(admin, id), execute(admin, id), onStaging()])
  let counted: Untyped
  await until(async () => {
    const { bots } = (await admin.get<Untyped>(path)).body
    counted = bots.find(({ bot }: Untyped) => bot.reference === `Bot/${id}`)
    return counted?.started === 3
  }, PATIENCE_MS)
  t.match(counted, { succeeded: 2, failed: { thrown: 1 }, runTime: { count: 3 } })
  t.match(counted.labels, {
    live: { started: 2, succeeded: 2, failed: {}, runTime: { count: 2 } },
    staging: { started: 1, succeeded: 0, failed: { thrown: 1 }, runTime: { count: 1 } },
  })
})

t.test('counts the runs of each version, named or not', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const { body } = await admin.get<Untyped>(`Bot/${id}/$releases`)
  const { valueReference } = body.parameter[0].part.find(({ name }: Untyped) => name === 'code')
  t.match(valueReference.reference, /^Binary\//)
  await execute(admin, id)
  await admin.post(`Bot/${id}/$deploy`, { code: handler('return 2'), version: '2.0.0+b' })
  await Promise.all([execute(admin, id), execute(admin, id)])
  const code = handler('throw new Error("no")')
  await admin.post(`Bot/${id}/$deploy`, { code, version: '2.1.0', label: 'staging' })
  await admin.post(`Bot/${id}/$execute?label=staging`, {})
  await admin.post(`Bot/${id}/$promote`, {})
  await execute(admin, id)
  let counted: Untyped
  await until(async () => {
    const { bots } = (await admin.get<Untyped>(path)).body
    counted = bots.find(({ bot }: Untyped) => bot.reference === `Bot/${id}`)
    return counted?.versions['2.1.0']?.started === 2
  }, PATIENCE_MS)
  t.match(counted.versions, {
    [valueReference.reference]: { started: 1, succeeded: 1, failed: {}, runTime: { count: 1 } },
    '2.0.0+b': { started: 2, succeeded: 2, failed: {}, runTime: { count: 2, sumMs: Number } },
    '2.1.0': { started: 2, succeeded: 0, failed: { thrown: 2 }, runTime: { count: 2 } },
  })
})

t.test('reports running and queued runs', async (t) => {
  const extension = [
    { url: `${botica.baseUrl}fhir/StructureDefinition/bot-maxConcurrency`, valueInteger: 1 },
  ]
  const endless = handler('await new Promise(() => {})')
  const id = await aBot(botica, endless, { fields: { extension, timeout: 600 } })
  const urls: string[] = []
  for (let n = 0; n < 3; n++) {
    const accepted = await execute(admin, id, {}, later)
    urls.push(String(accepted.headers.get('content-location')))
  }
  await until(async () => {
    const { body } = await admin.get<Untyped>(path)
    return body.lanes['bots-async'].inFlight === 3 && body.slotsUsed >= 1 && body.held.bot === 2
  }, PATIENCE_MS)
  const held = `bot_runs_held{project="${project.id}",reason="bot"} 2`
  await until(async () => (await botica.anonymous.get('/metrics')).text.includes(held), PATIENCE_MS)
  const { body: queues } = await superAdmin.get<Untyped>('/admin/super/queues')
  t.match(
    queues.lanes.filter((lane: Untyped) => lane.project === project.id),
    [{ queue: 'bots-async', inFlight: 3, oldestWaitingSeconds: Number }],
  )
  for (const url of urls) t.equal((await admin.del(url)).status, 202)
  await until(async () => {
    const { body } = await admin.get<Untyped>(path)
    return body.lanes['bots-async'].inFlight === 0 && body.slotsUsed === 0
  }, PATIENCE_MS)
})

t.test('reports why and how long a run waited for a cap of its bot', async (t) => {
  const extension = [
    { url: `${botica.baseUrl}fhir/StructureDefinition/bot-maxConcurrency`, valueInteger: 1 },
  ]
  const id = await aBot(botica, handler(`${AT_GATE} return 1`), { fields: { extension } })
  const { gate, open } = aGate(admin)
  const calls = [execute(admin, id, { gate }), execute(admin, id, { gate })]
  await until(async () => (await admin.get<Untyped>(path)).body.held.bot === 1, PATIENCE_MS)
  await open()
  for (const { status } of await Promise.all(calls)) t.equal(status, 200)

  let waited: Untyped[] = []
  await until(async () => {
    const { body } = await admin.get<Untyped>(`Bot/${id}/$runs`)
    waited = (body.parameter ?? []).flatMap(({ part = [] }: Untyped) =>
      part.filter(({ name }: Untyped) => /^waited/.test(name)),
    )
    return body.parameter?.length === 2
  }, PATIENCE_MS)
  t.match(waited, [
    { name: 'waitedFor', valueCode: 'bot' },
    { name: 'waitedMs', valueDecimal: Number },
  ])
  await until(async () => {
    const { body } = await admin.get<Untyped>(path)
    return (
      body.bots.find(({ bot }: Untyped) => bot.reference === `Bot/${id}`)?.held.bot?.count === 1
    )
  }, PATIENCE_MS)
})

t.test('returns stats only to administrators of the Project', async (t) => {
  const { client } = await botica.createMember()
  const other = await botica.createTenant()
  t.equal((await client.get(path)).status, 403)
  t.equal((await other.admin.get(path)).status, 403)
  t.equal((await botica.anonymous.get(path)).status, 401)
})

t.test('exposes runs by project, bot and outcome in the metrics', async (t) => {
  const id = await aBot(botica, handler('return await medplum.search("Patient")'))
  t.equal((await execute(admin, id)).status, 200)
  const line = new RegExp(
    `bot_runs_total\\{[^}]*project="${project.id}"[^}]*bot="${id}"[^}]*outcome="ok"[^}]*\\} 1`,
  )
  await until(async () => line.test((await botica.anonymous.get('/metrics')).text), PATIENCE_MS)
  const { text } = await botica.anonymous.get('/metrics')
  for (const name of [
    'bot_queue_wait_seconds_bucket',
    'bot_run_seconds_bucket',
    'bot_handler_cpu_seconds_bucket',
    'bot_host_calls_total{kind="fhir"}',
    'bot_executors{state="bound"}',
    'bot_executor_deaths_total{cause="timeout"}',
    'redis_round_trip_seconds',
    'queue_jobs{',
    '# TYPE queue_project_jobs gauge',
    '# TYPE queue_project_oldest_seconds gauge',
  ]) {
    t.ok(text.includes(name), name)
  }
  t.match(text, /^process_pss_bytes\{.*\} [1-9]\d{6,}$/m, 'memory of the web process')
  t.match(text, /^worker_process_pss_bytes [1-9]\d{6,}$/m, 'memory of the worker')
})

t.test('exposes waiting runs of each Project in the metrics', async (t) => {
  const metrics = async () => (await botica.anonymous.get('/metrics')).text
  const line = `queue_project_jobs{queue="change",project="${project.id}",state="waiting"}`
  const { id } = await admin.create(aSubscription('Basic', 'https://example.org/hook'))
  t.notOk((await metrics()).includes(line))
  await admin.create({ resourceType: 'Basic', code: { text: 'nobody takes the event' } })
  t.ok((await metrics()).includes(`${line} 1`))
  await admin.del(`Subscription/${id}`)
  await services.database.query({
    text: 'delete from outbox o using tenant t where t.project = o.project and t.fhir_id = $1',
    values: [project.id],
  })
})

t.test('keeps jobs for seven days', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  const [old, young] = await Promise.all([1, 2].map(() => execute(admin, id, {}, later)))
  for (const accepted of [old, young]) {
    await finished(admin, accepted?.headers.get('content-location') ?? '')
  }
  const runId = old?.headers.get('x-bot-run-id')
  await services.database.query({
    text: `update resource set lu = lu - interval '7 days 1 minute' where id = $1`,
    values: [runId],
  })
  t.ok((await removeOldJobs(services)) >= 1)
  t.equal((await admin.get(String(old?.headers.get('content-location')))).status, 404)
  t.equal((await admin.get(String(young?.headers.get('content-location')))).status, 200)
})
