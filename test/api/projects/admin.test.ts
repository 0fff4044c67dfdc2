/** Imports the seed and the check of password hashes, which no route returns. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { requireSuperAdminSettings, seed } from '../../../scripts/migrate.ts'
import { verifyPassword } from '../../../shared/access/credentials/passwords.ts'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { system } from '../../../shared/access/project-context.ts'
import { find } from '../../../shared/store/lookups.ts'
import { openBotica, SYSTEM_PROJECT_ID } from '../../fixtures/botica.ts'
import { createClient, signIn } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const botica = await openBotica(t)
const { superAdmin: admin, anonymous: nobody, admin: projectAdmin, services } = botica
const { repository } = services
const unknownId = '00000000-0000-4000-8000-000000000000'

/** Returns the clients of a project without access control. */
async function findClients(id: string): Promise<Resource[]> {
  const project = await services.principals.project(id)
  if (project === undefined) throw new Error(`No Project ${id}`)
  return await find(repository, systemPrincipal(project), 'ClientApplication', {
    conditions: [],
    count: 1000,
  })
}

const projectId = botica.project.id
const { client: member } = await botica.createMember()

t.test('changes nothing when seeded again', async (t) => {
  const superAdminClientId = randomUUID()
  const other = {
    superAdminEmail: 'other@example.com',
    superAdminPassword: 'another password',
    superAdminClientId,
    superAdminClientSecret: 'x'.repeat(32),
  }
  t.equal(await seed(services, { ...services.config, ...other }), false)
  t.equal((await admin.get(`ClientApplication/${superAdminClientId}`)).status, 404)
  t.throws(() => requireSuperAdminSettings({ ...services.config, superAdminPassword: undefined }), {
    message: /SUPER_ADMIN_PASSWORD/,
  })
})

t.test('the super admin user has a scrypt password', async (t) => {
  const users = await find(repository, system, 'User', { conditions: [], count: 1000 })
  const user = users.find(({ email }) => email === services.config.superAdminEmail)
  // The cost of seeding, or that of tests where another file has signed in before.
  t.match(user?.passwordHash, /^scrypt\$(?:131072|4096)\$8\$1\$/)
  const hash = String(user?.passwordHash)
  t.equal(await verifyPassword(services.config.superAdminPassword ?? '', hash), true)
  t.equal(await verifyPassword('wrong', hash), false)
  t.equal(await verifyPassword('wrong', 'no hash'), false)
})

t.test('a super admin creates a Project, with or without a trailing slash', async (t) => {
  for (const path of ['/admin/Project', '/admin/Project/', '/api/admin/Project/']) {
    const made = await admin.post(path, { resourceType: 'Project', name: 'Clinic' })
    t.match(made, {
      status: 201,
      body: {
        resourceType: 'Project',
        name: 'Clinic',
        strictMode: true,
        features: services.config.defaultProjectFeatures,
      },
    })
    const location = `${services.config.baseUrl}fhir/R4/Project/${made.body.id}`
    t.equal(made.headers.get('location'), location)
  }
  const lenient = {
    resourceType: 'Project',
    name: 'Lenient',
    strictMode: false,
    features: ['bots'],
  }
  const made = await admin.post('/admin/Project', lenient)
  t.match(made.body, { strictMode: false, features: ['bots'] })
})

t.test('a Project needs its type, a name and a super admin', async (t) => {
  const bad: [unknown, string][] = [
    [{ resourceType: 'Patient', name: 'x' }, 'resourceType'],
    [{ name: 'x' }, 'resourceType'],
    [{ resourceType: 'Project' }, 'name'],
    [{ resourceType: 'Project', name: ' ' }, 'name'],
  ]
  for (const [body, field] of bad) {
    const refused = await admin.post('/admin/Project', body)
    t.match(refused, { status: 400, body: { issue: [{ expression: [field] }] } })
  }
  t.equal(
    (await admin.post('/admin/Project', '{', { 'Content-Type': 'application/json' })).status,
    400,
  )
  t.equal((await admin.post('/admin/Project', 'x', { 'Content-Type': 'text/plain' })).status, 415)
  t.equal((await admin.post('/admin/Project', [1])).status, 400)
  const project = { resourceType: 'Project', name: 'Mine' }
  t.equal((await projectAdmin.post('/admin/Project', project)).status, 403)
  t.equal((await nobody.post('/admin/Project', project)).status, 401)
})

t.test('a client comes with a secret and a membership', async (t) => {
  const made = await projectAdmin.post<Resource & { secret: string }>(
    `/admin/projects/${projectId}/client`,
    { name: 'Lab', description: '', redirectUris: ['https://lab.example.org/'] },
  )
  t.match(made, {
    status: 201,
    body: { resourceType: 'ClientApplication', name: 'Lab', secret: /^[0-9a-f]{64}$/ },
  })
  t.equal(made.body.description, undefined)
  const client = await signIn(botica.baseUrl, made.body.id ?? '', made.body.secret)
  t.match(await client.get('/auth/me'), { status: 200, body: { project: { id: projectId } } })
})

