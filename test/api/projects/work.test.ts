/** Background work, visible to administrators of the Project and to super administrators. */
import t from 'tap'
import { ALL_QUEUES, openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { signIn } from '../../fixtures/client.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const PATIENCE_MS = 150_000

// Its worker takes all waiting jobs of the database.
const env = { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: ALL_QUEUES }
const botica = await openBotica(t, { worker: true, env })
const { admin, superAdmin, project } = botica
const address = `/admin/projects/${project.id}`

t.test('schedules are listed with their next run, and with the last one', async (t) => {
  const id = await aBot(botica, handler('return 1'))
  t.same((await admin.get<Untyped>(`${address}/schedules`)).body, { schedules: [] })
  const bot = (await admin.get(`Bot/${id}`)).body
  await admin.put(`Bot/${id}`, { ...bot, cronString: '0 3 * * *' })
  let found: Untyped
  await until(async () => {
    found = (await admin.get<Untyped>(`${address}/schedules`)).body.schedules
    return found[0]?.next !== null
  }, PATIENCE_MS)
  t.match(found, [
    {
      bot: { reference: `Bot/${id}` },
      cron: '0 3 * * *',
      zone: 'UTC',
      next: /T03:00:00.000Z$/,
      last: null,
      lastStatus: null,
      isRunning: false,
    },
  ])
  t.equal(found.length, 1)
})

t.test('the next runs of a schedule are shown before it is stored', async (t) => {
  const preview = (bot: Untyped, client = admin) =>
    client.post<Untyped>(`${address}/schedules/preview`, bot, {
      'Content-Type': 'application/json',
    })
  const zone = { url: 'urn:botica:bot-cron-timezone', valueString: 'Asia/Tokyo' }
  const { body } = await preview({ cronString: '30 6 * * 1', extension: [zone] })
  t.match(body, { cron: '30 6 * * 1', zone: 'Asia/Tokyo', overlaps: false })
  const times: readonly Date[] = body.next.map((text: string) => new Date(text))
  t.equal(times.length, 5)
  t.ok(
    times.every((time) => time.getUTCDay() === 0 && time.toISOString().endsWith('21:30:00.000Z')),
  )
  const { body: timing } = await preview({ cronTiming: { repeat: { period: 2 } } })
  t.equal(timing.cron, '0 */12 * * *')
  for (const wrong of [{ cronString: 'every day' }, {}]) {
    const { status, body } = await preview(wrong)
    t.match(
      { status, body },
      { status: 400, body: { issue: [{ expression: ['Bot.cronString'] }] } },
    )
  }
  const member = await botica.createMember()
  t.equal((await preview({ cronString: '0 3 * * *' }, member.client)).status, 403)
})

t.test('lists a failing Subscription with its undelivered events and the cause', async (t) => {
  t.same((await admin.get<Untyped>(`${address}/subscriptions`)).body, { subscriptions: [] })
  const subscription = await admin.create({
    resourceType: 'Subscription',
    status: 'active',
    reason: 'test',
    criteria: 'Patient?',
    channel: { type: 'rest-hook', endpoint: 'http://127.0.0.1:9/nobody' },
  })
  const patient = await admin.create(aPatient())
  const path = `${address}/subscriptions/${subscription.id}`
  let pending: Untyped
  await until(async () => {
    pending = (await admin.get<Untyped>(path)).body.deliveries
    return pending[0]?.error
  }, PATIENCE_MS)
  t.match(pending, [
    {
      resource: { reference: `Patient/${patient.id}` },
      version: 1,
      interaction: 'create',
      attempts: Number,
      added: /Z$/,
      due: /Z$/,
      error: String,
    },
  ])
  t.match((await superAdmin.get<Untyped>(path)).body.deliveries.length, 1)
  const { subscriptions } = (await admin.get<Untyped>(`${address}/subscriptions`)).body
  t.match(subscriptions, [{ delivered: 0, failed: 0, waiting: 1, retrying: 1, error: String }])
  const { body } = await admin.get<Untyped>(`Subscription/${subscription.id}/$status`)
  const { extension, error } = body.entry[0].resource
  const counts = extension.map(({ url, valueInteger }: Untyped) => [
    url.replace(/^.*subscription-/, ''),
    valueInteger,
  ])
  t.strictSame(Object.fromEntries(counts), { delivered: 0, failed: 0, waiting: 1, retrying: 1 })
  t.match(error, [{ text: String }])
})

t.test('a Project shows its limits and their use', async (t) => {
  const before = await admin.get<Untyped>(address)
  t.notOk('load' in before.body)
  const { body } = await superAdmin.get(`Project/${project.id}`)
  const systemSetting = [
    { name: 'enableFhirQuota', valueBoolean: true },
    { name: 'totalFhirQuota', valueInteger: 100_000 },
  ]
  await superAdmin.put(`Project/${project.id}`, { ...body, systemSetting })
  let found: Untyped
  await until(async () => {
    await admin.get('Patient')
    found = (await admin.get<Untyped>(address)).body
    return found.load?.used > 0
  }, PATIENCE_MS)
  t.match(found, { project: { systemSetting }, load: { limit: 100_000, memberLimit: Number } })
})

t.test('workers and metrics are for super administrators', async (t) => {
  let seen: Untyped
  await until(async () => {
    seen = (await superAdmin.get<Untyped>('/admin/super/workers')).body
    return seen.workers.length > 0 && seen.metrics.length > 0
  }, PATIENCE_MS)
  t.match(seen.workers, [{ id: String, isOnTime: true }])
  t.match(Object.values(seen.metrics[0])[0], [{ value: Number }])
  const { metrics } = (await superAdmin.get<Untyped>('/admin/super/metrics')).body
  const named = (name: string) => metrics.find((one: Untyped) => one.name === name)
  t.match(named('queue_jobs').values, [{ labels: { queue: String, state: String }, value: Number }])
  t.ok(named('http_requests_total').values.length > 0)
  t.notMatch(JSON.stringify(metrics), /"le":/)
})

t.test('counts the resources of a project, and estimates large counts', async (t) => {
  const other = await botica.createTenant()
  const read = async () =>
    (await other.admin.get<Untyped>(`/admin/projects/${other.project.id}/storage`)).body
  const before = await read()
  const { id } = await other.admin.create(aPatient())
  await other.admin.put(`Patient/${id}`, { ...aPatient(), id, gender: 'other' })
  const after = await read()
  t.equal(after.versions, before.versions + 2)
  t.ok(after.bytes > before.bytes)
  t.equal(after.isEstimate, false)
  await botica.services.database.query({
    text: `insert into version (project, type, id, ver, lu, content, meta_at, meta_ext)
      select project, type, gen_random_uuid(), 1, lu, content, meta_at, meta_ext
      from version, generate_series(1, 20000) where id = $1 and ver = 1`,
    values: [id],
  })
  await botica.services.database.query({ text: 'analyze version', values: [] })
  const much = await read()
  t.equal(much.isEstimate, true)
  t.ok(much.versions > 15_000 && much.versions < 25_000, `${much.versions}`)
})

t.test('limits a super administrator with a policy to its types', async (t) => {
  const { body: me } = await superAdmin.get<Untyped>('/auth/me')
  const limitedTo = async (...types: readonly string[]) => {
    const resource = types.map((resourceType) => ({ resourceType, interaction: ['read'] }))
    const policy = await superAdmin.create({ resourceType: 'AccessPolicy', resource })
    const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
    const path = `/admin/projects/${me.project.id}/client`
    const { body } = await superAdmin.post<Untyped>(path, { name: 'Limited', accessPolicy })
    return await signIn(botica.baseUrl, body.id, body.secret)
  }
  const [none, all] = [
    await limitedTo('Patient'),
    await limitedTo('Bot', 'Subscription', 'Project'),
  ]
  for (const path of ['schedules', 'subscriptions', 'storage', 'bots/stats']) {
    t.equal((await none.get(`${address}/${path}`)).status, 403, path)
    t.equal((await all.get(`${address}/${path}`)).status, 200, path)
  }
})

t.test('rejects members, other tenants and plain administrators', async (t) => {
  const { client } = await botica.createMember()
  const other = await botica.createTenant()
  for (const path of ['schedules', 'storage', 'subscriptions', 'subscriptions/x']) {
    t.equal((await client.get(`${address}/${path}`)).status, 403)
    t.equal((await other.admin.get(`${address}/${path}`)).status, 403)
  }
  for (const path of ['workers', 'metrics']) {
    t.equal((await admin.get(`/admin/super/${path}`)).status, 403)
  }
})
