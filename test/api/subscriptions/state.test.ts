/** States of Subscriptions: end, circuit breaker, error and resend. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { aSubscription, extension, startReceiver } from '../../fixtures/http/receiver.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const PATIENCE_MS = 90_000
const receiver = await startReceiver(t)
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change' },
})
const { admin } = botica
const { database } = botica.services
const once = { extension: [extension('subscription-max-attempts', 1)] }

const subscribe = async (criteria: string, path: string, more: object = {}): Promise<Untyped> =>
  admin.create(aSubscription(criteria, receiver.url + path, more))

const state = async (id: string): Promise<Untyped> => {
  const text = 'select * from subscription_state where subscription = $1'
  const [row] = await database.query<Untyped>({ text, values: [id] })
  return row
}

/** Simulates the passage of time. */
const set = (id: string, change: string) =>
  database.query({
    text: `update subscription_state set ${change} where subscription = $1`,
    values: [id],
  })

const readStatus = async (id: string) =>
  (await admin.get<Untyped>(`Subscription/${id}/$status`)).body.entry[0].resource

t.test('turns a Subscription off at its end', async (t) => {
  const past = await subscribe('Location', '/past', { end: '2020-01-01T00:00:00Z' })
  const future = await subscribe('Location', '/future', { end: '2120-01-01T00:00:00Z' })
  await admin.create({ resourceType: 'Location' })
  await receiver.got('/future', 1)
  await until(
    async () => (await admin.get<Untyped>(`Subscription/${past.id}`)).body.status === 'off',
    PATIENCE_MS,
  )
  t.equal(receiver.on('/past').length, 0)
  t.match((await admin.get(`Subscription/${future.id}`)).body, { status: 'active' })
})

t.test('opens the circuit on consecutive failures and closes it on success', async (t) => {
  let status = 500
  receiver.answer('/circuit', () => status)
  const { id } = await subscribe('Device', '/circuit', once)
  await Promise.all(Array.from({ length: 20 }, () => admin.create({ resourceType: 'Device' })))
  await until(async () => (await state(id))?.paused_until != null, PATIENCE_MS)
  t.match(await state(id), { failures: 20, failed: '20', pauses: 1 })
  await set(id, `paused_until = clock_timestamp() + interval '1 day'`)
  await admin.create({ resourceType: 'Device' })
  t.match(await readStatus(id), {
    type: 'query-status',
    status: 'active',
    subscription: { reference: `Subscription/${id}` },
    error: [{ text: 'status 500' }],
  })
  await until(async () => {
    const waiting = (await readStatus(id)).extension.find(({ url }: Untyped) => /waiting/.test(url))
    return waiting.valueInteger === 1
  }, PATIENCE_MS)
  t.equal(receiver.on('/circuit').length, 20, 'what comes in a pause waits')

  await set(id, 'paused_until = clock_timestamp()')
  await until(async () => (await state(id)).pauses === 2, PATIENCE_MS)
  t.equal(receiver.on('/circuit').length, 21)
  status = 200
  await set(id, 'paused_until = clock_timestamp()')
  await admin.create({ resourceType: 'Device' })
  await receiver.got('/circuit', 22)
  await until(async () => (await state(id)).pauses === 0, PATIENCE_MS)
  t.match(await state(id), { failures: 0, paused_until: null, failing_since: null })

  const again = await admin.post<Untyped>(`Subscription/${id}/$redeliver`, {})
  t.match(again.body, { parameter: [{ name: 'count', valueInteger: 21 }] })
  const all = await receiver.got('/circuit', 22 + 21)
  t.equal(new Set(all.map(({ headers }) => headers['x-event-id'])).size, 22)
  const none = await admin.post<Untyped>(`Subscription/${id}/$redeliver`, {})
  t.match(none.body, { parameter: [{ name: 'count', valueInteger: 0 }] })
  const mistaken = { resourceType: 'Parameters', parameter: [{ name: 'since', valueString: 'x' }] }
  t.equal((await admin.post(`Subscription/${id}/$redeliver`, mistaken)).status, 400)
  const json = { 'Content-Type': 'application/json' }
  const redeliver = (body: object) =>
    admin.post<Untyped>(`Subscription/${id}/$redeliver`, JSON.stringify(body), json)
  const window = { since: new Date(Date.now() - 60_000).toISOString(), until: new Date() }
  t.match((await redeliver(window)).body, { parameter: [{ name: 'count', valueInteger: 0 }] })
  for (const [body, expression] of [
    [{ since: 'yesterday' }, 'since'],
    [{ since: '5' }, 'since'],
    [{ since: '2026-13-01' }, 'since'],
    [{ until: 5 }, 'until'],
    [{ since: ['2026-01-01', '2026-01-02'] }, 'since'],
    [{ since: '2026-01-02', until: '2026-01-01' }, 'since'],
  ] as const) {
    const answer = await redeliver(body)
    t.match(answer, { status: 400, body: { issue: [{ expression: [expression] }] } })
  }
})

