/** Imports the sweep of jobs, which a worker starts only after days. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { removeOldJobs } from '../../../../shared/jobs/async-requests.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import type { Answer, Client } from '../../../fixtures/client.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { anObservation, aPatient, MRN_SYSTEM, syntheaTexts } from '../../../fixtures/resources.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // Workers of other files would take the requests.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { client } = await botica.createMember()
const { database } = botica.services
const later = { Prefer: 'respond-async' }
const DONE_MS = 120_000

interface Job extends Resource {
  readonly status: string
  readonly output: {
    readonly parameter: readonly {
      readonly name: string
      readonly valueReference?: { readonly reference: string }
      readonly resource?: Resource
    }[]
  }
}

interface ResponseBundle extends Resource {
  readonly entry: readonly {
    readonly response: { readonly status: string }
    readonly resource?: Resource
  }[]
}

const aBundle = (type: string, ...resources: Resource[]) => ({
  resourceType: 'Bundle',
  type,
  entry: resources.map((resource) => ({
    request: { method: 'POST', url: resource.resourceType },
    resource,
  })),
})

function statusUrl(answer: Answer): string {
  t.equal(answer.status, 202)
  t.match(answer.body, { resourceType: 'OperationOutcome', id: 'accepted' })
  const url = answer.headers.get('content-location') ?? ''
  t.match(answer.text, JSON.stringify(url))
  t.match(answer.headers.get('preference-applied'), 'respond-async')
  return url
}

async function finished(caller: Client, url: string): Promise<Job> {
  let last: Answer<Job> | undefined
  await until(async () => {
    last = await caller.get<Job>(url)
    return last.status === 200
  }, DONE_MS)
  if (last === undefined) throw new Error('There was no answer')
  return last.body
}

async function downloadResult(caller: Client, { output }: Job) {
  const results = output.parameter.find(({ name }) => name === 'results')
  // Returns the raw content unless the client asks for the resource.
  const { body } = await caller.get<ResponseBundle>(results?.valueReference?.reference ?? '')
  return body
}

for (const type of ['batch', 'transaction']) {
  t.test(`runs a ${type} asynchronously with a Binary as result`, async (t) => {
    const url = statusUrl(await client.post('', aBundle(type, aPatient(), aPatient()), later))
    const job = await finished(client, url)
    t.match(job, { resourceType: 'AsyncJob', status: 'completed', request: /fhir\/R4\/$/ })
    const result = await downloadResult(client, job)
    t.match(result, { type: `${type}-response`, entry: [{ response: { status: '201' } }, {}] })
    const made = await client.get(`Patient/${result.entry[0]?.resource?.id}`, {
      'X-Medplum': 'extended',
    })
    t.equal(made.status, 200)
    t.match(made.body.meta?.author?.reference, /^ClientApplication\//)
  })
}

t.test('runs each of many requests that are accepted at once', async (t) => {
  const bundle = aBundle('transaction', aPatient())
  const answers = await Promise.all(
    Array.from({ length: 60 }, () => client.post('', bundle, later)),
  )
  t.same(new Set(answers.map(({ status }) => status)), new Set([202]))
  const urls = answers.map(({ headers }) => headers.get('content-location') ?? '')
  const jobs = await Promise.all(urls.map((url) => finished(client, url)))
  t.same(new Set(jobs.map(({ status }) => status)), new Set(['completed']))
})

t.test('applies other preferences to an asynchronous result', async (t) => {
  const headers = { Prefer: 'respond-async, return=minimal' }
  const url = statusUrl(await client.post('', aBundle('batch', aPatient()), headers))
  const result = await downloadResult(client, await finished(client, url))
  t.match(result.entry[0]?.response, { status: '201' })
  t.notOk(result.entry[0]?.resource)
})

t.test('writes a whole record asynchronously', async (t) => {
  const [text] = await syntheaTexts()
  const headers = { ...later, 'Content-Type': 'application/fhir+json' }
  const job = await finished(client, statusUrl(await client.post('', text, headers)))
  t.ok((await downloadResult(client, job)).entry.length > 50)
})

t.test('rejects invalid requests before they start', async (t) => {
  for (const body of [aPatient(), { resourceType: 'Bundle', type: 'collection' }]) {
    t.equal((await client.post('', body, later)).status, 400)
  }
  const form = { ...later, 'Content-Type': 'application/x-www-form-urlencoded' }
  for (const body of ['name=a\0b', Buffer.from('name=\xe9', 'latin1')]) {
    t.equal((await client.post('Patient/_search', body, form)).status, 400)
  }
})

t.test('deletes the stored response of a request with its job', async (t) => {
  const [old, young] = await Promise.all(
    [1, 2].map(async () => {
      const url = statusUrl(await client.post('', aBundle('batch', aPatient()), later))
      const { id, output } = await finished(client, url)
      const [result] = output.parameter
      return { url, id, binary: result?.valueReference?.reference ?? '' }
    }),
  )
  const { superAdmin } = botica
  // The result of a bot may name any Binary.
  const named = { name: 'results', valueReference: { reference: young?.binary } }
  const naming = await superAdmin.create({
    resourceType: 'AsyncJob',
    meta: { project: botica.project.id },
    status: 'completed',
    requestTime: new Date().toISOString(),
    request: 'http://localhost/',
    output: { resourceType: 'Parameters', parameter: [named] },
  })
  await database.query({
    text: `update resource set lu = lu - interval '7 days 1 minute' where id = any($1::uuid[])`,
    values: [[old?.id, naming.id]],
  })
  t.ok((await removeOldJobs(botica.services)) >= 1)
  t.equal((await client.get(old?.url ?? '')).status, 404)
  const versions = await database.query({
    text: 'select 1 from version where id = $1',
    values: [old?.binary.replace('Binary/', '')],
  })
  t.same(versions, [])
  t.equal((await superAdmin.get(`AsyncJob/${naming.id}`)).status, 404)
  t.equal((await client.get(young?.binary ?? '')).status, 200)
})

t.test('ends the job with the outcome of a failed transaction', async (t) => {
  const mrn = randomUUID()
  const patient = aPatient({ identifier: [{ system: MRN_SYSTEM, value: mrn }] })
  const bundle = aBundle('transaction', patient, { resourceType: 'Patient', foo: 1 })
  const job = await finished(client, statusUrl(await client.post('', bundle, later)))
  t.equal(job.status, 'error')
  t.match(job.output.parameter, [
    { name: 'outcome', resource: { issue: [{ expression: ['Bundle.entry[1]', 'Patient.foo'] }] } },
  ])
  const found = await client.get<{ entry?: unknown }>(`Patient?identifier=${MRN_SYSTEM}|${mrn}`)
  t.notOk(found.body.entry)
})

t.test('hides the job from other members', async (t) => {
  const { client: other } = await botica.createMember()
  const { admin: stranger } = await botica.createTenant()
  const url = statusUrl(await client.post('', aBundle('batch', aPatient()), later))
  for (const caller of [other, stranger]) {
    t.equal((await caller.get(url)).status, 404)
    t.equal((await caller.del(url)).status, 404)
  }
  await finished(client, url)
})

t.test('deletes the rows of ended jobs', async (t) => {
  const isEmpty = async () => {
    const rows = await database.query({
      text: `select 1 from job where kind = 'request' and input->>'projectId' = $1`,
      values: [botica.project.id],
    })
    return rows.length === 0
  }
  // The row is deleted shortly after the job reports its end.
  await until(isEmpty, DONE_MS)
  t.pass()
})

t.test('rejects the cancel of a finished job', async (t) => {
  const url = statusUrl(await client.post('', aBundle('batch', aPatient()), later))
  await finished(client, url)
  t.equal((await client.del(url)).status, 400)
})

t.test('propagates accounts to a compartment of any size by a worker', async (t) => {
  const { admin } = botica
  const { id } = await admin.create(aPatient())
  const observation = await admin.create(anObservation(`Patient/${id}`))
  const account = { reference: 'Organization/later' }
  const sent = {
    resourceType: 'Parameters',
    parameter: [
      { name: 'accounts', valueReference: account },
      { name: 'propagate', valueBoolean: true },
    ],
  }
  t.equal((await client.post(`Patient/${id}/$set-accounts`, sent, later)).status, 403)
  const url = statusUrl(await admin.post(`Patient/${id}/$set-accounts`, sent, later))
  const done = await downloadResult(admin, await finished(admin, url))
  t.match(done, { parameter: [{ name: 'resourcesUpdated', valueInteger: 2 }] })
  const extended = { 'X-Medplum': 'extended' }
  t.match(await admin.get(`Observation/${observation.id}`, extended), {
    body: { meta: { accounts: [account] } },
  })
})