t.test('bad fields are listed, one issue each', async (t) => {
  const refused = await admin.post(`/admin/projects/${projectId}/client`, {
    name: '',
    redirectUris: 'x',
    accessTokenLifetime: 'long',
  })
  t.match(refused, {
    status: 400,
    body: {
      issue: [
        { details: { text: 'Client name is required' }, expression: ['name'] },
        { expression: ['redirectUris'] },
        { expression: ['accessTokenLifetime'] },
      ],
    },
  })
  t.match(await admin.post(`/admin/projects/${projectId}/bot`, {}), {
    status: 400,
    body: { issue: [{ details: { text: 'Bot name is required' }, expression: ['name'] }] },
  })
})

t.test('replaces a list of the version that was read, with If-Match', async (t) => {
  type Read = { project: { meta: { versionId: string } } }
  const path = `/admin/projects/${projectId}`
  const read = await projectAdmin.get<Read>(path)
  const match = { 'If-Match': `W/"${read.body.project.meta.versionId}"` }
  const replace = (name: string) =>
    projectAdmin.post(`${path}/secrets`, [{ name, valueString: name }], match)
  t.match(await replace('first'), { status: 200, body: { secret: [{ name: 'first' }] } })
  t.equal((await replace('second')).status, 412)
  t.match(await projectAdmin.get(path), { body: { project: { secret: [{ name: 'first' }] } } })
})

t.test('rejects unknown fields of a call with their names', async (t) => {
  const place = `/admin/projects/${projectId}`
  const unknown = (name: string) => ({
    status: 400,
    body: {
      issue: [
        { code: 'structure', details: { text: `Unknown field ${name}` }, expression: [name] },
      ],
    },
  })
  const client = { name: 'x', accessPolcy: { reference: 'AccessPolicy/1' } }
  t.match(await admin.post(`${place}/client`, client), unknown('accessPolcy'))
  t.match(await admin.post(`${place}/bot`, { name: 'x', cron: '* * * * *' }), unknown('cron'))
  const empty = { name: 'x', resourceType: 'ClientApplication', launchUri: '', other: null }
  t.equal((await admin.post(`${place}/client`, empty)).status, 201)
  const purge = { resourceType: 'Login', before: '2000-01-01', dryRun: true }
  t.match(await botica.superAdmin.post('/admin/super/purge', purge), unknown('dryRun'))
})

t.test('creates nothing for a client with an unknown policy', async (t) => {
  const name = `Refused ${randomUUID()}`
  const reference = `AccessPolicy/${unknownId}`
  const path = `/admin/projects/${projectId}/client`
  const refused = await admin.post(path, { name, accessPolicy: { reference } })
  t.match(refused, {
    status: 400,
    body: { issue: [{ details: { text: `Access policy ${reference} does not exist` } }] },
  })
  const names = (await findClients(projectId)).map((client) => client.name)
  t.ok(names.includes('Test client'))
  t.notOk(names.includes(name))
})

t.test('rejects a policy of another Project', async (t) => {
  const foreign = await repository.create(system, {
    resourceType: 'AccessPolicy',
    meta: { project: (await botica.createTenant()).project.id },
    name: 'Foreign',
  })
  const accessPolicy = { reference: `AccessPolicy/${foreign.id}` }
  const path = `/admin/projects/${projectId}/client`
  t.equal((await admin.post(path, { name: 'x', accessPolicy })).status, 400)
})

