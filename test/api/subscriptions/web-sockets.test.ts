/** Imports `listen`, to stop a second web within the test. */
import { once } from 'node:events'
import { request } from 'node:http'
import t, { type Test } from 'tap'
import { WebSocket } from 'ws'
import { freePort } from '../../../scripts/service.ts'
import { listen } from '../../../server/listen.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { openSdk } from '../../fixtures/sdk.ts'
import {
  bound,
  getBindingToken,
  notificationType,
  openSocket,
  socketUrl,
  subscribe,
} from '../../fixtures/sockets.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

// Workers of other test files use another Redis.
const DATABASE_URL = await createDatabase(t)
const WORKER_QUEUES = 'bots-sync,change'
const env = { DATABASE_URL, WORKER_QUEUES, CORS_ORIGINS: 'https://app.example.org' }
const botica = await openBotica(t, { worker: true, env })
const { admin, services, baseUrl, superAdmin } = botica
const url = socketUrl(baseUrl)
const isEvent = (message: Untyped) => notificationType(message) === 'event-notification'
const isHandshake = (message: Untyped) => notificationType(message) === 'handshake'
const isOutcome = ({ resourceType }: Untyped) => resourceType === 'OperationOutcome'
const says = (text: string) => ({
  resourceType: 'OperationOutcome',
  issue: [{ details: { text } }],
})

t.test('notifies the SDK of changes, also after a reconnect', async (t) => {
  const medplum = await openSdk(botica)
  t.teardown(() => medplum.getSubscriptionManager().closeWebSocket())
  const emitter = medplum.subscribeToCriteria('Communication?sender=Practitioner/123')
  const told: Untyped[] = []
  let connects = 0
  emitter.addEventListener('message', ({ payload }) => told.push(payload))
  emitter.addEventListener('connect', () => {
    connects += 1
  })
  await until(async () => connects === 1, 60_000)

  const communication = (changes: object = {}) => ({
    resourceType: 'Communication' as const,
    status: 'in-progress' as const,
    sender: { reference: 'Practitioner/123' },
    ...changes,
  })
  await medplum.createResource(communication({ sender: { reference: 'Practitioner/124' } }))
  const made = await medplum.createResource(communication())
  await medplum.updateResource({ ...made, status: 'completed' })
  await medplum.deleteResource('Communication', made.id ?? '')
  await until(async () => told.length === 3, 60_000)
  const entry = (i: number) => told[i].entry[1]
  t.match(entry(0).resource, { id: made.id, status: 'in-progress', meta: { versionId: '1' } })
  t.match(entry(1).resource, { id: made.id, status: 'completed', meta: { versionId: '2' } })
  t.match(entry(2), { resource: { id: made.id }, request: { method: 'DELETE' } })
  t.equal(entry(2).fullUrl, `${baseUrl}fhir/R4/Communication/${made.id}`)

  medplum.getSubscriptionManager().reconnectWebSocket()
  await until(async () => connects === 2, 60_000)
  const later = await medplum.createResource(communication())
  await until(async () => told.length === 4, 60_000)
  t.equal(entry(3).resource.id, later.id)
})

t.test('a Subscription of a web socket is held, not stored', async (t) => {
  const id = await subscribe(admin, 'Patient')
  t.match((await admin.get(`Subscription/${id}`)).body, { id, channel: { type: 'websocket' } })
  t.notOk((await admin.get<Untyped>('Subscription')).body.entry)
  t.equal((await admin.get(`Subscription/${id}/_history`)).status, 404)
  const { admin: foreign } = await botica.createTenant()
  t.equal((await foreign.get(`Subscription/${id}`)).status, 404)
  t.equal((await foreign.del(`Subscription/${id}`)).status, 404)
  const refused = await foreign.get(`Subscription/${id}/$get-ws-binding-token`)
  t.match(refused, {
    status: 400,
    body: { issue: [{ details: { text: 'Error reading subscription: Not found' } }] },
  })
  t.equal((await admin.del(`Subscription/${id}`)).status, 200)
  t.equal((await admin.get(`Subscription/${id}`)).status, 404)
  t.equal((await admin.post('Subscription', { ...aSubscription, criteria: 'Nothing' })).status, 400)
})

