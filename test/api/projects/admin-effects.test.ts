import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, findInvitedUsers, invite } from '../../fixtures/invites.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services } = botica
const projectId = botica.project.id

type Page = Resource & { entry?: { resource: Resource & { id: string } }[] }

t.test(
  'ends the login of a deleted profile with a warning, and restores it with the profile',
  async (t) => {
    const { id, client } = await botica.createMember()
    const reference = `ClientApplication/${id}`
    const own = (await admin.get(reference)).body
    const found = await admin.get<Page>(`ProjectMembership?profile=${reference}`)
    const membership = found.body.entry?.[0]?.resource.id
    t.match(await admin.del(reference), {
      status: 200,
      body: {
        id: 'ok',
        issue: [
          { severity: 'information' },
          {
            severity: 'warning',
            code: 'business-rule',
            details: { text: new RegExp(`${membership}`) },
          },
        ],
      },
    })
    t.equal((await client.get('Patient')).status, 401)
    t.equal((await superAdmin.put(reference, own)).status, 200)
    services.principals.forget()
    t.equal((await client.get('Patient')).status, 200)

    const patient = await admin.create({ resourceType: 'Patient' })
    const plain = await admin.del<{ issue: unknown[] }>(`Patient/${patient.id}`)
    t.equal(plain.body.issue.length, 1, 'reports a user that cannot sign in')
  },
)

t.test('applies the usual defaults to a Project created through FHIR', async (t) => {
  const made = await superAdmin.post('Project', { resourceType: 'Project', name: 'By FHIR' })
  t.match(made, {
    status: 201,
    body: { strictMode: true, features: services.config.defaultProjectFeatures },
  })
  const nameless = await superAdmin.post('Project', { resourceType: 'Project' })
  t.match(nameless, { status: 400, body: { issue: [{ expression: ['name'] }] } })
  t.equal((await admin.post('Project', { resourceType: 'Project', name: 'x' })).status, 403)
})

t.test('protected fields of a Project stay as they are when its admin writes', async (t) => {
  const path = `Project/${projectId}`
  const before = (await superAdmin.get(path)).body
  const own = (await admin.get(path)).body
  t.equal(own.strictMode, undefined)
  const changed = await admin.put(path, {
    ...own,
    description: 'Ours',
    superAdmin: true,
    strictMode: false,
    features: ['google-auth-required'],
    link: [{ project: { reference: 'Project/other' } }],
    owner: { reference: 'User/other' },
    systemSecret: [{ name: 'x', valueString: 'y' }],
    systemSetting: [{ name: 'x', valueString: 'y' }],
  })
  t.equal(changed.status, 200)
  const { meta: _, description, ...after } = (await superAdmin.get(path)).body
  const { meta: __, ...unchanged } = before
  t.equal(description, 'Ours')
  t.same(after, unchanged)
})

t.test(
  'a project admin changes the names of the users of the project, and no other field',
  async (t) => {
    const [own, server] = [anEmail(), anEmail()]
    await invite(admin, projectId, { email: own, scope: 'project' })
    await invite(admin, projectId, { email: server })
    const [user] = await findInvitedUsers(services, own)
    const path = `User/${user?.id}`
    const { body } = await admin.get(path)
    const changed = await admin.put(path, {
      ...body,
      firstName: 'Changed',
      email: anEmail(),
      emailVerified: true,
      passwordHash: 'x',
    })
    t.match(changed, { status: 200, body: { firstName: 'Changed', email: own } })
    t.match((await findInvitedUsers(services, own))[0], {
      passwordHash: undefined,
      emailVerified: undefined,
    })
    const [stranger] = await findInvitedUsers(services, server)
    t.equal((await admin.get(`User/${stranger?.id}`)).status, 404)
    t.equal((await admin.put(`User/${stranger?.id}`, { ...stranger })).status, 404)
  },
)

