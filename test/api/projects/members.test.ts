import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { signIn } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, invite, type Membership } from '../../fixtures/invites.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services } = botica
const projectId = botica.project.id
const foreign = await botica.createTenant()
const unknown = randomUUID()

type Page = Resource & { total?: number; entry?: { resource: Resource }[] }

const memberPath = (id: string, project = projectId) => `/admin/projects/${project}/members/${id}`

async function aMember(changes: Record<string, unknown> = {}): Promise<Membership> {
  const made = await invite(admin, projectId, { email: anEmail(), sendEmail: false, ...changes })
  if (made.status !== 200) throw new Error(made.text)
  return made.body
}

t.test('reads a member, and finds it by its properties', async (t) => {
  const patient = await aMember({ resourceType: 'Patient' })
  t.match(await admin.get(memberPath(patient.id)), { status: 200, body: { id: patient.id } })
  const members = `/admin/projects/${projectId}/members`
  const found = await admin.get<Page>(`${members}?profile-type=Patient&_total=accurate`)
  t.match(found.body, { resourceType: 'Bundle', type: 'searchset', total: 1 })
  const humans = await admin.get<Page>(`${members}?profile-type:not=ClientApplication,Bot`)
  t.same(
    humans.body.entry?.map(({ resource }) => resource.id),
    [patient.id],
  )
  const theirs = `/admin/projects/${foreign.project.id}/members`
  t.equal((await superAdmin.get<Page>(theirs)).body.entry?.length, 1)
  t.equal((await admin.get(theirs)).status, 403)
})

t.test('a POST of the whole membership changes it', async (t) => {
  const member = await aMember()
  const { body } = await admin.get(memberPath(member.id))
  for (const [method, flag] of [
    ['post', true],
    ['put', false],
  ] as const) {
    const changed = await admin[method](memberPath(member.id), { ...body, admin: flag })
    t.match(changed, { status: 200, body: { id: member.id, admin: flag } })
  }
  const { admin: _, ...without } = body
  const removed = await admin.post(memberPath(member.id), without)
  t.equal(removed.status, 200)
  t.equal(removed.body.admin, undefined, 'removes omitted elements')
})

t.test('a JSON Patch changes one field, whether it was there or not', async (t) => {
  const member = await aMember()
  const replaced = await admin.patch(memberPath(member.id), [
    { op: 'replace', path: '/admin', value: true },
  ])
  t.match(replaced, { status: 200, body: { admin: true } })
  const policy = await admin.create({ resourceType: 'AccessPolicy', name: 'Ward' })
  const all = await admin.patch(memberPath(member.id), [
    { op: 'test', path: '/admin', value: true },
    { op: 'remove', path: '/admin' },
    { op: 'add', path: '/userName', value: 'george' },
    { op: 'copy', from: '/userName', path: '/externalId' },
    { op: 'move', from: '/userName', path: '/userName' },
    { op: 'add', path: '/access', value: [{ policy: { reference: `AccessPolicy/${policy.id}` } }] },
  ])
  t.match(all, { status: 200, body: { userName: 'george', externalId: 'george' } })
  const medplum = await openSdk(botica)
  const patched = await medplum.patch(`admin/projects/${projectId}/members/${member.id}`, [
    { op: 'replace', path: '/userName', value: 'sdk' },
  ])
  t.match(patched, { userName: 'sdk' })
})

t.test('rejects invalid changes', async (t) => {
  const member = await aMember()
  const path = memberPath(member.id)
  const own = (await admin.get(path)).body
  const post = async (changes: Record<string, unknown>) =>
    (await admin.post(path, { ...own, ...changes })).status
  t.equal(await post({ id: unknown }), 403)
  t.equal(await post({ resourceType: 'Patient' }), 403)
  for (const field of ['project', 'user', 'profile'])
    t.equal(await post({ [field]: undefined }), 400)
  t.equal(await post({ admin: 'x' }), 400)
  t.equal(await post({ accessPolicy: { reference: `AccessPolicy/${unknown}` } }), 400)
  const patch = async (...operations: unknown[]) => (await admin.patch(path, operations)).status
  t.equal(await patch({ op: 'test', path: '/admin', value: true }), 400)
  t.equal(await patch({ op: 'replace', path: '/userName', value: 'x' }), 400)
  t.equal(await patch({ op: 'remove', path: '/profile' }), 400)
  t.equal(await patch({ op: 'add', path: 'admin', value: true }), 400)
  const plain = { 'Content-Type': 'application/json' }
  t.equal((await admin.patch(path, '[]', plain)).status, 415)
  t.equal((await admin.get(path)).headers.get('etag'), 'W/"1"')
})

t.test('project and user are put back; the profile cannot change', async (t) => {
  const [member, other] = [await aMember(), await aMember()]
  const path = memberPath(member.id)
  const own = (await admin.get(path)).body
  const moved = await admin.post(path, {
    ...own,
    user: other.user,
    project: { reference: `Project/${foreign.project.id}` },
    userName: 'moved',
  })
  t.match(moved, { status: 200, body: { project: own.project, user: own.user } })
  const changed = { ...own, profile: other.profile }
  t.match(await admin.post(path, changed), {
    status: 400,
    body: { issue: [{ details: { text: 'Cannot change profile' } }] },
  })
  t.equal((await superAdmin.post(path, changed)).status, 200)
})