t.test('rejects updates of web socket Subscriptions and their creation in bundles', async (t) => {
  const id = await subscribe(admin, 'Patient')
  const path = `Subscription/${id}`
  const { body } = await admin.get<Untyped>(path)
  const changes = await Promise.all([
    admin.put(path, { ...body, criteria: 'Basic' }),
    admin.patch(path, [{ op: 'replace', path: '/criteria', value: 'Basic' }]),
  ])
  for (const { status, headers } of changes) {
    t.equal(status, 405)
    t.equal(headers.get('allow'), 'GET, DELETE')
  }
  t.same((await admin.get(path)).body, body)
  const entry = [{ request: { method: 'POST', url: 'Subscription' }, resource: aSubscription }]
  for (const type of ['batch', 'transaction']) {
    const { status } = await admin.post('', { resourceType: 'Bundle', type, entry })
    t.equal(status, 200)
  }
  t.notOk((await admin.get<Untyped>('Subscription')).body.entry)
})

t.test('notifies a super administrator of a named Project', async (t) => {
  const socket = await openSocket(t, url)
  const subscribeIn = (client: typeof admin, project: string) =>
    client.post<Untyped>('Subscription', { ...aSubscription, meta: { project } })
  const made = await subscribeIn(superAdmin, botica.project.id)
  const token = await getBindingToken(superAdmin, made.body.id)
  socket.say({ type: 'bind-with-token', payload: { token } })
  await socket.heard(isHandshake)
  const foreign = await botica.createTenant()
  await foreign.admin.create({ resourceType: 'Patient' })
  const patient = await admin.create({ resourceType: 'Patient' })
  const message = await socket.heard(isEvent)
  t.equal(message.entry[1].resource.id, patient.id)

  const own = await subscribeIn(foreign.admin, botica.project.id)
  t.equal((await admin.get(`Subscription/${own.body.id}`)).status, 404)
  t.match(await subscribeIn(superAdmin, crypto.randomUUID()), {
    status: 400,
    body: { issue: [{ expression: ['Subscription.meta.project'] }] },
  })
})

const aSubscription = {
  resourceType: 'Subscription',
  status: 'active',
  reason: 'Test',
  criteria: 'Patient',
  channel: { type: 'websocket' },
}

t.test('the binding token comes with its types, by GET and POST', async (t) => {
  const id = await subscribe(admin, 'Patient')
  for (const method of ['get', 'post'] as const) {
    const answer = await admin[method]<Untyped>(`Subscription/${id}/$get-ws-binding-token`, {})
    const found = new Map(answer.body.parameter.map((item: Untyped) => [item.name, item]))
    t.match(found.get('token'), { valueString: /^ey/ })
    t.match(found.get('expiration'), { valueDateTime: /^\d{4}-/ })
    t.match(found.get('subscription'), { valueString: id })
    t.match(found.get('websocket-url'), { valueUrl: url })
  }
  const { id: clientId, secret } = botica.adminCredentials
  const Authorization = `Basic ${Buffer.from(`${clientId}:${secret}`).toString('base64')}`
  const path = `Subscription/${id}/$get-ws-binding-token`
  t.equal((await botica.anonymous.get(path, { Authorization })).status, 200)
})

t.test('a bound socket receives its events in order until it unbinds', async (t) => {
  const socket = await openSocket(t, url)
  socket.say({ type: 'ping' })
  t.same(await socket.heard(), { type: 'pong' })
  const { id, token } = await bound(admin, socket, 'Patient?active=true')
  socket.say({ type: 'bind-with-token', payload: { token } })
  t.match((await socket.heard()).entry[0].resource, {
    type: 'handshake',
    subscription: { reference: `Subscription/${id}` },
  })
  const made = await admin.post<Untyped>('Patient', { resourceType: 'Patient', active: true })
  await admin.put(`Patient/${made.body.id}`, { ...made.body, gender: 'female' })
  await admin.put(`Patient/${made.body.id}`, { ...made.body, active: false })
  const events = [await socket.heard(isEvent), await socket.heard(isEvent)]
  for (const [i, event] of events.entries()) {
    t.match(event, { resourceType: 'Bundle', type: 'history', timestamp: /^\d{4}/ })
    const focus = { reference: `Patient/${made.body.id}`, display: `Patient/${made.body.id}` }
    t.match(event.entry[0].resource, {
      subscription: { reference: `Subscription/${id}` },
      notificationEvent: [{ eventNumber: String(i + 1), focus }],
    })
    t.equal(event.entry[1].resource.meta.versionId, String(i + 1))
  }

  socket.say({ type: 'unbind-from-token', payload: { token } })
  await until(async () => (await admin.get(`Subscription/${id}`)).status === 404, 60_000)
  await admin.post('Patient', { resourceType: 'Patient', active: true })
  const other = await bound(admin, socket, 'Basic')
  await admin.post('Basic', { resourceType: 'Basic', code: { text: 'x' } })
  t.match((await socket.heard(isEvent)).entry[0].resource, {
    subscription: { reference: `Subscription/${other.id}` },
  })
  t.notOk(socket.unheard.some(isEvent))
})

