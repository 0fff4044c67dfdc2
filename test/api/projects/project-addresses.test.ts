import { randomUUID } from 'node:crypto'
import t from 'tap'
import { upload } from '../../fixtures/binaries.ts'
import { openBotica, type Tenant, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true, env: { LARGE_BODY_BYTES: '10000' } })
const { admin, anonymous, baseUrl, superAdmin } = botica

interface Page {
  readonly link: readonly { readonly relation: string; readonly url: string }[]
  readonly entry: readonly { readonly fullUrl: string }[]
}

const scoped = ({ project }: Pick<Tenant, 'project'>) => `/projects/${project.id}/fhir/R4`
const own = scoped(botica)
const base = `${baseUrl}${own.slice(1)}/`

t.test('serves FHIR requests below the address of the project', async (t) => {
  for (const prefix of [own, `/api${own}`]) {
    const created = await admin.post<{ id: string }>(`${prefix}/Patient`, aPatient())
    t.equal(created.status, 201, created.text)
    const path = `Patient/${created.body.id}`
    t.equal(created.headers.get('location'), `${base}${path}/_history/1`)
    t.equal((await admin.get(`${prefix}/${path}`)).status, 200)
    t.equal((await admin.get(path)).status, 200, 'the same resource without the prefix')
    t.equal((await admin.get(`${prefix}/${path}/_history/1`)).status, 200)
    t.equal((await admin.del(`${prefix}/${path}`)).status, 200)
  }
  t.equal((await anonymous.get(`${own}/metadata`)).status, 200)
  t.equal((await anonymous.get(`${own}/Patient`)).status, 401)
})

t.test('keeps the prefix in the links of its responses', async (t) => {
  const patients = [await admin.create(aPatient()), await admin.create(aPatient())]
  const ids = patients.map(({ id }) => id).join(',')
  const { body } = await admin.get<Page>(`${own}/Patient?_id=${ids}&_count=1`)
  for (const { url } of body.link) t.ok(url.startsWith(`${base}Patient?`), url)
  for (const { fullUrl } of body.entry) t.ok(fullUrl.startsWith(`${base}Patient/`), fullUrl)
  const next = body.link.find(({ relation }) => relation === 'next')?.url ?? ''
  const second = await admin.get<Page>(new URL(next).pathname + new URL(next).search)
  t.equal(second.body.entry.length, 1)

  const bot = await aBot(botica, handler('return 1'))
  const run = `${own}/Bot/${bot}/$execute`
  const accepted = await admin.post(run, {}, { Prefer: 'respond-async' })
  t.equal(accepted.status, 202)
  const status = accepted.headers.get('content-location') ?? ''
  t.ok(status.startsWith(`${base}job/`), status)
  t.ok([200, 202].includes((await admin.get(new URL(status).pathname)).status))
})

t.test('keeps the prefix in responses to large bodies', async (t) => {
  const name = [{ family: 'x'.repeat(20_000) }]
  const created = await admin.post<{ id: string }>(`${own}/Patient`, aPatient({ name }))
  t.equal(created.status, 201)
  const location = `${base}Patient/${created.body.id}/_history/1`
  t.equal(created.headers.get('location'), location)
})

t.test('understands absolute references with and without the prefix', async (t) => {
  const patient = await admin.create(aPatient())
  const reference = `${base}Patient/${patient.id}`
  const observation = await admin.create(anObservation(reference))
  t.match(observation.subject, { reference: `Patient/${patient.id}` })
  for (const prefix of [base, `${baseUrl}fhir/R4/`]) {
    const { body } = await admin.get<Page>(
      `${own}/Observation?subject=${prefix}Patient/${patient.id}`,
    )
    t.equal(body.entry?.length, 1, prefix)
  }
})

t.test('returns the same 403 for a foreign and an unknown project', async (t) => {
  const other = await botica.createTenant()
  const foreign = await admin.get(`${scoped(other)}/Patient`)
  const unknown = await admin.get(`/projects/${randomUUID()}/fhir/R4/Patient`)
  t.match(foreign, { status: 403, body: { issue: [{ code: 'forbidden' }] } })
  t.equal(unknown.status, 403)
  const withoutIds = (text: string) => text.replace(/"extension":.*/s, '')
  t.equal(withoutIds(foreign.text), withoutIds(unknown.text))
  t.equal((await superAdmin.get(`${scoped(other)}/Patient`)).status, 403)
  t.equal((await other.admin.get(`${scoped(other)}/Patient`)).status, 200)
  t.equal((await anonymous.get(`${scoped(other)}/Patient`)).status, 401)
  const write = await admin.post(`${scoped(other)}/Patient`, aPatient())
  t.equal(write.status, 403)
})