t.test('the same holds for FHIR writes', async (t) => {
  const [member, other] = [await aMember(), await aMember()]
  const path = `ProjectMembership/${member.id}`
  const own = (await admin.get(path)).body
  const changed = await admin.put(path, { ...own, admin: true, user: other.user })
  t.match(changed, { status: 200, body: { admin: true, user: own.user } })
  t.equal((await admin.put(path, { ...own, profile: other.profile })).status, 400)
  const foreignPolicy = await foreign.admin.create({ resourceType: 'AccessPolicy', name: 'x' })
  const accessPolicy = { reference: `AccessPolicy/${foreignPolicy.id}` }
  t.equal((await admin.put(path, { ...own, accessPolicy })).status, 400)
  const bundle = {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [
      { request: { method: 'PUT', url: path }, resource: { ...own, profile: other.profile } },
    ],
  }
  t.equal((await admin.post('', bundle)).status, 400)

  const create = async (changes: Record<string, unknown>, client = admin) => {
    const { resourceType, project, user, profile } = own
    const body = { resourceType, project, user, profile, ...changes }
    return (await client.post('ProjectMembership', body)).status
  }
  t.equal(await create({}), 201)
  t.equal(await create({ project: { reference: `Project/${foreign.project.id}` } }), 400)
  t.equal(await create({ profile: { reference: `Practitioner/${unknown}` } }), 400)
  t.equal(await create({ user: { reference: `User/${unknown}` } }), 400)
  const stranger = await invite(foreign.admin, foreign.project.id, { email: anEmail() })
  t.equal(await create({ user: stranger.body.user }), 400, 'a stranger is invited instead')
  t.equal(await create({ user: stranger.body.user }, superAdmin), 201)
})

t.test('If-Match guards every change', async (t) => {
  const member = await aMember()
  const path = memberPath(member.id)
  const own = (await admin.get(path)).body
  const stale = { 'If-Match': 'W/"7"' }
  t.equal((await admin.post(path, { ...own, admin: true }, stale)).status, 412)
  t.equal((await admin.put(path, { ...own, admin: true }, stale)).status, 412)
  const operations = [{ op: 'replace', path: '/admin', value: true }]
  t.equal((await admin.patch(path, operations, stale)).status, 412)
  t.equal((await admin.del(path, stale)).status, 412)
  t.equal((await admin.patch(path, operations, { 'If-Match': 'W/"1"' })).status, 200)
})

t.test('returns 404 for a member of another project', async (t) => {
  const theirs = (await invite(foreign.admin, foreign.project.id, { email: anEmail() })).body
  const own = (await foreign.admin.get(memberPath(theirs.id, foreign.project.id))).body
  const operations = [{ op: 'add', path: '/admin', value: true }]
  for (const [id, status] of [
    [theirs.id, 403],
    [unknown, 404],
  ] as const) {
    const path = memberPath(id)
    t.equal((await admin.get(path)).status, status)
    t.equal((await admin.post(path, { ...own, id })).status, status)
    t.equal((await admin.patch(path, operations)).status, status)
    t.equal((await admin.del(path)).status, status)
  }
  const { client } = await botica.createMember()
  const { id } = await aMember()
  t.equal((await client.get(memberPath(id))).status, 403)
  t.equal((await client.del(memberPath(id))).status, 403)
  t.equal((await botica.anonymous.get(memberPath(id))).status, 401)
  t.equal((await superAdmin.get(memberPath(id, unknown))).status, 404)
})

t.test('ends access within five seconds of removal; keeps user and profile', async (t) => {
  const { id, secret, client } = await botica.createMember({}, projectId)
  const [entry] = (await admin.get<Page>(`ProjectMembership?profile=ClientApplication/${id}`)).body
    .entry ?? [{ resource: { resourceType: '' } }]
  t.equal((await client.get('Patient')).status, 200)
  const removed = await admin.del(memberPath(entry?.resource.id ?? ''))
  t.match(removed, { status: 200, body: { resourceType: 'OperationOutcome', id: 'ok' } })
  t.equal((await client.get('Patient')).status, 401)
  await t.rejects(signIn(botica.baseUrl, id, secret))
  t.equal((await admin.get(`ClientApplication/${id}`)).status, 200)
})

t.test('rejects an inactive member until it is active again', async (t) => {
  const { id, client } = await botica.createMember({}, projectId)
  const found = await admin.get<Page>(`ProjectMembership?profile=ClientApplication/${id}`)
  const path = memberPath(found.body.entry?.[0]?.resource.id ?? '')
  await admin.patch(path, [{ op: 'add', path: '/active', value: false }])
  t.equal((await client.get('Patient')).status, 401)
  await admin.patch(path, [{ op: 'replace', path: '/active', value: true }])
  t.equal((await client.get('Patient')).status, 200)
})