t.test('one address is one user in a scope, on every path', async (t) => {
  const [first, second] = [anEmail(), anEmail()]
  const create = (email: string, project?: string) =>
    superAdmin.post<Resource & { id: string }>('User', {
      resourceType: 'User',
      firstName: 'A',
      lastName: 'B',
      email,
      ...(project === undefined ? {} : { project: { reference: `Project/${project}` } }),
    })
  const made = await create(first)
  t.equal(made.status, 201)
  t.match((await create(first.toUpperCase())).status, 409)
  t.equal((await create(first, projectId)).status, 201)
  t.equal((await create(second)).status, 201)
  const moved = await superAdmin.put(`User/${made.body.id}`, { ...made.body, email: second })
  t.equal(moved.status, 409)
  t.equal((await superAdmin.del(`User/${made.body.id}`)).status, 200)
  t.equal((await create(first)).status, 201, 'the address is free again')
})

t.test('audits administrative writes without values', async (t) => {
  const tenant = await botica.createTenant()
  const path = `/admin/projects/${tenant.project.id}`
  const planted = randomUUID()
  const post = (route: string, body: unknown) =>
    tenant.admin.post<Resource & { id: string; secret: string }>(
      `${path}/${route}`,
      JSON.stringify(body),
      { 'Content-Type': 'application/json' },
    )
  await post('secrets', [{ name: 'KEY', valueString: planted }])
  const client = await post('client', { name: 'Lab' })
  await post('bot', { name: 'Greeter' })
  const events = await tenant.admin.get<Page>('AuditEvent?_count=100')
  t.notMatch(events.text, planted)
  t.notMatch(events.text, client.body.secret)
  const told = events.body.entry?.map(({ resource }) => JSON.stringify(resource.entity)) ?? []
  t.ok(told.some((text) => text.includes('"secret"') && text.includes(tenant.project.id)))
  t.ok(told.some((text) => text.includes(client.body.id)))
  t.ok(told.some((text) => text.includes('Bot/')))

  const members = await tenant.admin.get<Page>('ProjectMembership?profile-type=Bot')
  const member = members.body.entry?.[0]?.resource
  await tenant.admin.put(`ProjectMembership/${member?.id}`, { ...member, admin: true })
  const changes = await tenant.admin.get(`AuditEvent?entity=ProjectMembership/${member?.id}`)
  t.match(changes.text, '"valueString":"admin"')
})

t.test('shows secrets to administrators of their project only', async (t) => {
  const tenant = await botica.createTenant()
  const { id } = tenant.project
  const path = `/admin/projects/${id}`
  const planted = `planted-${randomUUID()}`
  const json = { 'Content-Type': 'application/json' }
  const list = JSON.stringify([{ name: 'KEY', valueString: planted }])
  await tenant.admin.post(`${path}/secrets`, list, json)
  const email = anEmail()
  const password = `${planted} of a user`
  await invite(tenant.admin, id, { email, scope: 'project', password })
  const lab = await tenant.admin.post<Resource & { id: string; secret: string }>(
    `${path}/client`,
    JSON.stringify({ name: 'Lab' }),
    json,
  )
  const { client: member } = await botica.createMember({}, id)
  const secrets = [
    planted,
    lab.body.secret,
    String((await findInvitedUsers(services, email))[0]?.passwordHash),
  ]
  const shows = (text: string) => secrets.filter((secret) => text.includes(secret)).length

  const everywhere = [
    `Project/${id}`,
    `Project/${id}/_history`,
    'Project',
    'User',
    'User/_history',
    'UserSecurityRequest',
    'ProjectMembership',
    `ClientApplication/${lab.body.id}`,
    `ClientApplication/${lab.body.id}/_history`,
    'ClientApplication?_summary=data',
    'AuditEvent?_count=1000',
    '_history',
    '/auth/me',
    path,
    `${path}/members`,
    '/scim/v2/Users',
    '/admin/super/mails',
  ]
  for (const client of [member, admin, botica.anonymous]) {
    for (const place of everywhere) {
      const { text } = await client.get(place, { 'X-Medplum': 'extended' })
      t.equal(shows(text), 0, place)
    }
  }
  const own = await tenant.admin.get(path)
  t.equal(shows(own.text), 1, 'shows secrets to administrators of the project')
  for (const place of ['User', `User/_history`, 'AuditEvent?_count=1000']) {
    const { text } = await tenant.admin.get(place, { 'X-Medplum': 'extended' })
    t.equal(shows(text), 0, place)
  }
  for (const client of [superAdmin, tenant.admin]) {
    t.notMatch((await client.get('User?_count=1000')).text, /passwordHash|scrypt/)
  }
})
