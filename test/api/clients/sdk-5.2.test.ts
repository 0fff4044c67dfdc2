/** The client library of Medplum 5.2, against the service and bundled into a bot. */
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'
import { isOk, MedplumClient, OperationOutcomeError } from 'medplum52'
import t from 'tap'
import { anAdt, anAgent, connectAgent, HL7 } from '../../fixtures/agents/agents.ts'
import { ALL_QUEUES, openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { aPerson, PASSWORD } from '../../fixtures/people.ts'
import { setBrowserGlobals } from '../../fixtures/sdk.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

// Workers of other files would take the events.
const env = { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: ALL_QUEUES }
const botica = await openBotica(t, { worker: true, env })
const { admin, adminCredentials, baseUrl, project, services } = botica

setBrowserGlobals()

const open = () => new MedplumClient({ baseUrl, fetch, cacheTime: 0 })

async function openSignedIn(): Promise<MedplumClient> {
  const medplum = open()
  await medplum.startClientLogin(adminCredentials.id, adminCredentials.secret)
  return medplum
}

t.test('signs a person and a client in, and out', async (t) => {
  const { email, profile } = await aPerson(services, project)
  const medplum = open()
  const login = await medplum.startLogin({ email, password: PASSWORD, remember: false })
  t.equal((await medplum.processCode(login.code ?? '')).id, profile.id)
  t.match(medplum.getProject(), { id: project.id })
  const token = medplum.getAccessToken()
  await medplum.signOut()
  const after = await fetch(`${baseUrl}auth/me`, { headers: { Authorization: `Bearer ${token}` } })
  t.equal(after.status, 401)

  const client = await openSignedIn()
  t.match(client.getProfile(), { resourceType: 'ClientApplication', id: adminCredentials.id })
  t.equal(client.isProjectAdmin(), true)
  await t.rejects(open().startClientLogin(adminCredentials.id, 'wrong'), Error)
})

t.test('creates, reads, changes, searches and deletes', async (t) => {
  const medplum = await openSignedIn()
  const identifier = [{ system: 'urn:sdk', value: crypto.randomUUID() }]
  const made = await medplum.createResource({ resourceType: 'Patient', identifier })
  const query = `identifier=urn:sdk|${identifier[0]?.value}`
  t.same(await medplum.readResource('Patient', made.id), made)
  t.same(await medplum.searchOne('Patient', query), made)
  const again = await medplum.createResourceIfNoneExist(
    { resourceType: 'Patient', identifier },
    query,
  )
  t.equal(again.id, made.id)
  const female = await medplum.updateResource({ ...made, gender: 'female' })
  t.match(female, { gender: 'female', meta: { versionId: '2' } })
  const patched = await medplum.patchResource('Patient', made.id, [
    { op: 'replace', path: '/gender', value: 'other' },
  ])
  t.match(patched, { gender: 'other', meta: { versionId: '3' } })
  t.equal((await medplum.readHistory('Patient', made.id)).entry?.length, 3)
  t.equal((await medplum.search('Patient', `${query}&_total=accurate`)).total, 1)
  const pages: number[] = []
  await medplum.createResource({ resourceType: 'Patient', identifier })
  for await (const page of medplum.searchResourcePages('Patient', `${query}&_count=1`)) {
    pages.push(page.length)
  }
  t.same(pages, [1, 1])
  const batch = await medplum.executeBatch({
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [{ request: { method: 'GET', url: `Patient/${made.id}` } }],
  })
  t.match(batch.entry?.[0], { resource: { id: made.id }, response: { status: '200' } })
  const { data } = await medplum.graphql(`{ Patient(id: "${made.id}") { gender } }`)
  t.same(data, { Patient: { gender: 'other' } })
  t.ok(isOk(await medplum.deleteResource('Patient', made.id)))
  await t.rejects(medplum.readResource('Patient', made.id), OperationOutcomeError)
})

t.test('receives the notifications of a Subscription over a web socket', async (t) => {
  const medplum = await openSignedIn()
  t.teardown(() => medplum.getSubscriptionManager().closeWebSocket())
  const emitter = medplum.subscribeToCriteria('Communication?sender=Practitioner/52')
  const received: Untyped[] = []
  let isConnected = false
  emitter.addEventListener('connect', () => {
    isConnected = true
  })
  emitter.addEventListener('message', ({ payload }) => received.push(payload))
  await until(async () => isConnected, 60_000)
  const sender = { reference: 'Practitioner/52' } as const
  const made = await medplum.createResource({
    resourceType: 'Communication',
    status: 'completed',
    sender,
  })
  await until(async () => received.length === 1, 60_000)
  t.match(received[0].entry[1].resource, { id: made.id, sender })
})

t.test('runs bots, and pushes to agents', async (t) => {
  const medplum = await openSignedIn()
  const bot = await aBot(botica, handler('return { got: event.input }'))
  t.same(await medplum.executeBot(bot, { a: 1 }), { got: { a: 1 } })

  const url = 'mllp://10.0.0.9:5000'
  const device = await medplum.createResource({ resourceType: 'Device', url })
  const id = await anAgent(admin)
  const agent = await connectAgent(t, baseUrl, admin, id)
  const answer = medplum.pushToAgent({ reference: `Agent/${id}` }, device, anAdt('m'), HL7, true)
  const { callback, body, remote } = await agent.heard()
  t.equal(body, anAdt('m'))
  t.equal(remote, url)
  const ack = { contentType: HL7, statusCode: 200, body: 'MSH|ack' }
  agent.say({ type: 'agent:transmit:response', callback, channel: 'x', remote, ...ack })
  t.equal(await answer, ack.body)
})

t.test('loads in a bot that bundles it, whose sockets do not open', async (t) => {
  const contents = `import { createReference, MedplumClient, parseSearchRequest } from 'medplum52'
    export async function handler(medplum, { input }) {
      const patient = await medplum.createResource(input)
      const client = new MedplumClient({ baseUrl: 'https://example.com/', fetch: () => undefined })
      const refused = []
      for (const open of [() => new WebSocket('wss://example.com'), () => WebSocket('wss://x')]) {
        try { open() } catch (error) { refused.push(error.message) }
      }
      return {
        reference: createReference(patient).display,
        search: parseSearchRequest('Patient?name=a').filters.length,
        baseUrl: client.getBaseUrl(),
        refused,
        open: [WebSocket.OPEN, WebSocket.prototype.CLOSED],
      }
    }`
  const resolveDir = fileURLToPath(new URL('../../..', import.meta.url))
  for (const minify of [false, true]) {
    const { outputFiles } = buildSync({
      stdin: { contents, resolveDir },
      bundle: true,
      platform: 'node',
      format: 'cjs',
      minify,
      write: false,
    })
    const code = outputFiles[0]?.text ?? ''
    const bot = await aBot(botica, code, { filename: 'index.cjs' })
    const input = { resourceType: 'Patient', name: [{ family: 'Bundled' }] }
    const { body } = await execute(admin, bot, input)
    t.match(body, {
      reference: 'Bundled',
      search: 1,
      baseUrl: 'https://example.com/',
      refused: [/^Bots cannot open web sockets/, /WebSocket/],
      open: [1, 3],
    })
  }
})
