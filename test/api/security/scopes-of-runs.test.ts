/** Deferred work is limited to the access of the request that started it. */
import t from 'tap'
import { scopedClient, scopedPerson } from '../../fixtures/attacks/scoped.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import {
  aBot,
  type BotDetails,
  execute,
  finished,
  handler,
  type Untyped,
} from '../../fixtures/bots/bots.ts'
import { type Client, createClient } from '../../fixtures/client.ts'
import { kickOff } from '../../fixtures/exports/exports.ts'
import { aSubscription, startReceiver } from '../../fixtures/http/receiver.ts'
import { anEmail } from '../../fixtures/invites.ts'
import { aPerson, decodeJwtClaims } from '../../fixtures/people.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const PATIENCE_MS = 90_000
const botica = await openBotica(t, {
  worker: true,
  env: {
    DATABASE_URL: await createDatabase(t),
    HOOK_TARGETS: 'all',
    WORKER_QUEUES: 'bots-sync,bots-async,requests,export,import,change',
  },
})
const { admin, adminCredentials, services, project, baseUrl } = botica
const receiver = await startReceiver(t)
const patient = await admin.create(aPatient())
const AS_USER: BotDetails = { fields: { runAsUser: true } }

const READS = `
  try { return (await medplum.readResource('Patient', '${patient.id}')).id }
  catch (error) { return error.outcome.id }`
const reading = await aBot(botica, handler(READS), AS_USER)
const narrow = await scopedClient(botica, adminCredentials, 'system/Bot.rs')
const wider = await scopedClient(botica, adminCredentials, 'system/Bot.rs system/Patient.rs')

t.test('runs a bot as its caller within the scope of the caller', async (t) => {
  t.equal((await execute(admin, reading)).text, patient.id)
  t.equal((await execute(narrow, reading)).text, 'forbidden')
  t.equal((await execute(wider, reading)).text, patient.id)
})

t.test('runs a bot with a membership as itself', async (t) => {
  t.equal((await execute(narrow, await aBot(botica, handler(READS)))).text, patient.id)
})

t.test('does not reuse results of a wider token for a narrower one', async (t) => {
  const blind = await scopedClient(botica, adminCredentials, 'system/Patient.rs')
  t.equal((await execute(admin, reading)).status, 200)
  t.equal((await execute(blind, reading)).status, 403)
})

t.test('keeps the scope in an asynchronous run', async (t) => {
  const accepted = await execute(narrow, reading, {}, { Prefer: 'respond-async' })
  t.equal(accepted.status, 202)
  const job = await finished(narrow, accepted.headers.get('content-location'))
  t.match(job.output.parameter, [{ name: 'responseBody', valueString: 'forbidden' }])
})

t.test('shows the result of a job only to tokens with its scope', async (t) => {
  const path = async (client: Client) => {
    const accepted = await execute(client, reading, {}, { Prefer: 'respond-async' })
    return String(accepted.headers.get('content-location'))
  }
  const [whole, own] = [await path(admin), await path(wider)]
  t.equal((await narrow.get(whole)).status, 404)
  t.equal((await narrow.get(whole.replace('status', 'result'))).status, 404)
  t.equal((await narrow.del(whole)).status, 404)
  t.equal((await narrow.get(own)).status, 404)
  t.match((await finished(wider, own)).output.parameter, [{ valueString: patient.id }])
})

t.test('keeps the scope in project operations and in bots called by bots', async (t) => {
  const calling = handler(`return await medplum.executeBot('${reading}', {})`)
  const caller = await aBot(botica, calling, AS_USER)
  t.equal((await execute(narrow, caller)).text, 'forbidden')
  t.equal((await execute(wider, caller)).text, patient.id)

  const url = 'https://medplum.com/fhir/StructureDefinition/operationDefinition-implementation'
  await admin.post('OperationDefinition', {
    resourceType: 'OperationDefinition',
    extension: [{ url, valueReference: { reference: `Bot/${reading}` } }],
    name: 'reads',
    status: 'active',
    kind: 'operation',
    code: 'reads',
    system: true,
    type: false,
    instance: false,
  })
  const scope = 'system/Bot.rs system/OperationDefinition.rs'
  const app = await scopedClient(botica, adminCredentials, scope)
  t.equal((await app.post('$reads', {})).text, 'forbidden')
})

t.test('gives a run for an administrator’s app no administrator rights', async (t) => {
  const code = `
    const asked = [
      ['/admin/projects/${project.id}/invite', { resourceType: 'Practitioner', firstName: 'A', lastName: 'B', email: event.input.email }],
      ['/email/v1/send', { to: 'a@example.org', subject: 'x', text: 'y' }]]
    const ends = []
    for (const [path, body] of asked)
      ends.push(await medplum.post(path, body).then(() => 'done', (error) => error.outcome.id))
    ends.push(await medplum.search('ProjectMembership').then(() => 'done', (error) => error.outcome.id))
    return ends`
  const bot = await aBot(botica, handler(code), AS_USER)
  t.same((await execute(narrow, bot, { email: anEmail() })).body, [
    'forbidden',
    'forbidden',
    'forbidden',
  ])
  t.same((await execute(admin, bot, { email: anEmail() })).body, ['done', 'done', 'done'])
})

