import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, eventually, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { justNow, miss } from '../../fixtures/bots/schedules.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

// Any worker on the database leases due occurrences.
const DATABASE_URL = await createDatabase(t)
const botica = await openBotica(t, { worker: 'process', env: { DATABASE_URL } })
const { admin, services, superAdmin } = botica
const { database } = services
await botica.startWorker()
const PATIENCE_MS = 90_000

const SAY = handler(`
  const { input, scheduledTime, attempt, runId, contentType, requester = 'nobody' } = event
  const text = JSON.stringify({ bot: input.id, type: input.resourceType, scheduledTime, attempt,
    runId, contentType, requester })
  await medplum.createResource({ resourceType: 'Basic', code: { text } })`)

async function readRows(table: 'schedule' | 'occurrence', bots: readonly string[]) {
  const column = table === 'schedule' ? 'id' : 'bot'
  return await database.query<{ due: Date }>({
    text: `select * from ${table} where ${column} = any($1)`,
    values: [bots],
  })
}

/** Waits until all of them were due and none is running. */
async function settled(...bots: readonly string[]): Promise<void> {
  await until(async () => {
    // The order matters: occurrences planned in between count as open.
    const plans = await readRows('schedule', bots)
    const open = await readRows('occurrence', bots)
    const arePlanned = plans.every(({ due }) => due !== null && Number(due) > Date.now())
    return arePlanned && open.length === 0
  }, PATIENCE_MS)
}

async function said(...bots: readonly string[]): Promise<Untyped[]> {
  const found = await admin.get<Untyped>('Basic?_count=1000&_sort=_lastUpdated')
  return (found.body.entry ?? [])
    .map(({ resource }: Untyped) => ({ ...JSON.parse(resource.code.text) }))
    .filter(({ bot }: Untyped) => bots.includes(bot))
}

function audits(bot: string): Promise<Resource[]> {
  return eventually(async () => {
    const found = await admin.get<Untyped>(`AuditEvent?type=execute&entity=Bot/${bot}`)
    const events = (found.body.entry ?? []).map(({ resource }: Untyped) => resource)
    return events.length > 0 ? events : undefined
  })
}

t.test('runs each occurrence on exactly one of two workers', async (t) => {
  const { cronString, time } = justNow()
  const bots: string[] = []
  for (let i = 0; i < 10; i++) bots.push(await aBot(botica, SAY, { fields: { cronString } }))

  await miss(services, ...bots)
  await settled(...bots)

  const runs = await said(...bots)
  t.same(runs.map(({ bot }) => bot).sort(), bots.sort())
  t.match(runs[0], {
    type: 'Bot',
    scheduledTime: time,
    attempt: 1,
    contentType: 'application/fhir+json',
    requester: 'nobody',
  })
  const [audit] = await audits(bots[0] ?? '')
  t.match(audit, { outcome: '0', agent: [{ who: { reference: `Bot/${bots[0]}` } }] })
})

t.test('retries a failed run three times with doubling pauses', async (t) => {
  const { cronString } = justNow()
  const bot = await aBot(
    botica,
    `${SAY.slice(0, -1)}
 throw new Error('no') }`,
    {
      fields: { cronString },
    },
  )
  await miss(services, bot)
  await settled(bot)
  const runs = await said(bot)
  t.same(
    runs.map(({ attempt }) => attempt),
    [1, 2, 3],
  )
  t.equal(new Set(runs.map(({ runId }) => runId)).size, 1)
})

t.test('runs an occurrence that Redis lost', async (t) => {
  const { cronString, time } = justNow()
  const bot = await aBot(botica, SAY, { fields: { cronString } })
  await settled(bot)
  await database.query({
    text: `insert into occurrence (project, bot, scheduled, due, home)
      select project, id, $2, clock_timestamp(), $3 from schedule where id = $1`,
    values: [bot, time, services.queues.home],
  })
  await settled(bot)
  t.match(await said(bot), [{ scheduledTime: time }])
})

t.test('skips and reports an occurrence while the previous run continues', async (t) => {
  const { cronString, time } = justNow()
  const code = handler('await new Promise(() => {})')
  const bot = await aBot(botica, code, { fields: { cronString, timeout: 900 } })
  await miss(services, bot)
  await until(async () => (await readRows('occurrence', [bot])).length === 1, PATIENCE_MS)
  await miss(services, bot)
  const [audit] = await audits(bot)
  t.match(audit, { outcome: '4', outcomeDesc: new RegExp(`${time} was skipped: the run before`) })
  t.equal((await readRows('occurrence', [bot])).length, 1)
  await admin.del(`Bot/${bot}`)
  t.same(await readRows('occurrence', [bot]), [])
})

t.test(
  'runs nothing for a Bot without a membership or a Project without the feature',
  async (t) => {
    const { cronString } = justNow()
    const made = await admin.post('Bot', { resourceType: 'Bot', code: SAY, cronString })
    const bot = String(made.body.id)
    const other = await botica.createTenant()
    const { body: project } = await superAdmin.get(`Project/${other.project.id}`)
    await superAdmin.put(`Project/${other.project.id}`, { ...project, features: ['bots'] })
    const off = await aBot(other, SAY, { fields: { cronString } })
    await miss(services, bot, off)
    await settled(bot, off)
    const [audit] = await audits(bot)
    t.match(audit, { outcomeDesc: /was skipped: the bot has no membership/ })
    t.notOk((await other.admin.get<Untyped>('Basic')).body.entry)
  },
)

