/** Imports the message kind of the sockets, to publish a notification of another Project. */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { SOCKET_MESSAGES } from '../../../shared/subscriptions/socket-subscriptions.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import type { Client } from '../../fixtures/client.ts'
import { decodeJwtClaims } from '../../fixtures/people.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'
import {
  bound,
  getBindingToken,
  notificationType,
  openSocket,
  socketUrl,
  subscribe,
} from '../../fixtures/sockets.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const DATABASE_URL = await createDatabase(t)
const env = { DATABASE_URL, WORKER_QUEUES: 'bots-sync,change' }
const botica = await openBotica(t, { worker: true, env })
const { admin, services, superAdmin, project } = botica
const { redis } = services
const url = socketUrl(botica.baseUrl)
const isEvent = (message: Untyped) => notificationType(message) === 'event-notification'
const isOutcome = ({ resourceType }: Untyped) => resourceType === 'OperationOutcome'

const OWN = { resourceType: 'Subscription' }

t.test('applies the policy of the login to socket events', async (t) => {
  const member = await clientUnder(botica, OWN, {
    resourceType: 'Patient',
    criteria: 'Patient?active=true',
    hiddenFields: ['birthDate'],
  })
  const socket = await openSocket(t, url)
  await bound(member, socket, 'Patient')
  const patient = { resourceType: 'Patient', birthDate: '1990-01-01' }
  await admin.post('Patient', { ...patient, active: false })
  await admin.post('Patient', { ...patient, active: true })
  const event = await socket.heard(isEvent)
  t.match(event.entry[0].resource.notificationEvent, [{ eventNumber: '1' }])
  t.match(event.entry[1].resource, { active: true })
  t.notOk(event.entry[1].resource.birthDate)
})

t.test('denies web sockets under a policy without Subscription', async (t) => {
  const member = await clientUnder(botica, { resourceType: 'Patient' })
  const aSubscription = {
    resourceType: 'Subscription',
    status: 'active',
    reason: 'Test',
    criteria: 'Patient',
    channel: { type: 'websocket' },
  }
  t.equal((await member.post('Subscription', aSubscription)).status, 403)
  const id = await subscribe(admin, 'Patient')
  t.equal((await member.get(`Subscription/${id}`)).status, 403)
  t.equal((await member.get(`Subscription/${id}/$get-ws-binding-token`)).status, 400)
})

t.test('sends no changes of another Project', async (t) => {
  const { admin: foreign } = await botica.createTenant()
  const socket = await openSocket(t, url)
  await bound(admin, socket, 'Basic')
  const theirs = await openSocket(t, url)
  await bound(foreign, theirs, 'Basic')
  const basic = (text: string) => ({ resourceType: 'Basic', code: { text } })
  await foreign.post('Basic', basic('theirs'))
  t.match((await theirs.heard(isEvent)).entry[1].resource, { code: { text: 'theirs' } })
  await admin.post('Basic', basic('ours'))
  t.match((await socket.heard(isEvent)).entry[1].resource, { code: { text: 'ours' } })
})

t.test('drops a notification of another Project whose Subscription has the same id', async (t) => {
  const { admin: foreign, project: other } = await botica.createTenant()
  const { id: resource } = await foreign.create({
    resourceType: 'Basic',
    code: { text: 'theirs' },
  })
  const [tenant] = await services.database.query<{ project: number }>({
    text: 'select project from tenant where fhir_id = $1',
    values: [other.id],
  })
  const socket = await openSocket(t, url)
  const { id } = await bound(admin, socket, 'Basic')
  const notification = {
    project: tenant?.project ?? 0,
    type: typeNumber('Basic'),
    resource,
    ver: 1,
    change: 'create' as const,
    at: new Date().toISOString(),
  }
  await services.bus.publish(SOCKET_MESSAGES, notification, id)
  await admin.post('Basic', { resourceType: 'Basic', code: { text: 'ours' } })
  const event = await socket.heard(isEvent)
  t.match(event.entry[0].resource.notificationEvent, [{ eventNumber: '1' }])
  t.match(event.entry[1].resource, { code: { text: 'ours' } })
})

t.test('reports the end of its login to a socket, and sends nothing more', async (t) => {
  const { client: member } = await botica.createMember()
  const socket = await openSocket(t, url)
  const { id } = await bound(member, socket, 'Basic')
  const login = `Login/${decodeJwtClaims(member.token ?? '').login_id}`
  const { body } = await superAdmin.get<Untyped>(login)
  t.equal((await superAdmin.put(login, { ...body, revoked: true })).status, 200)
  services.principals.forget()
  await admin.post('Basic', { resourceType: 'Basic', code: { text: 'unheard' } })
  t.match(await socket.heard((message) => isEvent(message) || isOutcome(message)), {
    resourceType: 'OperationOutcome',
    issue: [{ details: { text: `Subscription/${id} has ended` } }],
  })
  t.equal(await socket.closed, 1008)
  await until(async () => (await admin.get(`Subscription/${id}`)).status === 404, 60_000)
  t.notOk(socket.unheard.some(isEvent))
})