t.test('sets status error after three days without a delivery', async (t) => {
  const email = anEmail()
  const details = { email, sendEmail: false, membership: { admin: true } }
  t.equal((await invite(admin, botica.project.id, details)).status, 200)
  receiver.answer('/dead', () => 500)
  const { id } = await subscribe('Substance', '/dead', once)
  const substance = { resourceType: 'Substance', code: { text: 'x' } }
  await admin.create(substance)
  await until(async () => (await state(id))?.failed === '1', PATIENCE_MS)
  await set(id, `failing_since = clock_timestamp() - interval '73 hours'`)
  await admin.create(substance)
  const read = async () => (await admin.get<Untyped>(`Subscription/${id}`)).body
  await until(async () => (await read()).status === 'error', PATIENCE_MS)
  t.match((await read()).error, /failed for three days.*status 500/)
  const [mail, ...more] = await database.query<Untyped>({
    text: `select message from mail where message ->> 'kind' = 'subscription'`,
    values: [],
  })
  t.equal(more.length, 0)
  t.match(mail, { message: { to: [email], text: new RegExp(`Subscription/${id}`) } })

  await admin.put(`Subscription/${id}`, { ...(await read()), status: 'active' })
  t.match(await state(id), { failures: 0, failing_since: null })
})

t.test('sets status error a day after the author has left', async (t) => {
  const { client, id: author } = await botica.createMember()
  const made = await client.create(aSubscription('Organization', `${receiver.url}/left`))
  const id = String(made.id)
  const found = await admin.get<Untyped>(`ProjectMembership?profile=ClientApplication/${author}`)
  await admin.del(`ProjectMembership/${found.body.entry[0].resource.id}`)
  await admin.create({ resourceType: 'Organization', name: 'x' })
  await until(async () => (await state(id))?.orphan_since != null, PATIENCE_MS)
  await set(id, `orphan_since = clock_timestamp() - interval '25 hours'`)
  await admin.create({ resourceType: 'Organization', name: 'y' })
  await until(
    async () => (await admin.get<Untyped>(`Subscription/${id}`)).body.status === 'error',
    PATIENCE_MS,
  )
  t.equal(receiver.on('/left').length, 0)
})

t.test('successes beyond sixty a minute share an AuditEvent', async (t) => {
  const COUNT = 300
  const { id } = await subscribe('Medication', '/many')
  const entry = Array.from({ length: COUNT }, () => ({
    request: { method: 'POST', url: 'Medication' },
    resource: { resourceType: 'Medication' },
  }))
  await admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  await until(async () => (await state(id))?.delivered === `${COUNT}`, PATIENCE_MS)
  const texts = async (): Promise<readonly string[]> => {
    const found = await admin.get<Untyped>(`AuditEvent?entity=Subscription/${id}&_count=1000`)
    return (found.body.entry ?? []).map(({ resource }: Untyped) => resource.outcomeDesc)
  }
  /** An AuditEvent reports one success or as many as it says. */
  const told = async () =>
    (await texts()).map((text) => Number(/^\d+/.exec(text)?.[0] ?? 1)).reduce((a, b) => a + b, 0)
  await set(id, `untold_since = untold_since - interval '61 s'`)
  await until(async () => (await state(id)).untold === 0, PATIENCE_MS)
  t.equal(await told(), COUNT)
  t.ok((await texts()).length < COUNT)
  t.ok((await texts()).some((text) => /^\d+ attempts received a success status$/.test(text)))
})

t.test('resends the newest version for an admin', async (t) => {
  const basic = { resourceType: 'Basic', code: { text: 'x' } }
  const { id } = await admin.create(basic)
  const [one, other] = [await subscribe('Basic', '/one'), await subscribe('Basic', '/other')]
  const resend = (body: object, client = admin) => client.post(`Basic/${id}/$resend`, body)
  const only = await resend({ subscription: `Subscription/${one.id}`, verbose: 'true' })
  t.equal(only.status, 200)
  const [first] = await receiver.got('/one', 1)
  t.match(first?.headers, { 'x-medplum-interaction': 'update' })
  t.equal(receiver.on('/other').length, 0)
  t.equal((await resend({ interaction: 'create' })).status, 200)
  t.match((await receiver.got('/other', 1))[0]?.headers, { 'x-medplum-interaction': 'create' })
  t.match(await readStatus(String(other.id)), { status: 'active' })
  const valueReference = { reference: `Subscription/${one.id}` }
  const parameter = [{ name: 'subscription', valueReference }]
  t.equal((await resend({ resourceType: 'Parameters', parameter })).status, 200)
  await receiver.got('/one', 3)
  t.equal(receiver.on('/other').length, 1, 'Parameters name the Subscription, too')
  const misspelt = await resend({ subscripton: `Subscription/${one.id}` })
  t.match(misspelt, { status: 400, body: { issue: [{ expression: ['subscripton'] }] } })

  const { client } = await botica.createMember()
  t.equal((await resend({}, client)).status, 403)
  t.equal((await resend({ interaction: 'read' })).status, 400)
  t.equal((await resend({ subscription: `Basic/${id}` })).status, 400)
  t.equal((await resend({ interaction: 'delete' })).status, 400)
  t.equal((await admin.post('Basic/nobody/$resend', {})).status, 404)
  await admin.del(`Basic/${id}`)
  t.equal((await resend({})).status, 410)
  t.equal((await resend({ interaction: 'delete' })).status, 200)
})