t.test('plans again after a change of the schedule, and ends with its removal', async (t) => {
  const plan = async (id: string) => {
    const [row] = await readRows('schedule', [id])
    return row?.due?.toISOString()
  }
  const bot = await aBot(botica, SAY, { fields: { cronString: '0 0 1 1 *' } })
  const year = new Date().getUTCFullYear() + 1
  await until(async () => (await plan(bot)) === `${year}-01-01T00:00:00.000Z`, PATIENCE_MS)

  const { body } = await admin.get(`Bot/${bot}`)
  await admin.put(`Bot/${bot}`, { ...body, description: 'The same times' })
  t.equal(await plan(bot), `${year}-01-01T00:00:00.000Z`)
  const zoned = [
    {
      url: `${botica.baseUrl}fhir/StructureDefinition/bot-cron-timezone`,
      valueString: 'Europe/Berlin',
    },
  ]
  await admin.put(`Bot/${bot}`, { ...body, extension: zoned })
  await until(async () => (await plan(bot)) === `${year - 1}-12-31T23:00:00.000Z`, PATIENCE_MS)

  await admin.put(`Bot/${bot}`, { ...body, cronString: undefined })
  t.same(await readRows('schedule', [bot]), [])
  for (const repeat of [
    { period: 2, periodUnit: 'd' },
    { period: 30, dayOfWeek: ['mon', 'fri'] },
  ]) {
    const timed = { ...body, cronString: undefined, cronTiming: { repeat } }
    t.equal((await admin.put(`Bot/${bot}`, timed)).status, 200)
    t.equal((await readRows('schedule', [bot])).length, 1)
  }
  await admin.del(`Bot/${bot}`)
  t.same(await readRows('schedule', [bot]), [])
})

t.test('schedules a Bot created by the admin route', async (t) => {
  const make = (fields: object) =>
    admin.post<Untyped>(`/admin/projects/${botica.project.id}/bot`, { name: 'Timed', ...fields })
  const made = await make({ cronString: '0 0 1 1 *', timeout: 7 })
  t.match(made, { status: 201, body: { cronString: '0 0 1 1 *', timeout: 7 } })
  t.equal((await readRows('schedule', [made.body.id])).length, 1)
  for (const [fields, expression] of [
    [{ cronString: '61 * * * *' }, 'Bot.cronString'],
    [{ cronString: 5 }, 'cronString'],
    [{ timeout: 0 }, 'Bot.timeout'],
    [{ timeout: -1 }, 'timeout'],
  ] as const) {
    const refused = await make(fields)
    t.match(refused, { status: 400, body: { issue: [{ expression: [expression] }] } })
  }
})

t.test('rejects a cronTiming of which the schedule would ignore a part', async (t) => {
  const cases: readonly (readonly [cronTiming: object, path: string])[] = [
    [{ code: { text: 'QD' } }, '.code'],
    [{ event: ['2027-01-01T00:00:00Z'] }, '.event'],
    [{ repeat: { frequency: 3, period: 1, periodUnit: 'd' } }, '.repeat.frequency'],
    [{ repeat: { period: 1, periodUnit: 'd', timeOfDay: ['08:00:00'] } }, '.repeat.timeOfDay'],
    [{ repeat: { period: 1, periodUnit: 'h' } }, '.repeat.periodUnit'],
    [{ repeat: { period: -1, periodUnit: 'd' } }, ''],
  ]
  for (const [cronTiming, path] of cases) {
    const issue = [{ expression: [`Bot.cronTiming${path}`] }]
    const made = await admin.post('Bot', { resourceType: 'Bot', name: 'Timed', cronTiming })
    t.match(made, { status: 400, body: { issue } }, made.text)
  }
})

t.test('rejects an invalid schedule on every path', async (t) => {
  const bot = { resourceType: 'Bot', name: 'Odd', cronString: '61 * * * *' }
  const refused = { issue: [{ code: 'invalid', expression: ['Bot.cronString'] }] }
  const made = await admin.post('Bot', bot)
  t.equal(made.status, 400)
  t.match(made.body, refused)
  const good = await aBot(botica)
  const { body } = await admin.get(`Bot/${good}`)
  t.match((await admin.put(`Bot/${good}`, { ...body, cronString: '* *' })).body, refused)
  const patch = [{ op: 'add', path: '/cronString', value: '@hourly' }]
  t.equal((await admin.patch(`Bot/${good}`, patch)).status, 400)
  const request = { method: 'POST', url: 'Bot' }
  const bundle = { resourceType: 'Bundle', type: 'batch', entry: [{ request, resource: bot }] }
  t.match((await admin.post('', bundle)).body, { entry: [{ response: { status: /400/ } }] })
  t.same(await readRows('schedule', [good]), [])
})

t.test('lets a super admin unschedule a Bot and plan all again', async (t) => {
  const bot = await aBot(botica, SAY, { fields: { cronString: '0 0 1 1 *' } })
  const path = '/admin/super/removebotidjobsfromqueue'
  t.equal((await admin.post(path, { botId: bot })).status, 403)
  t.equal((await superAdmin.post(path, { botId: bot })).status, 200)
  t.same(await readRows('schedule', [bot]), [])
  t.equal((await superAdmin.post(path, { botId: randomUUID() })).status, 200)
  const wanted = { Prefer: 'respond-async' }
  t.equal((await superAdmin.post('/admin/super/reloadcron', {}, wanted)).status, 202)
  t.equal((await readRows('schedule', [bot])).length, 1)
})

t.test('reports queued and skipped occurrences in the metrics', async () => {
  await until(async () => {
    const { text } = await botica.anonymous.get('/metrics')
    const has = (line: RegExp) => line.test(text)
    return (
      has(/bot_schedule_occurrences_total\{outcome="queued"\} \d/) &&
      has(/bot_schedule_occurrences_total\{outcome="overlap"\} 1/) &&
      has(/bot_schedule_drift_seconds_count \d/)
    )
  }, PATIENCE_MS)
})