t.test('a bot comes with a template and a membership', async (t) => {
  const made = await projectAdmin.post(`/admin/projects/${projectId}/bot`, { name: 'Greeter' })
  t.match(made, {
    status: 201,
    body: {
      resourceType: 'Bot',
      name: 'Greeter',
      sourceCode: { contentType: 'text/typescript', url: /^Binary\// },
    },
  })
  const session = await services.principals.forProfile(`Bot/${made.body.id}`)
  t.equal(session?.principal.project.id, projectId)
  t.equal(session?.principal.isProjectAdmin, false)
})

t.test('limits the routes of a Project to its administrators', async (t) => {
  const foreign = (await botica.createTenant()).project.id
  const routes: [string, unknown][] = [
    ['client', { name: 'x' }],
    ['bot', { name: 'x' }],
    ['secrets', []],
    ['settings', []],
    ['sites', []],
  ]
  for (const [route, body] of routes) {
    const own = `/admin/projects/${projectId}/${route}`
    t.equal((await nobody.post(own, body)).status, 401)
    t.equal((await createClient(botica.baseUrl, 'bad').post(own, body)).status, 401)
    t.equal((await member.post(own, body)).status, 403)
    t.equal((await projectAdmin.post(`/admin/projects/${foreign}/${route}`, body)).status, 403)
    t.equal((await projectAdmin.post(`/admin/projects/${unknownId}/${route}`, body)).status, 403)
    const headers = { 'Content-Type': 'application/json' }
    const unknown = `/admin/projects/${unknownId}/${route}`
    t.equal((await admin.post(unknown, JSON.stringify(body), headers)).status, 404)
  }
  t.equal((await nobody.get(`/admin/projects/${projectId}`)).status, 401)
  t.equal((await member.get(`/admin/projects/${projectId}`)).status, 403)
  t.equal((await projectAdmin.get(`/admin/projects/${foreign}`)).status, 403)
  t.equal((await admin.get(`/admin/projects/${unknownId}`)).status, 404)
  t.equal((await admin.get('/admin/projects/no-uuid')).status, 404)
})

t.test('secrets, settings and sites are replaced as a whole', async (t) => {
  const post = (route: string, body: unknown) =>
    projectAdmin.post(`/admin/projects/${projectId}/${route}`, JSON.stringify(body), {
      'Content-Type': 'application/json',
    })
  const secret = [{ name: 'KEY', valueString: 'one' }]
  const setting = [{ name: 'LIMIT', valueInteger: 3 }]
  const site = [{ name: 'Portal', domain: ['portal.example.org'] }]
  t.match(await post('secrets', secret), { status: 200, body: { resourceType: 'Project', secret } })
  t.match(await post('settings', setting), { status: 200, body: { setting } })
  t.match(await post('sites', site), { status: 200, body: { site } })
  t.match(await projectAdmin.get(`/admin/projects/${projectId}`), {
    status: 200,
    body: { project: { id: projectId, name: botica.project.name, secret, setting, site } },
  })
  const emptied = await post('secrets', [])
  t.equal(emptied.status, 200)
  t.equal(emptied.body.secret, undefined)
  t.match(await post('secrets', [{ valueString: 'x' }, { name: 'fine' }, 1]), {
    status: 400,
    body: { issue: [{ expression: ['secret[0]'] }, { expression: ['secret[2]'] }] },
  })
  t.equal((await post('sites', [{ name: 'x' }])).status, 400)
  t.equal((await post('settings', {})).status, 400)
})

t.test('limits a super admin with a policy to that policy', async (t) => {
  const policy = await repository.create(system, {
    resourceType: 'AccessPolicy',
    name: 'Makes projects only',
    resource: [{ resourceType: 'Project', interaction: ['create'] }],
  })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const { client } = await botica.createMember({ accessPolicy }, SYSTEM_PROJECT_ID)
  const made = await client.post('/admin/Project', { resourceType: 'Project', name: 'Allowed' })
  t.equal(made.status, 201)
  const own = `/admin/projects/${made.body.id}`
  t.equal((await client.post(`${own}/client`, { name: 'x' })).status, 403)
  t.equal((await client.post(`${own}/bot`, { name: 'x' })).status, 403)
  t.equal((await client.get(own)).status, 403)
})

t.test('$init makes a Project with its default client', async (t) => {
  const body = {
    resourceType: 'Parameters',
    parameter: [{ name: 'name', valueString: 'Initialised' }],
  }
  const made = await admin.post('Project/$init', body)
  t.match(made, { status: 201, body: { resourceType: 'Project', name: 'Initialised' } })
  const [client] = await findClients(made.body.id ?? '')
  t.match(client, { name: 'Initialised Default Client', secret: /^[0-9a-f]{64}$/ })
  t.equal((await projectAdmin.post('Project/$init', body)).status, 403)
  t.match(await admin.post('Project/$init', { resourceType: 'Parameters' }), {
    status: 400,
    body: { issue: [{ expression: ['name'] }] },
  })
})

t.test('$init admits an owner, known or not, once', async (t) => {
  const ownerEmail = `owner-${randomUUID()}@example.org`
  const start = (parameter: unknown[]) =>
    admin.post<Resource & { owner: { reference: string } }>('Project/$init', {
      resourceType: 'Parameters',
      parameter: [{ name: 'name', valueString: 'Owned' }, ...parameter],
    })
  const first = await start([{ name: 'ownerEmail', valueString: ownerEmail }])
  const second = await start([{ name: 'ownerEmail', valueString: ownerEmail.toUpperCase() }])
  t.match(first.body.owner.reference, /^User\//)
  t.equal(second.body.owner.reference, first.body.owner.reference)
  const third = await start([{ name: 'owner', valueReference: first.body.owner }])
  t.equal(third.status, 201)
  const other = { name: 'owner', valueReference: { reference: `Patient/${unknownId}` } }
  t.match(await start([other]), {
    status: 400,
    body: {
      issue: [{ details: { text: 'Only Users are permitted to be the owner of a new Project' } }],
    },
  })
})
