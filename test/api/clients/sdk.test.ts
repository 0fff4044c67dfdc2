import { ContentType, type MedplumClient, OperationOutcomeError } from '@medplum/core'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient, MRN_SYSTEM } from '../../fixtures/resources.ts'
import { openSdk } from '../../fixtures/sdk.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // Workers of other files would take the requests.
  env: { DATABASE_URL: await createDatabase(t) },
})
const medplum = await openSdk(botica)

async function refusal(work: Promise<unknown>): Promise<string | undefined> {
  try {
    await work
    return 'no failure'
  } catch (error) {
    if (!(error instanceof OperationOutcomeError)) throw error
    return error.outcome.id ?? error.outcome.issue[0]?.details?.text
  }
}

function identifierQuery({ identifier }: Resource): string {
  const [{ value }] = identifier as [{ value: string }]
  return `identifier=${MRN_SYSTEM}|${value}`
}

t.test('returns the profile after a client login', async (t) => {
  const { id } = botica.adminCredentials
  const profile = { resourceType: 'ClientApplication', id }
  t.match(medplum.getProfile(), profile)
  t.match(await medplum.getProfileAsync(), profile)
  t.match(medplum.getProject(), { resourceType: 'Project', id: botica.project.id })
  t.equal(medplum.isProjectAdmin(), true)
  t.equal(medplum.isAuthenticated(), true)
  t.equal(medplum.getActiveLogin()?.project.reference, `Project/${botica.project.id}`)
})

t.test('creates, reads, updates, patches and deletes a resource', async (t) => {
  const made = await medplum.createResource(aPatient())
  t.match(made.meta, { versionId: '1', project: botica.project.id, author: { reference: String } })
  medplum.invalidateAll()
  t.same(await medplum.readResource('Patient', made.id), made)
  t.same(await medplum.readReference({ reference: `Patient/${made.id}` }), made)

  const same = await medplum.updateResource(made)
  t.same(same, made)
  const changed = await medplum.updateResource({ ...made, gender: 'female' })
  t.equal(changed.meta?.versionId, '2')
  const patched = await medplum.patchResource('Patient', made.id, [
    { op: 'test', path: '/meta/versionId', value: '2' },
    { op: 'replace', path: '/gender', value: 'other' },
  ])
  t.match(patched, { gender: 'other', meta: { versionId: '3' } })

  const history = await medplum.readHistory('Patient', made.id)
  t.same(
    history.entry?.map((entry: { resource: Resource }) => entry.resource.meta?.versionId),
    ['3', '2', '1'],
  )
  t.same(await medplum.readVersion('Patient', made.id, '1'), made)

  await medplum.deleteResource('Patient', made.id)
  t.equal(await refusal(medplum.readResource('Patient', made.id)), 'gone')
  t.equal(await refusal(medplum.readResource('Patient', crypto.randomUUID())), 'not-found')
})

t.test('throws an outcome for invalid and missing resources', async (t) => {
  const wrong = { ...aPatient(), colour: 'red' }
  t.equal(await refusal(medplum.createResource(wrong)), 'Invalid additional property "colour"')
  t.equal(await refusal(medplum.updateResource(aPatient({ id: crypto.randomUUID() }))), 'not-found')
  t.equal(
    await refusal(
      medplum.updateResource(await medplum.createResource(aPatient()), {
        headers: { 'If-Match': 'W/"7"' },
      }),
    ),
    'precondition-failed',
  )
})

t.test('returns bundles, resources and all pages of a search', async (t) => {
  const family = `Paged${process.pid}`
  const made = await Promise.all(
    Array.from({ length: 23 }, () => medplum.createResource(aPatient({ name: [{ family }] }))),
  )
  const ids = made.map(({ id }) => id).sort()

  const bundle = await medplum.search('Patient', `family=${family}&_count=5&_total=accurate`)
  t.match(bundle, { resourceType: 'Bundle', type: 'searchset', total: 23 })
  t.equal(bundle.entry?.length, 5)
  t.match(bundle.entry?.[0]?.search, { mode: 'match' })
  const one = await medplum.searchOne('Patient', identifierQuery(made[7] ?? aPatient()))
  t.equal(one?.id, made[7]?.id)
  t.equal(await medplum.searchOne('Patient', { identifier: 'nobody' }), undefined)
  const found = await medplum.searchResources('Patient', { family, _count: '100' })
  t.same(found.map((patient: Resource) => patient.id).sort(), ids)
  t.equal(found.bundle.type, 'searchset')

  const paged: string[] = []
  const sizes: number[] = []
  for await (const page of medplum.searchResourcePages('Patient', { family, _count: 5 })) {
    paged.push(...page.map((patient: Resource) => String(patient.id)))
    sizes.push(page.length)
  }
  t.same(paged.sort(), ids)
  t.same(sizes, [5, 5, 5, 5, 3])
})

t.test('creates one resource by conditional writes', async (t) => {
  const patient = aPatient()
  const query = identifierQuery(patient)
  const made = await medplum.createResourceIfNoneExist(patient, query)
  t.equal((await medplum.createResourceIfNoneExist(patient, query)).id, made.id)
  const upserted = await medplum.upsertResource({ ...patient, gender: 'other' }, query)
  t.match(upserted, { id: made.id, gender: 'other', meta: { versionId: '2' } })
  t.equal((await medplum.upsertResource(upserted, query)).meta?.versionId, '2')
  const other = aPatient()
  const created = await medplum.upsertResource(other, identifierQuery(other))
  t.equal(created.meta?.versionId, '1')
})