t.test('rejects removing the owner of a project', async (t) => {
  const owned = await superAdmin.post<Membership>('Project/$init', {
    resourceType: 'Parameters',
    parameter: [
      { name: 'name', valueString: 'Owned' },
      { name: 'ownerEmail', valueString: anEmail() },
    ],
  })
  const found = await superAdmin.get<Page>(
    `/admin/projects/${owned.body.id}/members?profile-type=Practitioner`,
  )
  const id = found.body.entry?.[0]?.resource.id ?? ''
  const refused = {
    status: 400,
    body: { issue: [{ details: { text: 'Cannot delete the owner of the project' } }] },
  }
  t.match(await superAdmin.del(memberPath(id, owned.body.id)), refused)
  t.match(await superAdmin.del(`ProjectMembership/${id}`), refused)
  t.match(await superAdmin.post(`ProjectMembership/${id}/$expunge`), refused)
})

t.test('rejects deactivating the owner of a project', async (t) => {
  const { admin: colleague, project } = await botica.createTenant()
  const email = anEmail()
  const { body: owner } = await invite(colleague, project.id, { email, admin: true })
  const setOwner = async (value: object) => {
    const { body } = await superAdmin.get(`Project/${project.id}`)
    t.equal((await superAdmin.put(`Project/${project.id}`, { ...body, owner: value })).status, 200)
  }
  await setOwner(owner.user)
  const path = memberPath(owner.id, project.id)
  const scimUser = `/scim/v2/Users/${owner.id}`
  const { body: shown } = await colleague.get(scimUser)
  const { body: stored } = await colleague.get<Membership>(path)
  const inactive = { ...stored, active: false }
  const change = [{ op: 'add', path: '/active', value: false }]
  const Operations = [{ op: 'replace', path: 'active', value: false }]
  const scim = { 'Content-Type': 'application/scim+json' }
  const attempts = [
    () => colleague.patch(path, change),
    () => colleague.post(path, inactive),
    () => colleague.put(`ProjectMembership/${owner.id}`, inactive),
    () => colleague.patch(`ProjectMembership/${owner.id}`, change),
    () => colleague.patch(scimUser, JSON.stringify({ Operations }), scim),
    () => colleague.put(scimUser, { ...shown, active: false }, scim),
    () => superAdmin.patch(path, change),
    ...[colleague, superAdmin].map(
      (client) => () =>
        invite(client, project.id, { email, upsert: true, membership: { active: false } }),
    ),
  ]
  for (const attempt of attempts) {
    const refused = await attempt()
    t.equal(refused.status, 400, refused.text)
    t.match(refused.text, 'Cannot deactivate the owner of the project')
  }
  t.notMatch((await colleague.get(path)).body, { active: false })
  t.equal((await colleague.post(path, { ...stored, active: true })).status, 200)

  const { body: next } = await invite(colleague, project.id, { email: anEmail(), admin: true })
  await setOwner(next.user)
  t.equal((await colleague.patch(path, change)).status, 200)
})

t.test('rejects the deletion of a policy that a membership uses', async (t) => {
  const policy = await admin.create({ resourceType: 'AccessPolicy', name: 'In use' })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const member = await aMember({ membership: { access: [{ policy: accessPolicy }] } })
  const text = `Cannot delete ${accessPolicy.reference}: referenced by ProjectMembership/${member.id}`
  t.match(await admin.del(accessPolicy.reference), {
    status: 400,
    body: { issue: [{ details: { text } }] },
  })
  const expunge = () => admin.post(`${accessPolicy.reference}/$expunge`)
  t.match(await expunge(), { status: 400, body: { issue: [{ details: { text } }] } })
  await admin.del(memberPath(member.id))
  t.equal((await admin.del(accessPolicy.reference)).status, 200)
  t.equal((await expunge()).status, 200)
})

t.test('a super admin with a policy has the rights it lists on members', async (t) => {
  const member = await aMember()
  const clientFor = async (interaction: string[]) => {
    const policy = await superAdmin.create({
      resourceType: 'AccessPolicy',
      name: 'Limited',
      resource: [{ resourceType: 'ProjectMembership', interaction }],
    })
    const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
    const home = services.config.superAdminClientId
    const own = await superAdmin.get<{ meta: { project: string } }>(`ClientApplication/${home}`, {
      'X-Medplum': 'extended',
    })
    return (await botica.createMember({ accessPolicy }, own.body.meta.project)).client
  }
  const reader = await clientFor(['read'])
  t.equal((await reader.get(memberPath(member.id))).status, 200)
  const operations = [{ op: 'replace', path: '/admin', value: true }]
  t.equal((await reader.patch(memberPath(member.id), operations)).status, 403)
  t.equal((await reader.del(memberPath(member.id))).status, 403)
  t.equal((await invite(reader, projectId, { email: anEmail() })).status, 403)
  const writer = await clientFor(['update'])
  t.equal((await writer.patch(memberPath(member.id), operations)).status, 200)
})
