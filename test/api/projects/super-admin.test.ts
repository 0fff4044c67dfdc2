/** Imports the check of password hashes, which no route returns. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { verifyPassword } from '../../../shared/access/credentials/passwords.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { anEmail, findInvitedUsers, invite } from '../../fixtures/invites.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const SECONDS = 60_000
const botica = await openBotica(t, {
  worker: true,
  // The actions concern all Projects of the database.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, adminCredentials, superAdmin, services } = botica
const projectId = botica.project.id
const password = 'a password of some length'

const json = { 'Content-Type': 'application/json' }
const ASYNC = [
  'reindex',
  'structuredefinitions',
  'valuesets',
  'searchparameters',
  'reloadcron',
  'rebuildprojectid',
  'migrate',
]

async function matches(email: string, scope?: string): Promise<boolean> {
  const users = await findInvitedUsers(services, email)
  const user = users.find(({ project }) => (project === undefined) === (scope === undefined))
  return verifyPassword(password, String(user?.passwordHash))
}

t.test('the routes are for super admins without a policy', async (t) => {
  const policy = await superAdmin.create({
    resourceType: 'AccessPolicy',
    name: 'Limited',
    resource: [{ resourceType: '*' }, { resourceType: 'User' }],
  })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const own = await superAdmin.get<{ project: { id: string } }>('/auth/me')
  const { client } = await botica.createMember({ accessPolicy }, own.body.project.id)
  for (const name of [...ASYNC, 'setpassword', 'purge', 'removebotidjobsfromqueue', 'vacuum']) {
    const path = `/admin/super/${name}`
    t.equal((await botica.anonymous.post(path, {}, json)).status, 401)
    t.equal((await admin.post(path, {}, json)).status, 403)
    t.equal((await client.post(path, {}, json)).status, 403)
  }
  for (const name of ['migrations', 'queues', 'mails']) {
    t.equal((await admin.get(`/admin/super/${name}`)).status, 403)
    t.equal((await client.get(`/admin/super/${name}`)).status, 403)
    t.equal((await superAdmin.get(`/admin/super/${name}`)).status, 200)
  }
})

t.test('long work is accepted, and done by a worker', async (t) => {
  const headers = { ...json, Prefer: 'respond-async' }
  for (const name of ASYNC) {
    const path = `/admin/super/${name}`
    const body = name === 'reindex' ? { resourceType: 'Basic,Media', reindexType: 'all' } : {}
    t.match(await superAdmin.post(path, body, json), {
      status: 400,
      body: { issue: [{ details: { text: 'Operation requires "Prefer: respond-async"' } }] },
    })
    const accepted = await superAdmin.post(path, body, headers)
    t.equal(accepted.status, 202)
    const status = accepted.headers.get('content-location') ?? ''
    await until(async () => (await superAdmin.get(status)).status === 200, SECONDS)
    t.match((await superAdmin.get(status)).body, { status: 'completed' })
  }
  for (const body of [{}, { resourceType: 'Nothing' }, { resourceType: '*', reindexType: 'x' }]) {
    t.equal((await superAdmin.post('/admin/super/reindex', body, headers)).status, 400)
  }
})

t.test('rejects operations for other databases', async (t) => {
  for (const name of ['vacuum', 'tablesettings', 'setdataversion', 'reconcile-db-schema-drift']) {
    t.match(await superAdmin.post(`/admin/super/${name}`), {
      status: 400,
      body: { issue: [{ details: { text: /is not offered: / } }] },
    })
  }
})

t.test('a super admin sets any password', async (t) => {
  const email = anEmail()
  await invite(admin, projectId, { email })
  await invite(admin, projectId, { email, scope: 'project', forceNewMembership: true })
  const path = '/admin/super/setpassword'
  t.match(await superAdmin.post(path, { email, password }), { status: 200, body: { id: 'ok' } })
  t.same([await matches(email), await matches(email, projectId)], [true, false])
  t.equal((await superAdmin.post(path, { email, password, projectId })).status, 200)
  t.equal(await matches(email, projectId), true)
  t.match(await superAdmin.post(path, { email: anEmail(), password }), {
    status: 400,
    body: { issue: [{ details: { text: 'User not found' } }] },
  })
  for (const body of [{ email }, { password }, { email, password: 'short' }]) {
    t.equal((await superAdmin.post(path, body)).status, 400)
  }
})

t.test('a project admin sets passwords of users of the project alone', async (t) => {
  const [own, server, foreign] = [anEmail(), anEmail(), anEmail()]
  await invite(admin, projectId, { email: own, scope: 'project' })
  await invite(admin, projectId, { email: server })
  const other = await botica.createTenant()
  await invite(other.admin, other.project.id, { email: foreign, scope: 'project' })
  const path = '/admin/projects/setpassword'
  t.equal((await admin.post(path, { email: own.toUpperCase(), password })).status, 200)
  t.equal(await matches(own, projectId), true)
  for (const email of [server, foreign, anEmail()]) {
    t.match(await admin.post(path, { email, password, projectId: other.project.id }), {
      status: 400,
      body: { issue: [{ details: { text: 'User not found' } }] },
    })
  }
  t.equal(await matches(foreign, other.project.id), false)
  const { client } = await botica.createMember()
  t.equal((await client.post(path, { email: own, password })).status, 403)
})

t.test('old rows are purged with their history', async (t) => {
  const event = {
    resourceType: 'AuditEvent',
    type: { code: 'rest' },
    recorded: new Date().toISOString(),
    agent: [{ who: { reference: `ClientApplication/${adminCredentials.id}` }, requestor: true }],
    source: { observer: { display: randomUUID() } },
  }
  const old = await admin.create(event)
  const patient = await admin.create({ resourceType: 'Patient' })
  await services.database.query({
    text: `update resource set lu = '2001-01-01' where id = any($1::uuid[])`,
    values: [[old.id, patient.id]],
  })
  const purge = (body: Record<string, unknown>) =>
    superAdmin.post<{ purged: number }>('/admin/super/purge', body)
  const before = '2001-02-03'
  t.match(await purge({ resourceType: 'AuditEvent', before }), { status: 200, body: { purged: 1 } })
  t.equal((await admin.get(`AuditEvent/${old.id}`)).status, 404)
  t.equal((await admin.get(`Patient/${patient.id}`)).status, 200)
  t.equal((await purge({ resourceType: 'Login', before })).status, 200)
  for (const body of [
    { resourceType: 'Patient', before },
    { resourceType: 'AuditEvent' },
    { resourceType: 'AuditEvent', before: 'yesterday' },
  ]) {
    t.equal((await purge(body)).status, 400)
  }
})

t.test('migrations and queues are shown; a schedule is taken off', async (t) => {
  const migrations = await superAdmin.get<{ migrations: string[] }>('/admin/super/migrations')
  t.ok(migrations.body.migrations.includes('001-baseline.ts'))
  t.match((await superAdmin.get('/admin/super/queues')).body, {
    queues: { 'bots-sync': { waiting: 0, oldestMs: null } },
    upkeep: [],
  })
  const path = '/admin/super/removebotidjobsfromqueue'
  t.equal((await superAdmin.post(path, { botId: randomUUID() })).status, 200)
  t.equal((await superAdmin.post(path, {})).status, 400)
})