t.test('shares no module state of a run with a narrower one', async (t) => {
  const code = `let kept
    exports.handler = async (medplum, event) => (kept ??= event.input.secret) ?? 'nothing'`
  const bot = await aBot(botica, code, AS_USER)
  t.equal((await execute(admin, bot, { secret: 'remembered' })).text, 'remembered')
  t.equal((await execute(narrow, bot)).text, 'nothing')
})

t.test('limits a token of a run to the scope and lifetime of the run', async (t) => {
  const bot = await aBot(botica, handler('return medplum.getAccessToken()'), AS_USER)
  const { text: token } = await execute(narrow, bot)
  t.equal(decodeJwtClaims(token).scope, 'system/Bot.rs')
  const thief = createClient(baseUrl, token)
  await until(async () => (await thief.get(`Bot/${bot}`)).status === 401, PATIENCE_MS)
  const binding = handler(`
    const { id } = await medplum.createResource({ resourceType: 'Subscription', status: 'active',
      reason: 'x', criteria: 'Patient', channel: { type: 'websocket' } })
    return await medplum.get(medplum.fhirUrl('Subscription', id, '$get-ws-binding-token'))
      .then(() => 'done', (error) => error.outcome.issue[0].details.text)`)
  const answer = await execute(admin, await aBot(botica, binding, AS_USER))
  t.equal(answer.text, 'A bot cannot bind a web socket')
})

t.test('does not treat a token of a run as a person', async (t) => {
  const member = await aPerson(services, project, { isProjectScoped: true })
  const person = await scopedPerson(botica, member, 'openid')
  const parameter = [{ name: 'email', valueString: 'thief@example.org' }]
  const changing = handler(`
    const asked = { resourceType: 'Parameters', parameter: ${JSON.stringify(parameter)} }
    const url = medplum.fhirUrl('User', '${member.user.id}', '$update-email')
    return await medplum.post(url, asked).then(() => 'done', (error) => error.outcome.id)`)
  t.equal((await execute(person, await aBot(botica, changing, AS_USER))).text, 'forbidden')
})

t.test('keeps the scope in asynchronous bundles', async (t) => {
  const entry = [`Patient/${patient.id}`, 'Bot', 'ProjectMembership'].map((url) => ({
    request: { method: 'GET', url },
  }))
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  const accepted = await narrow.post('', bundle, { Prefer: 'respond-async' })
  t.equal(accepted.status, 202, accepted.text)
  const job = await finished(narrow, accepted.headers.get('content-location'))
  const [{ valueReference }] = job.output.parameter
  const { body } = await admin.get<Untyped>(valueReference.reference, { Accept: '*/*' })
  const statuses = body.entry.map(({ response }: Untyped) => response.status)
  t.same(statuses, ['403', '200', '403'])
})

t.test('shows an export only to tokens with its scope', async (t) => {
  const whole = await kickOff(admin, '$export')
  t.equal((await narrow.get(whole)).status, 404)
  t.equal((await narrow.del(whole)).status, 404)
  const own = await kickOff(wider, '$export?_type=Patient')
  t.not((await wider.get(own)).status, 404)
  t.equal((await narrow.get(own)).status, 404)
  t.not((await admin.get(own)).status, 404)
})

t.test('delivers through a Subscription only resources in the scope of its author', async (t) => {
  const scope = 'system/Subscription.cruds system/Patient.rs system/Bot.rs'
  const app = await scopedClient(botica, adminCredentials, scope)
  const hook = (path: string) => aSubscription('Observation', `${receiver.url}${path}`)
  t.equal((await app.post('Subscription', hook('/narrow'))).status, 201)
  t.equal((await admin.post('Subscription', hook('/wide'))).status, 201)
  const patients = aSubscription('Patient', `${receiver.url}/patients`)
  t.equal((await app.post('Subscription', patients)).status, 201)
  await admin.create(anObservation(`Patient/${patient.id}`))
  await admin.create(aPatient())
  await receiver.got('/wide', 1)
  await receiver.got('/patients', 1)
  t.same(receiver.on('/narrow'), [])
})

t.test('starts a bot of a Subscription within the scope of its author', async (t) => {
  const code = handler(`
    const end = await medplum.search('Observation').then(() => 'done', (error) => error.outcome.id)
    await fetch('${receiver.url}/bot', { method: 'POST', body: end })`)
  const bot = await aBot(botica, code, AS_USER)
  const scope = 'system/Subscription.cruds system/Patient.rs system/Bot.rs'
  const app = await scopedClient(botica, adminCredentials, scope)
  const made = await app.post('Subscription', aSubscription('Patient', `Bot/${bot}`))
  t.equal(made.status, 201)
  const spoofed = await app.put(`Subscription/${made.body.id}`, {
    ...made.body,
    meta: { author: { reference: `ClientApplication/${adminCredentials.id}` } },
    reason: 'again',
  })
  t.equal(spoofed.status, 200)
  await admin.create(aPatient())
  const [received] = await receiver.got('/bot', 1)
  t.equal(received?.body, 'forbidden')
})