t.test('removes the Subscriptions of a closed socket', async (t) => {
  const socket = await openSocket(t, url)
  const { id } = await bound(admin, socket, 'Patient')
  const watches = () =>
    services.database.query({
      text: 'select 1 from active_subscription where id = $1',
      values: [id],
    })
  t.equal((await watches()).length, 1)
  socket.webSocket.close()
  await until(async () => (await admin.get(`Subscription/${id}`)).status === 404, 60_000)
  t.equal((await watches()).length, 0)
})

t.test('keeps a Subscription while a socket of another process is bound to it', async (t) => {
  const socket = await openSocket(t, url)
  const { id, token } = await bound(admin, socket, 'Patient')
  const second = await openSocket(t, socketUrl(await botica.startWeb()))
  second.say({ type: 'bind-with-token', payload: { token } })
  await second.heard(isHandshake)
  second.say({ type: 'unbind-from-token', payload: { token } })
  second.say({ type: 'bind-with-token', payload: { token } })
  t.equal(notificationType(await second.heard()), 'handshake', 'binds again')
  second.webSocket.close()
  await second.closed
  await admin.post('Patient', { resourceType: 'Patient' })
  t.match((await socket.heard(isEvent)).entry[1].resource, { resourceType: 'Patient' })
  socket.webSocket.close()
  await until(async () => (await admin.get(`Subscription/${id}`)).status === 404, 60_000)
})

t.test('ends a deleted Subscription on any process’s socket', async (t) => {
  const socket = await openSocket(t, socketUrl(await botica.startWeb()))
  const { id } = await bound(admin, socket, 'Patient')
  await admin.post('Patient', { resourceType: 'Patient' })
  t.match((await socket.heard(isEvent)).entry[1].resource, { resourceType: 'Patient' })
  const other = await bound(admin, socket, 'Basic')
  await admin.del(`Subscription/${id}`)
  t.match(await socket.heard(isOutcome), says(`Subscription/${id} has ended`))
  await admin.post('Patient', { resourceType: 'Patient' })
  await admin.post('Basic', { resourceType: 'Basic', code: { text: 'x' } })
  t.match((await socket.heard(isEvent)).entry[0].resource, {
    subscription: { reference: `Subscription/${other.id}` },
  })
  await admin.del(`Subscription/${other.id}`)
  t.match(await socket.heard(isOutcome), says(`Subscription/${other.id} has ended`))
  t.equal(await socket.closed, 1013, 'without a Subscription, the client connects again')
})

/** Starts a web in this process with parts of the bus replaced; returns the URL of its sockets. */
async function startWebWith(t: Test, replaced: Partial<typeof services.bus>): Promise<string> {
  const port = await freePort()
  const web = await listen({ ...services, bus: { ...services.bus, ...replaced } }, port)
  t.teardown(() => web.stop(10_000))
  return socketUrl(`http://127.0.0.1:${port}/`)
}

t.test('closes a socket that binds while the last other one leaves', async (t) => {
  const late = await openSocket(t, url)
  let bindLate = async () => {}
  const publish: typeof services.bus.publish = async (kind, message, address) => {
    const count = await services.bus.publish(kind, message, address)
    if (message === 'left') await bindLate()
    return count
  }
  const socket = await openSocket(t, await startWebWith(t, { publish }))
  const { token } = await bound(admin, socket, 'Patient')
  bindLate = async () => {
    late.say({ type: 'bind-with-token', payload: { token } })
    await late.heard(isHandshake)
  }
  socket.webSocket.close()
  t.equal(await late.closed, 1013)
})

t.test('does not bind to a Subscription that is deleted meanwhile', async (t) => {
  const id = await subscribe(admin, 'Patient')
  const token = await getBindingToken(admin, id)
  const listenAfterDeletion: typeof services.bus.listen = async (kind, hear, address) => {
    if (address === id) await admin.del(`Subscription/${id}`)
    return services.bus.listen(kind, hear, address)
  }
  const socket = await openSocket(t, await startWebWith(t, { listen: listenAfterDeletion }))
  socket.say({ type: 'bind-with-token', payload: { token } })
  t.match(await socket.heard(), says(`Subscription/${id} does not exist any more`))
  t.equal((await admin.get(`Subscription/${id}`)).status, 404)
})