t.test('answers batches and transactions entry by entry', async (t) => {
  const link = `urn:uuid:${crypto.randomUUID()}`
  const observation = {
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'Weight' },
    subject: { reference: link },
  }
  const bundle = {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      { resource: observation, request: { method: 'POST', url: 'Observation' } },
      { fullUrl: link, resource: aPatient(), request: { method: 'POST', url: 'Patient' } },
    ],
  }
  const done = await medplum.executeBatch(bundle)
  t.match(done, {
    type: 'transaction-response',
    entry: [{ response: { status: '201' } }, { response: { status: '201' } }],
  })
  const [first, second] = done.entry ?? []
  t.match(first?.resource, { subject: { reference: `Patient/${second?.resource?.id}` } })

  const wrong = { ...observation, status: undefined }
  const mixed = {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [
      { resource: wrong, request: { method: 'POST', url: 'Observation' } },
      { request: { method: 'GET', url: `Patient/${second?.resource?.id}` } },
    ],
  }
  t.match(await medplum.executeBatch(mixed), {
    type: 'batch-response',
    entry: [
      { response: { status: '400', outcome: { resourceType: 'OperationOutcome' } } },
      { response: { status: '200' }, resource: { id: second?.resource?.id } },
    ],
  })
  t.equal(
    await refusal(medplum.executeBatch({ ...mixed, type: 'transaction' })),
    'Missing required property',
  )
})

t.test('throws an outcome for an invalid token', async (t) => {
  const stranger = await openSdk(botica, { login: false })
  stranger.setAccessToken('eyJhbGciOiJFUzI1NiJ9.e30.AAAA')
  t.equal(await refusal(stranger.searchResources('Patient')), 'unauthorized')
  t.equal(
    await refusal(stranger.startClientLogin(botica.adminCredentials.id, 'wrong')),
    'Failed to fetch tokens',
  )
})

t.test('accepts basic credentials', async (t) => {
  const basic = await openSdk(botica, { login: false })
  basic.setBasicAuth(botica.adminCredentials.id, botica.adminCredentials.secret)
  const made = await basic.createResource(aPatient())
  t.equal((await basic.readResource('Patient', made.id)).id, made.id)
})

t.test('parses the rate limit header', async (t) => {
  const limited = await openBotica(t, { env: { RATE_LIMIT_PER_MINUTE: '1000' } })
  const sdk = await openSdk(limited)
  await sdk.searchResources('Patient')
  t.match(sdk.rateLimitStatus(), [
    { name: 'requests', remainingUnits: Number, secondsUntilReset: Number },
  ])
})

interface DeployedBot {
  readonly id: string
  readonly identifier: [{ readonly system: string; readonly value: string }]
}

async function deployBot(sdk: MedplumClient, code: string): Promise<DeployedBot> {
  const bot = await sdk.post(
    `admin/projects/${botica.project.id}/bot`,
    { name: 'Echo' },
    ContentType.JSON,
  )
  const identifier = [{ system: 'https://example.org/bots', value: bot.id }]
  const named = await sdk.updateResource({ ...bot, identifier })
  await sdk.post(sdk.fhirUrl('Bot', bot.id, '$deploy'), { code, filename: 'index.js' })
  return named
}

t.test('executes bots with text, JSON, FHIR and HL7, by id and by identifier', async (t) => {
  const bot = await deployBot(
    medplum,
    `exports.handler = async (medplum, event) => {
      const { input, contentType } = event
      if (contentType === 'x-application/hl7-v2+er7') return input.buildAck()
      if (contentType === 'text/plain') return input.toUpperCase()
      if (input.resourceType === 'Patient') return await medplum.createResource(input)
      return { got: input }
    }`,
  )
  const [identifier] = bot.identifier
  for (const name of [bot.id, identifier]) {
    t.equal(await medplum.executeBot(name, 'hello', ContentType.TEXT), 'HELLO')
    t.same(await medplum.executeBot(name, { a: [1] }, ContentType.JSON), { got: { a: [1] } })
    const made = await medplum.executeBot(name, aPatient(), ContentType.FHIR_JSON)
    t.match(await medplum.readResource('Patient', made.id), { id: made.id })
    const message = 'MSH|^~\\&|A|B|C|D|20260101||ADT^A01|77|P|2.5\rPID|1||x'
    const ack = await medplum.executeBot(name, message, ContentType.HL7_V2)
    t.match(ack, /^MSH\|[^\r]*\|ACK[^\r]*\rMSA\|AA\|77/)
  }
  t.equal(await refusal(medplum.executeBot(crypto.randomUUID(), {})), 'not-found')
})

t.test('polls an accepted run for its result', async (t) => {
  const bot = await deployBot(
    medplum,
    'exports.handler = async (medplum, event) => ({ late: event.input.n + 1 })',
  )
  const result = await medplum.executeBot(bot.id, { n: 1 }, ContentType.JSON, {
    headers: { Prefer: 'respond-async' },
    pollStatusOnAccepted: true,
    pollStatusPeriod: 100,
  })
  t.match(result, {
    resourceType: 'AsyncJob',
    status: 'completed',
    output: { parameter: [{ name: 'responseBody', valueString: '{"late":2}' }] },
  })
})