t.test('ends a web socket Subscription at its time', async (t) => {
  const socket = await openSocket(t, url)
  const end = new Date(Date.now() + 10_000)
  const { id, token } = await bound(admin, socket, 'Basic', { end: end.toISOString() })
  await delay(end.getTime() - Date.now())
  const outcome = { issue: [{ details: { text: `Subscription/${id} has ended` } }] }
  const late = await openSocket(t, url)
  late.say({ type: 'bind-with-token', payload: { token } })
  t.match(await late.heard(), outcome)
  await admin.post('Basic', { resourceType: 'Basic', code: { text: 'late' } })
  t.match(await socket.heard((message) => isEvent(message) || isOutcome(message)), outcome)
  t.equal(await socket.closed, 1008)
})

t.test('filters socket events by interaction and FHIRPath', async (t) => {
  const extension = [
    {
      url: 'https://medplum.com/fhir/StructureDefinition/subscription-supported-interaction',
      valueCode: 'update',
    },
    {
      url: 'https://medplum.com/fhir/StructureDefinition/fhir-path-criteria-expression',
      valueString: '%previous.active != %current.active',
    },
  ]
  const socket = await openSocket(t, url)
  await bound(admin, socket, 'Patient', { extension })
  const made = await admin.post<Untyped>('Patient', { resourceType: 'Patient', active: true })
  const path = `Patient/${made.body.id}`
  await admin.put(path, { ...made.body, gender: 'male' })
  await admin.put(path, { ...made.body, active: false })
  t.match((await socket.heard(isEvent)).entry[1].resource, { active: false })
})

t.test('a socket holds 100 Subscriptions', async (t) => {
  const { client: member } = await botica.createMember()
  const socket = await openSocket(t, url)
  for (let i = 0; i < 100; i++) await bound(member, socket, 'Patient')
  const token = await getBindingToken(member, await subscribe(member, 'Patient'))
  socket.say({ type: 'bind-with-token', payload: { token } })
  t.match(await socket.heard(isOutcome), {
    issue: [{ details: { text: 'A socket has at most 100 subscriptions' } }],
  })
})

t.test('a member has 500 web-socket Subscriptions, a Project 10,000', async (t) => {
  const fill = async (key: string, upTo: number) => {
    const later = Date.now() + 60_000
    const missing = upTo - (await redis.zcard(key))
    const items = Array.from({ length: missing }, () => [later, randomUUID()]).flat()
    await redis.zadd(key, ...items)
  }
  const post = (client: Client) =>
    client.post('Subscription', {
      resourceType: 'Subscription',
      status: 'active',
      reason: 'Test',
      criteria: 'Patient',
      channel: { type: 'websocket' },
    })
  const { client: member, id } = await botica.createMember()
  const session = await services.principals.forProfile(`ClientApplication/${id}`)
  const prefix = 'botica:socket-subscriptions'
  await fill(`${prefix}:member:${session?.membership.id}`, 499)
  t.equal((await post(member)).status, 201)
  t.match(await post(member), {
    status: 422,
    body: {
      issue: [
        {
          details: { text: 'A member has at most 500 web-socket subscriptions' },
          expression: ['Subscription.channel.type'],
        },
      ],
    },
  })
  await fill(`${prefix}:project:${project.id}`, 9_999)
  t.equal((await post(admin)).status, 201)
  t.equal((await post(admin)).status, 422)
})

t.test('disconnects a client that does not read and serves others', async (t) => {
  const { admin: other } = await botica.createTenant()
  const [slow, quick] = [await openSocket(t, url), await openSocket(t, url)]
  await bound(other, slow, 'Basic')
  await bound(other, quick, 'Basic')
  slow.webSocket.pause()
  // More than 4 MiB plus the kernel's socket buffers.
  const text = 'x'.repeat(1024 * 1024)
  for (let i = 0; i < 24; i++) await other.post('Basic', { resourceType: 'Basic', code: { text } })
  for (let i = 0; i < 24; i++) await quick.heard(isEvent)
  slow.webSocket.resume()
  // On a slow machine an unanswered heartbeat may come first.
  t.match(String(await slow.closed), /^(1013|1006)$/)
})