t.test('a heartbeat names every bound Subscription', async (t) => {
  const socket = await openSocket(t, url)
  const ids = []
  for (const criteria of ['Patient', 'Basic']) {
    ids.push((await bound(admin, socket, criteria)).id)
  }
  const beat = await socket.heard((message) => notificationType(message) === 'heartbeat')
  const named = beat.entry.map(({ resource }: Untyped) => resource.subscription.reference)
  t.same(
    named,
    ids.map((id) => `Subscription/${id}`),
  )
})

t.test('tokens that do not bind are answered', async (t) => {
  const socket = await openSocket(t, url)
  const bind = (token: string) => socket.say({ type: 'bind-with-token', payload: { token } })
  bind('nonsense')
  t.match(await socket.heard(), says('Token failed to validate. Check token expiry.'))
  const id = await subscribe(admin, 'Patient')
  const token = await getBindingToken(admin, id)
  await admin.del(`Subscription/${id}`)
  bind(token)
  t.match(await socket.heard(), says(`Subscription/${id} does not exist any more`))
  const medplum = await openSdk(botica)
  bind(medplum.getAccessToken() ?? '')
  t.match(await socket.heard(), says('Token is of no subscription'))
  t.equal(await socket.closed, 1008)
})

t.test('closes the socket after invalid messages', async (t) => {
  const odd = await openSocket(t, url)
  for (let i = 0; i < 19; i++) odd.webSocket.send(i % 2 === 0 ? 'not JSON' : '{"type":"other"}')
  odd.say({ type: 'ping' })
  t.same(await odd.heard(), { type: 'pong' })
  odd.webSocket.send('null')
  t.equal(await odd.closed, 1008)
  const large = await openSocket(t, url)
  large.say({ type: 'ping', payload: 'x'.repeat(1024 * 1024) })
  t.equal(await large.closed, 1009)
})

t.test('rejects web sockets at other paths and from other origins', async (t) => {
  const status = async (address: string, origin?: string) => {
    const webSocket = new WebSocket(address, origin === undefined ? {} : { origin })
    webSocket.on('error', () => webSocket.terminate())
    const opened = once(webSocket, 'open').then(() => 101)
    opened.catch(() => undefined)
    const refused = once(webSocket, 'unexpected-response').then(([, answer]) => answer.statusCode)
    const found = await Promise.race([opened, refused])
    webSocket.terminate()
    return found
  }
  t.equal(await status(`${url}/more`), 404)
  t.equal(await status(url.replace('subscriptions-r4', 'other')), 404)
  t.equal(await status(url, 'https://evil.example.org'), 403)
  t.equal(await status(url, 'https://app.example.org'), 101)
})

t.test('a client that asks for HTTP/2 is answered in HTTP/1.1', async (t) => {
  const headers = { Connection: 'Upgrade, HTTP2-Settings', Upgrade: 'h2c', 'HTTP2-Settings': '' }
  const asked = request(`${baseUrl}healthcheck`, { headers }).end()
  const [answer] = await once(asked, 'response')
  answer.resume()
  t.equal(answer.statusCode, 200)
})

t.test('a stop closes the sockets and their bindings', async (t) => {
  const port = await freePort()
  const web = await listen(services, port)
  const socket = await openSocket(t, socketUrl(`http://127.0.0.1:${port}/`))
  const { id } = await bound(admin, socket, 'Patient')
  await web.stop(10_000)
  t.equal(await socket.closed, 1001)
  t.equal((await admin.get(`Subscription/${id}`)).status, 404)
})

t.test('a Project without the feature has no web sockets', async (t) => {
  const { project, admin: other } = await botica.createTenant()
  const { body } = await superAdmin.get(`Project/${project.id}`)
  await superAdmin.put(`Project/${project.id}`, { ...body, features: ['bots'] })
  services.principals.forget()
  const id = await subscribe(other, 'Patient')
  t.match((await other.get(`Subscription/${id}/$get-ws-binding-token`)).body, {
    issue: [{ details: { text: 'WebSocket subscriptions not enabled for current project' } }],
  })
})

t.test('reports the address of web sockets in metadata and their number in metrics', async (t) => {
  t.match((await admin.get<Untyped>('metadata')).body.rest[0].extension, [{ valueUri: url }])
  const socket = await openSocket(t, url)
  await bound(admin, socket, 'Patient')
  const { text } = await botica.anonymous.get('/metrics')
  t.match(text, /^sockets_open\{process="[^"]+"\} [1-9]/m)
  t.match(text, /^socket_bindings\{process="[^"]+"\} [1-9]/m)
  t.match(text, /^socket_messages_total\{kind="event-notification",process="[^"]+"\} [1-9]/m)
})
