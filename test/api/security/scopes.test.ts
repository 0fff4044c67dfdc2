/** An app token is limited to the resources of its scope, without administration and account. */
import t, { type Test } from 'tap'
import { scopedClient, scopedPerson } from '../../fixtures/attacks/scoped.ts'
import { type Botica, openBotica } from '../../fixtures/botica.ts'
import { aBot } from '../../fixtures/bots/bots.ts'
import { basic, type Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'
import { aPerson, type Person } from '../../fixtures/people.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { getBindingToken, subscribe } from '../../fixtures/sockets.ts'

type Call = readonly [
  method: 'get' | 'post' | 'put' | 'patch' | 'del',
  path: string,
  body?: unknown,
]

const botica: Botica = await openBotica(t)
const { admin, services, project, baseUrl, superAdmin } = botica
const person = await aPerson(services, project, { details: { admin: true } })
const bot = await aBot(botica)
const patient = await admin.create(aPatient())
const client = await admin.create({ resourceType: 'ClientApplication', name: 'Some app' })
const unknown = '00000000-0000-4000-8000-000000000000'
const ADMIN = `/admin/projects/${project.id}`
const MISSING = /insufficient_scope/

const ACCOUNT: readonly Call[] = [
  ['post', `User/${person.user.id}/$update-email`, parameters({ email: anEmail() })],
  ['post', '/auth/changepassword', { oldPassword: 'x', newPassword: 'y' }],
  ['post', '/auth/revoke', { loginId: unknown }],
  ['get', '/auth/mfa/status'],
  ['post', '/auth/mfa/enroll', { token: '000000' }],
  ['post', '/auth/mfa/disable', { token: '000000' }],
]
const ADMINISTRATION: readonly Call[] = [
  ['get', ADMIN],
  ['post', `${ADMIN}/invite`, { resourceType: 'Practitioner', firstName: 'A', lastName: 'B' }],
  ['post', `${ADMIN}/client`, { name: 'x' }],
  ['post', `${ADMIN}/bot`, { name: 'x' }],
  ['post', `${ADMIN}/secrets`, []],
  ['post', `${ADMIN}/settings`, []],
  ['post', `${ADMIN}/sites`, []],
  ['get', `${ADMIN}/bots/stats`],
  ['get', `${ADMIN}/members`],
  ['get', `${ADMIN}/members/${person.membership.id}`],
  ['post', `${ADMIN}/members/${person.membership.id}`, person.membership],
  ['patch', `${ADMIN}/members/${person.membership.id}`, [add('/admin', true)]],
  ['del', `${ADMIN}/members/${person.membership.id}`],
  ['post', '/admin/projects/setpassword', { email: person.email, password: 'a long one indeed' }],
  ['post', '/admin/Project', { resourceType: 'Project', name: 'x' }],
  ['get', '/scim/v2/Users'],
  ['post', '/scim/v2/Users', {}],
  ['del', `/scim/v2/Users/${person.membership.id}`],
  ['post', '/email/v1/send', { to: anEmail(), subject: 'x', text: 'y' }],
  ['post', `ClientApplication/${client.id}/$rotate-secret`, parameters({ secret: 'x' })],
  ['post', 'AccessPolicy/$explain', parameters({ membership: String(person.membership.id) })],
  ['get', `Bot/${bot}/$logs`],
  ['get', `Bot/${bot}/$runs`],
  ['post', `Bot/${bot}/$replay`, { runId: unknown }],
  ['post', `Patient/${patient.id}/$expunge`, parameters({})],
  ['post', `Patient/${patient.id}/$set-accounts`, parameters({})],
  ['post', `Patient/${patient.id}/$resend`, parameters({})],
  ['post', 'CodeSystem/$import', parameters({ system: 'urn:x' })],
  ['post', '$reindex', parameters({})],
  ['post', `User/${unknown}/$update-email`, parameters({ email: anEmail() })],
]
const PLATFORM: readonly Call[] = [
  ['get', '/admin/super/queues'],
  ['get', '/admin/super/mails'],
  ['post', '/admin/super/rotatekeys', {}],
  ['post', '/admin/super/setpassword', { email: person.email, password: 'a long one indeed' }],
  ['post', 'Project/$init', parameters({ name: 'x' })],
  ['post', `Project/${project.id}/$clone`, parameters({})],
  ['post', `Project/${project.id}/$expunge`, parameters({})],
]

t.test('rejects account changes by an app of a person', async (t) => {
  for (const scope of ['openid patient/Observation.rs', 'openid user/*.cruds', 'user/User.cruds']) {
    await refused(t, await scopedPerson(botica, person, scope), ACCOUNT, scope)
  }
  const { user } = person
  t.equal((await superAdmin.get(`User/${user.id}`)).body.email, person.email)
})

t.test('returns the identity of an app, and nothing of the account', async (t) => {
  const app = await scopedPerson(botica, person, 'patient/Observation.rs')
  const { resourceType, id } = person.profile
  const { body } = await app.get('/auth/me')
  t.same(body.profile, { resourceType, id })
  t.match(body, { user: undefined, security: undefined, membership: { id: person.membership.id } })

  const named = await scopedPerson(botica, person, 'openid fhirUser patient/Observation.rs')
  t.match((await named.get('/auth/me')).body, { profile: { name: [{}] }, security: undefined })
  const own = await scopedPerson(botica, person, 'openid')
  t.match((await own.get('/auth/me')).body, { user: { email: person.email }, security: {} })
})

t.test('denies administration to an app of an administrator', async (t) => {
  for (const scope of ['openid user/Patient.rs', 'openid user/*.cruds __account']) {
    await refused(t, await scopedPerson(botica, person, scope), ADMINISTRATION, scope)
  }
  const program = await scopedClient(botica, botica.adminCredentials, 'system/*.cruds')
  await refused(t, program, ADMINISTRATION, 'system/*.cruds')
  t.equal((await admin.get(`${ADMIN}/members/${person.membership.id}`)).status, 200)
})

t.test('gives an app of an administrator no administrator rights on resources', async (t) => {
  const wide =
    'user/*.cruds user/ProjectMembership.cruds user/Project.cruds user/User.rs user/ClientApplication.rs'
  const app = await scopedPerson(botica, person, wide)
  t.equal((await app.get('ProjectMembership')).status, 403)
  const elevated = [add('/admin', true)]
  t.equal((await app.patch(`ProjectMembership/${person.membership.id}`, elevated)).status, 403)
  t.equal((await app.get(`Project/${project.id}`)).status, 403)
  const { secret } = (await admin.post(`${ADMIN}/client`, { name: 'Secret' })).body
  t.type(secret, 'string')
  const found = await app.get('ClientApplication')
  t.equal(found.status, 200)
  t.notMatch(found.text, String(secret))
  const other = { 'X-Medplum-On-Behalf-Of': `ProjectMembership/${person.membership.id}` }
  t.equal((await app.get('Patient', other)).status, 403)
  const explained = await app.get('Patient?_explain=true')
  t.not(explained.status, 200)
})

t.test('limits an app of a super admin to its own project', async (t) => {
  const { superAdminClientId = '', superAdminClientSecret = '' } = services.config
  const credentials = { id: superAdminClientId, secret: superAdminClientSecret }
  const app = await scopedClient(botica, credentials, 'system/*.cruds system/User.cruds')
  await refused(t, app, PLATFORM, 'system/*.cruds')
  t.equal((await superAdmin.get(`Patient/${patient.id}`)).status, 200)
  t.equal((await app.get(`Patient/${patient.id}`)).status, 404)
  t.equal((await app.get(`User/${person.user.id}`)).status, 403)
  t.equal((await app.get('Login')).status, 403)
})

t.test('grants administration only by an explicit scope', async (t) => {
  const administrating = await scopedPerson(botica, person, 'openid user/Patient.rs __admin')
  t.equal((await administrating.get(`${ADMIN}/bots/stats`)).status, 200)
  t.equal((await administrating.get('/scim/v2/Users')).status, 200)
  t.equal((await administrating.get('ProjectMembership')).status, 403, 'the scope does not name it')
  t.equal((await administrating.get('/auth/mfa/status')).status, 403)
  const both = 'openid user/ProjectMembership.rs user/User.rs __admin'
  const members = await scopedPerson(botica, person, both)
  t.equal((await members.get(`${ADMIN}/members`)).status, 200)
  t.equal((await members.get('Patient')).status, 403)
  const account = await scopedPerson(botica, person, 'openid user/Patient.rs __account')
  t.match((await account.get('/auth/mfa/status')).body, { enrolled: false, enrollUri: String })
  t.match((await account.get('/auth/me')).body, { user: { email: person.email } })
  const found = await botica.anonymous.get<{ scopes_supported: string[] }>(
    '/.well-known/smart-configuration',
  )
  t.ok(['__admin', '__account'].every((word) => found.body.scopes_supported.includes(word)))
})

t.test('does not replace a missing policy by a scope that names policies', async (t) => {
  const policy = { resourceType: 'AccessPolicy', resource: [{ resourceType: '*' }] } as const
  const all = await memberUnder([{ resourceType: '*' }])
  const named = await memberUnder([{ resourceType: '*' }, { resourceType: 'AccessPolicy' }])
  const free = await aPerson(services, project)
  for (const scope of [
    'openid',
    'user/AccessPolicy.cruds',
    'user/AccessPolicy.cruds user/*.cruds',
  ]) {
    for (const member of [all, free]) {
      const app = await scopedPerson(botica, member, scope)
      t.equal((await app.post('AccessPolicy', policy)).status, 403, scope)
    }
    const app = await scopedPerson(botica, named, scope)
    t.equal((await app.post('AccessPolicy', policy)).status, 201, scope)
  }
})

t.test('grants nothing for an unreadable SMART scope', async (t) => {
  const words = ['user/patient.rs', 'USER/Patient.rs', 'user/Patient.', 'user/Patient.sr', 'user/']
  for (const word of words) {
    const app = await scopedPerson(botica, person, `openid ${word}`)
    t.equal((await app.get('Patient')).status, 403, word)
    t.equal((await app.get(`${ADMIN}/members`)).status, 403, word)
    const program = await scopedClient(botica, botica.adminCredentials, word)
    t.equal((await program.post('Patient', aPatient())).status, 403, word)
  }
  const mixed = await scopedPerson(botica, person, 'user/patient.cruds user/Patient.r')
  t.equal((await mixed.get(`Patient/${patient.id}`)).status, 200)
  t.equal((await mixed.post('Patient', aPatient())).status, 403)
})

t.test('replays a response only to the same scopes', async (t) => {
  const key = { 'Idempotency-Key': 'scopes' }
  const body = aPatient()
  const [wide, narrow] = [
    await scopedPerson(botica, person, 'openid'),
    await scopedPerson(botica, person, 'user/Observation.rs'),
  ]
  const first = await wide.post('Patient', body, key)
  t.equal(first.status, 201)
  t.equal((await wide.post('Patient', body, key)).body.id, first.body.id)
  t.equal((await narrow.post('Patient', body, key)).status, 403)
  const made = await wide.post(`${ADMIN}/client`, { name: 'once' }, key)
  t.equal(made.status, 201)
  const again = await narrow.post(`${ADMIN}/client`, { name: 'once' }, key)
  t.equal(again.status, 403)
  t.notMatch(again.text, String(made.body.secret))
})

t.test('limits the token of a web socket to the socket', async (t) => {
  const token = await getBindingToken(admin, await subscribe(admin, 'Patient'))
  const answer = await botica.anonymous.get('Patient', { Authorization: `Bearer ${token}` })
  t.equal(answer.status, 401)
  const { id, secret } = botica.adminCredentials
  const byBasic = await botica.anonymous.get('Patient', basic(id, secret))
  t.equal(byBasic.status, 200)
})

t.test('keeps the rights of a login without SMART scopes', async (t) => {
  const own = await scopedPerson(botica, person, 'openid profile offline')
  t.equal((await own.get(`${ADMIN}/members`)).status, 200)
  t.equal((await invite(own, project.id, { email: anEmail(), sendEmail: false })).status, 200)
  t.equal((await fetch(`${baseUrl}scim/v2/Users`, bearer(own))).status, 200)
})

async function refused(t: Test, app: Client, calls: readonly Call[], scope: string): Promise<void> {
  for (const [method, path, body] of calls) {
    const answer =
      method === 'get' || method === 'del' ? await app[method](path) : await app[method](path, body)
    t.equal(answer.status, 403, `${scope} ${method} ${path}: ${answer.text}`)
    t.match(answer.headers.get('www-authenticate'), MISSING, `${method} ${path}`)
  }
}

async function memberUnder(resource: readonly object[]): Promise<Person> {
  const policy = await admin.create({ resourceType: 'AccessPolicy', resource } as Resource)
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
  return await aPerson(services, project, { details: { access } })
}

function parameters(values: Readonly<Record<string, string>>): object {
  const parameter = Object.entries(values).map(([name, valueString]) => ({ name, valueString }))
  return { resourceType: 'Parameters', parameter }
}

function add(path: string, value: unknown) {
  return { op: 'add', path, value }
}

function bearer({ token }: Client) {
  return { headers: { Authorization: `Bearer ${token}` } }
}
