import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { signIn } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, findInvitedUsers, invite } from '../../fixtures/invites.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const SECONDS = 60_000
const botica = await openBotica(t, {
  worker: true,
  // Workers of other files would take the requests.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, superAdmin, services } = botica
const projectId = botica.project.id

type Page = Resource & { entry?: { resource: Resource & { id: string } }[]; total?: number }

const clone = (body: unknown, headers?: Record<string, string>, client = superAdmin) =>
  client.post<Resource & { id: string }>(`Project/${projectId}/$clone`, body, headers)

async function findAdmin(id: string) {
  const made = await superAdmin.post<{ id: string; secret: string }>(
    `/admin/projects/${id}/client`,
    { name: 'Reader' },
  )
  const found = await superAdmin.get<Page>(
    `ProjectMembership?profile=ClientApplication/${made.body.id}`,
  )
  const member = found.body.entry?.[0]?.resource
  await superAdmin.put(`ProjectMembership/${member?.id}`, { ...member, admin: true })
  return await signIn(botica.baseUrl, made.body.id, made.body.secret)
}

const patient = await admin.create({ resourceType: 'Patient', name: [{ family: 'Original' }] })
const observation = await admin.create({
  resourceType: 'Observation',
  status: 'final',
  code: { text: 'x' },
  subject: { reference: `Patient/${patient.id}` },
  valueQuantity: { value: 1.5 },
})
const content = Buffer.alloc(100_000, 'content ')
const binary = await admin.post<Resource & { id: string }>('Binary', content, {
  'Content-Type': 'application/octet-stream',
})
const document = await admin.create({
  resourceType: 'DocumentReference',
  status: 'current',
  content: [{ attachment: { url: `Binary/${binary.body.id}` } }],
})
const email = anEmail()
await invite(admin, projectId, { email, resourceType: 'Patient', password: 'a password to keep' })
await superAdmin.post(
  `/admin/projects/${projectId}/secrets`,
  JSON.stringify([{ name: 'KEY', valueString: 'planted-secret' }]),
  { 'Content-Type': 'application/json' },
)

t.test('a copy has new ids, and everything in it refers to the copy', async (t) => {
  const made = await clone({ name: 'Copy' })
  t.match(made, { status: 201, body: { resourceType: 'Project', name: 'Copy', strictMode: true } })
  t.not(made.body.id, projectId)
  t.equal(made.body.secret, undefined)
  t.match(made.headers.get('location'), made.body.id)
  const reader = await findAdmin(made.body.id)
  const found = await reader.get<Page>('Observation?_include=Observation:subject')
  const [copied, subject] = found.body.entry?.map(({ resource }) => resource) ?? []
  t.match(subject, { name: [{ family: 'Original' }] })
  t.not(subject?.id, patient.id)
  t.not(copied?.id, observation.id)
  t.match(copied, { subject: { reference: `Patient/${subject?.id}` } })
  t.match(found.text, '"value":1.5')
  const documents = await reader.get<Page>('DocumentReference')
  const attachment = documents.body.entry?.[0]?.resource.content as [
    { attachment: { url: string } },
  ]
  t.notMatch(documents.text, binary.body.id)
  t.notMatch(documents.text, document.id)
  t.equal((await reader.get(attachment[0].attachment.url)).text, content.toString())
  t.equal((await admin.get(`Observation/${copied?.id}`)).status, 404, 'the original knows nothing')
})

t.test('people and programs are copied without their credentials', async (t) => {
  const made = await clone({ name: 'People' })
  const users = await findInvitedUsers(services, email)
  const copied = users.find(({ meta }) => meta?.project === made.body.id)
  t.match(copied, { project: { reference: `Project/${made.body.id}` } })
  t.equal(copied?.passwordHash, undefined)
  const members = await superAdmin.get<Page>(`ProjectMembership?project=Project/${made.body.id}`)
  t.match(members.text, `User/${copied?.id}`)
  const clients = await superAdmin.get<Page>(`/admin/projects/${made.body.id}`)
  t.notMatch(clients.text, 'planted-secret')
  const reader = await findAdmin(made.body.id)
  const own = (await reader.get<Page>('ClientApplication')).text
  t.notMatch(own, botica.adminCredentials.id)
  t.notMatch(own, botica.adminCredentials.secret)
  const told = await reader.get<Page>('AuditEvent')
  t.notMatch(told.text, botica.adminCredentials.id, 'the past stays where it was')
})

t.test('copies only the given types and ids', async (t) => {
  const counts = async (body: Record<string, unknown>) => {
    const made = await clone({ name: 'Part', ...body })
    const reader = await findAdmin(made.body.id)
    const count = async (type: string) =>
      (await reader.get<Page>(`${type}?_summary=count`)).body.total
    return [await count('Patient'), await count('Observation')]
  }
  t.same(await counts({ resourceTypes: ['Observation'] }), [0, 1])
  t.same(await counts({ includeIds: [patient.id] }), [1, 0])
  t.same(await counts({ excludeIds: [observation.id], resourceTypes: ['Observation'] }), [0, 0])
})

t.test('with Prefer: respond-async a worker copies', async (t) => {
  const accepted = await clone({ name: 'Later' }, { Prefer: 'respond-async' })
  t.equal(accepted.status, 202)
  const status = accepted.headers.get('content-location') ?? ''
  await until(async () => (await superAdmin.get(status)).status === 200, SECONDS)
  t.match((await superAdmin.get(status)).body, { status: 'completed' })
  t.equal((await superAdmin.get<Page>('Project?name=Later')).body.entry?.length, 1)
})

t.test('rejects invalid clones', async (t) => {
  for (const body of [[], { name: '' }, { resourceTypes: ['No'] }, { includeIds: 1 }]) {
    t.equal((await clone(JSON.stringify(body), { 'Content-Type': 'application/json' })).status, 400)
  }
  const misspelt = await clone({ name: 'x', excludeId: [patient.id] })
  t.match(misspelt, { status: 400, body: { issue: [{ expression: ['excludeId'] }] } })
  t.equal((await clone({ name: 'x' }, {}, admin)).status, 403)
  t.equal((await superAdmin.post(`Project/${randomUUID()}/$clone`, {})).status, 404)
})

t.test('leaves nothing of a copy that fails half-way', async (t) => {
  const lost = await admin.post<Resource & { id: string }>('Binary', content, {
    'Content-Type': 'application/octet-stream',
  })
  const [row] = await services.database.query<{ content: string }>({
    text: 'select content from version where id = $1',
    values: [lost.body.id],
  })
  const { url }: { url: string } = JSON.parse(row?.content ?? '{}')
  await services.storage.delete(new URL(url).pathname)
  const name = `Broken ${randomUUID()}`
  t.equal((await clone({ name })).status, 404)
  const found = await superAdmin.get<Page>(`Project?name:exact=${encodeURIComponent(name)}`)
  t.equal(found.body.entry, undefined)
})