t.test('has no other routes below the address of a project', async (t) => {
  const root = `/projects/${botica.project.id}`
  const paths = ['auth/login', 'admin/projects', 'storage/1/1', 'fhir/R4x/Patient', 'oauth']
  for (const path of paths) {
    t.equal((await admin.get(`${root}/${path}`)).status, 404, path)
  }
  const twice = await admin.get(`${root}/projects/${botica.project.id}/fhir/R4/Patient`)
  t.equal(twice.status, 404)
  t.equal((await admin.get(`/admin${root}`)).status, 200)
})

t.test('names the address of the project in the CapabilityStatement', async (t) => {
  for (const client of [anonymous, admin]) {
    for (const [path, url] of [
      [`${own}/metadata`, base],
      ['/fhir/R4/metadata', `${baseUrl}fhir/R4/`],
    ] as const) {
      const { body } = await client.get<Untyped>(path)
      t.equal(`${body.implementation.url}/`, url)
      const [oauth] = body.rest[0].security.extension
      const uris = oauth.extension.map(({ valueUri }: Untyped) => valueUri)
      t.ok(uris.includes(url.replace('fhir/R4/', 'oauth2/token')), uris.join())
    }
  }
})

t.test('accepts absolute addresses with the prefix in bundles and attachments', async (t) => {
  const content = await upload(admin, Buffer.from('a'), 'text/plain')
  for (const prefix of [base, `${baseUrl}fhir/R4/`]) {
    const { body } = await admin.post<Untyped>(own, {
      resourceType: 'Bundle',
      type: 'batch',
      entry: [
        { request: { method: 'GET', url: `${prefix}Patient?_count=1` } },
        {
          request: { method: 'POST', url: `${prefix}Media` },
          resource: {
            resourceType: 'Media',
            status: 'completed',
            content: { url: `${prefix}Binary/${content.id}` },
          },
        },
      ],
    })
    const [found, made] = body.entry
    t.match(found, { response: { status: '200' } })
    t.ok(found.resource.link[0].url.startsWith(base))
    t.match(made, { response: { status: '201' } })
    const media = await admin.get<Untyped>(/Media\/[\w-]+/.exec(made.response.location)?.[0] ?? '')
    t.match(media.body.content.url, /\/storage\//, 'is stored as a Binary of this service')
  }
  const { admin: stranger, project } = await botica.createTenant()
  const foreign = await admin.post<Untyped>(own, {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [
      { request: { method: 'GET', url: `${baseUrl}projects/${project.id}/fhir/R4/Patient` } },
    ],
  })
  t.match(foreign.body.entry[0].response.status, /^4/)
  t.equal((await stranger.get('Patient')).status, 200)
})

t.test('keeps the prefix in the addresses and results of jobs', async (t) => {
  const { id } = await admin.create(aPatient())
  const url = `Patient?_id=${id}`
  const bundle = {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'GET', url } }],
  }
  const prefer = { Prefer: 'respond-async' }
  const accepted = await admin.post(own, bundle, prefer)
  const exported = await admin.get(`${own}/Patient/$export`, prefer)
  for (const { status, headers } of [accepted, exported]) {
    t.equal(status, 202)
    t.ok(headers.get('content-location')?.startsWith(base), headers.get('content-location') ?? '')
  }
  const done = async ({ headers }: typeof accepted) => {
    const { pathname } = new URL(headers.get('content-location') ?? '')
    let found: Untyped
    await until(async () => {
      found = await admin.get(pathname)
      return found.status !== 202
    }, 60_000)
    t.equal(found.status, 200, found.text)
    return found
  }
  const { parameter } = (await done(accepted)).body.output
  const { text } = await admin.get(`${own}/${parameter[0].valueReference.reference}`)
  t.ok(text.includes(`${base}Patient/${id}`), text)
  t.notOk(text.includes(`${baseUrl}fhir/R4`), text)
  const { body } = await done(exported)
  t.ok(body.request.startsWith(base), body.request)
  for (const { url } of body.output) t.ok(url.startsWith(base), url)
})

t.test('describes the addresses of projects in OpenAPI', async (t) => {
  const { body } = await anonymous.get<Untyped>('/openapi.json')
  const root = baseUrl.replace(/\/$/, '')
  const both = [root, `${root}/projects/{project}`]
  for (const [path, { servers = [] }] of Object.entries<Untyped>(body.paths)) {
    const isScoped = /^\/(fhir|oauth2|\.well-known|mcp|cds-services|auth\/me$)/.test(path)
    const urls = servers.map(({ url }: Untyped) => url)
    t.same(urls, isScoped ? both : [], path)
  }
})
