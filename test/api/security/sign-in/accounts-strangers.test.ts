/** A stranger or a foreign administrator cannot prepare the account of another person. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { createAccounts, oneTimeCode } from '../../../fixtures/accounts.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { createClient } from '../../../fixtures/client.ts'
import { anEmail, findInvitedUsers, invite, mailsTo } from '../../../fixtures/invites.ts'
import { aPerson, askToken, PASSWORD } from '../../../fixtures/people.ts'

const STRANGERS = 'a password of some stranger'
const OWNERS = 'a password of the very owner'
const botica = await openBotica(t, { env: { REGISTER_ENABLED: 'true' } })
const { admin, superAdmin, anonymous, services, project, baseUrl } = botica
const { register, logIn, found, redeem, openClientSession, link } = createAccounts(botica)
const foreign = await botica.createTenant()
const REFUSED = { status: 400, body: { issue: [{ details: { text: /is invalid$/ } }] } }

const setByLink = async (email: string, password = OWNERS) =>
  anonymous.post('/auth/setpassword', { ...(await link(email, 'setpassword')), password })

async function aStranger(email: string) {
  const { body } = await register(email, STRANGERS, { scope: 'openid offline' })
  const tokens = await redeem((await found(body.login)).body.code)
  const client = createClient(baseUrl, tokens.body.access_token)
  const half = await logIn(email, STRANGERS, { projectId: 'new' })
  const { enrollUri } = (await client.get<{ enrollUri: string }>('/auth/mfa/status')).body
  const secret = new URL(enrollUri).searchParams.get('secret') ?? ''
  const enrolled = await client.post('/auth/mfa/enroll', {
    token: oneTimeCode(secret, Math.floor(Date.now() / 30_000)),
  })
  if (enrolled.status !== 200) throw new Error(enrolled.text)
  return { client, refresh: tokens.body.refresh_token, half: half.body.login }
}

t.test('rejects a password for a server-scoped User by an administrator', async (t) => {
  const email = anEmail()
  for (const fields of [
    {},
    { scope: 'server' },
    { scope: 'server', resourceType: 'Patient' },
    { upsert: true },
    { forceNewMembership: true },
  ]) {
    const refused = await invite(foreign.admin, foreign.project.id, {
      ...{ email, password: STRANGERS },
      ...fields,
    })
    t.match(refused, { status: 400, body: { issue: [{ expression: ['password'] }] } })
  }
  t.same(await findInvitedUsers(services, email), [], 'leaves nothing behind')
  const own = { email, password: STRANGERS, scope: 'project' }
  t.equal((await invite(foreign.admin, foreign.project.id, own)).status, 200)
  t.match(await logIn(email, STRANGERS), REFUSED, 'the user exists in its Project only')
  const there = await logIn(email, STRANGERS, { projectId: foreign.project.id })
  t.equal(there.status, 200, there.text)
  t.match(await logIn(email, STRANGERS, { projectId: project.id }), REFUSED)
})

t.test('rejects a password through SCIM and every write of the User', async (t) => {
  const email = anEmail()
  const user = {
    userName: email,
    name: { givenName: 'A', familyName: 'B' },
    emails: [{ value: email }],
  }
  const made = await foreign.admin.post<{ id: string }>('/scim/v2/Users', {
    ...user,
    password: STRANGERS,
  })
  t.equal(made.status, 201, made.text)
  const again = { ...user, password: STRANGERS }
  t.equal((await foreign.admin.put(`/scim/v2/Users/${made.body.id}`, again)).status, 200)
  const set = { email, password: STRANGERS }
  t.equal((await foreign.admin.post('/admin/projects/setpassword', set)).status, 400)
  t.equal((await foreign.admin.post('/admin/super/setpassword', set)).status, 403)
  const [before] = await findInvitedUsers(services, email)
  const path = `User/${before?.id}`
  const planted = { ...before, emailVerified: true, passwordHash: 'x' }
  const patch = [{ op: 'add', path: '/emailVerified', value: true }]
  t.equal((await foreign.admin.get(path)).status, 404)
  t.equal((await foreign.admin.put(path, planted)).status, 404)
  t.equal((await foreign.admin.patch(path, patch)).status, 404)
  const batch = {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'PUT', url: path }, resource: planted }],
  }
  t.match(await foreign.admin.post('', batch), {
    body: { entry: [{ response: { status: '404' } }] },
  })
  const mutation = `mutation { UserUpdate(id: "${before?.id}", res: { resourceType: "User",
    firstName: "A", lastName: "B", emailVerified: true }) { id } }`
  const graph = await foreign.admin.post<{ errors?: unknown }>(
    '$graphql',
    JSON.stringify({ query: mutation }),
    { 'Content-Type': 'application/json' },
  )
  t.ok(graph.body.errors)
  t.same(await findInvitedUsers(services, email), [before])

  const own = { email: anEmail(), scope: 'project', sendEmail: false }
  await invite(foreign.admin, foreign.project.id, own)
  const [scoped] = await findInvitedUsers(services, own.email)
  const given = { ...scoped, emailVerified: true, passwordHash: 'x' }
  const written = await foreign.admin.put(`User/${scoped?.id}`, { ...given, firstName: 'Other' })
  t.equal(written.status, 200, written.text)
  const [after] = await findInvitedUsers(services, own.email)
  t.match(after, { firstName: 'Other' })
  for (const name of ['emailVerified', 'passwordHash']) t.notOk(after?.[name], name)
  const proof = [{ op: 'add', path: '/provenEmail', value: own.email }]
  t.equal((await foreign.admin.patch(`User/${scoped?.id}`, proof)).status, 400)
  t.equal((await superAdmin.patch(`User/${scoped?.id}`, proof)).status, 400)
})

t.test('removes credentials of a stranger when a Project invites the owner', async (t) => {
  const email = anEmail()
  const stranger = await aStranger(email)
  const sent = (await mailsTo(services, email)).length
  const invited = await invite(admin, project.id, { email, sendEmail: false })
  t.equal(invited.status, 200, invited.text)

  t.match(await logIn(email, STRANGERS), REFUSED)
  t.match(await logIn(email, STRANGERS, { projectId: project.id }), REFUSED)
  t.equal((await stranger.client.get('/auth/me')).status, 401)
  const chosen = { login: stranger.half, profile: invited.body.id }
  t.equal((await anonymous.post('/auth/profile', chosen)).status, 400)
  t.equal((await anonymous.get(`/auth/login/${stranger.half}`)).status, 400)
  const form = { grant_type: 'refresh_token', refresh_token: stranger.refresh }
  t.match(await askToken(baseUrl, form), { status: 400, body: { error: 'invalid_grant' } })

  const mails = (await mailsTo(services, email)).slice(sent)
  t.match(mails, [{ kind: 'invite', text: /It is not valid any more/ }], 'without a request')
  t.equal((await setByLink(email)).status, 200)
  const owner = await logIn(email, OWNERS, { projectId: project.id })
  t.notOk(owner.body.mfaRequired, "the stranger's factor is gone")
  const me = await (await openClientSession(owner.body.code)).get('/auth/me')
  t.match(me.body, { membership: { id: invited.body.id } })
})

t.test('removes credentials of a stranger on an upsert and on a link to the address', async (t) => {
  const [email, reset] = [anEmail(), anEmail()]
  t.equal((await invite(admin, project.id, { email, scope: 'server' })).status, 200)
  const [user] = await findInvitedUsers(services, email)
  t.match(await register(email, STRANGERS), { status: 200 }, 'has no effect')
  t.same(await findInvitedUsers(services, email), [user])
  t.match(await logIn(email, STRANGERS), REFUSED)

  const member = await aPerson(services, project, { isStranger: true })
  const upsert = { email: member.email, upsert: true, admin: true }
  t.equal((await invite(admin, project.id, upsert)).status, 200)
  t.match(await logIn(member.email, PASSWORD), REFUSED)
  const mails = await mailsTo(services, member.email)
  t.match(mails, [{ kind: 'invite' }])
  t.equal((await invite(admin, project.id, upsert)).status, 200)
  t.equal((await mailsTo(services, member.email)).length, 1, 'once')

  const stranger = await aStranger(reset)
  t.equal((await setByLink(reset)).status, 200)
  t.match(await logIn(reset, STRANGERS), REFUSED)
  t.equal((await stranger.client.get('/auth/me')).status, 401)
  t.notOk((await logIn(reset, OWNERS)).body.mfaRequired)
})

t.test('rejects a link to an address that the User no longer has', async (t) => {
  const [left, email] = [anEmail('left'), anEmail('victim')]
  const stranger = await aPerson(services, foreign.project, { email: left })
  t.match(await anonymous.post('/auth/resetpassword', { email: left }), { status: 200 })
  await until(async () => (await mailsTo(services, left)).length === 1, 60_000)
  const client = await openClientSession((await logIn(left, PASSWORD)).body.code)
  const moved = await client.post(`User/${stranger.user.id}/$update-email`, {
    resourceType: 'Parameters',
    parameter: [{ name: 'email', valueString: email }],
  })
  t.equal(moved.status, 200, moved.text)
  // Use of the link does not adopt the stranger's password.
  const verify = await link(email, 'verifyemail')
  t.equal((await anonymous.post('/auth/verifyemail', verify)).status, 200)

  t.equal((await invite(admin, project.id, { email })).status, 200)
  t.match(await logIn(email, PASSWORD), REFUSED)
  t.equal((await client.get('/auth/me')).status, 401)
  const old = { ...(await link(left, 'setpassword')), password: STRANGERS }
  t.match(await anonymous.post('/auth/setpassword', old), {
    status: 400,
    body: { issue: [{ details: { text: 'Expired' } }] },
  })
  t.equal((await setByLink(email)).status, 200)
})

t.test('hides whether an address is registered in a Project', async (t) => {
  const home = await botica.createTenant()
  const policy = await home.admin.create({
    resourceType: 'AccessPolicy',
    name: 'Patients',
    resource: [{ resourceType: 'Patient' }],
  })
  const defaultPatientAccessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const saved = { ...home.project, defaultPatientAccessPolicy }
  t.equal((await home.admin.put(`Project/${home.project.id}`, saved)).status, 200)
  const [email, projectId] = [anEmail(), home.project.id]
  const { body } = await register(email, STRANGERS, { projectId })
  const invited = await invite(home.admin, projectId, { email, scope: 'project', admin: true })
  t.equal(invited.status, 200, invited.text)
  t.match(await logIn(email, STRANGERS, { projectId }), REFUSED)
  t.equal((await anonymous.post('/auth/newpatient', { login: body.login, projectId })).status, 400)
  t.equal((await setByLink(email)).status, 200)
  t.equal((await logIn(email, OWNERS, { projectId })).status, 200)
  await register(email, STRANGERS, { projectId })
  const last = async () => (await mailsTo(services, email)).at(-1)?.text ?? ''
  await until(async () => (await last()).includes('has an account already'), 60_000)
  t.match(await last(), `signin?project_id=${projectId}\n`)
})

t.test(
  'removes credentials of a stranger on project creation and on a written membership',
  async (t) => {
    const [owner, member] = [anEmail(), anEmail()]
    const clients = [await aStranger(owner), await aStranger(member)]
    const parameter = [
      { name: 'name', valueString: `Of ${owner}` },
      { name: 'ownerEmail', valueString: owner },
    ]
    const made = await superAdmin.post('Project/$init', { resourceType: 'Parameters', parameter })
    t.equal(made.status, 201, made.text)
    const [user] = await findInvitedUsers(services, member)
    const profile = await admin.create({ resourceType: 'Practitioner', name: [{ family: 'Lee' }] })
    const written = await superAdmin.post('ProjectMembership', {
      resourceType: 'ProjectMembership',
      project: { reference: `Project/${project.id}` },
      user: { reference: `User/${user?.id}` },
      profile: { reference: `Practitioner/${profile.id}` },
    })
    t.equal(written.status, 201, written.text)
    for (const [i, email] of [owner, member].entries()) {
      t.match(await logIn(email, STRANGERS), REFUSED)
      t.equal((await clients[i]?.client.get('/auth/me'))?.status, 401)
      t.match((await mailsTo(services, email)).at(-1), { kind: 'invite' })
      t.equal((await setByLink(email)).status, 200)
      t.equal((await logIn(email, OWNERS)).status, 200)
    }
  },
)

t.test('keeps credentials of verified addresses and of people added by super admins', async (t) => {
  const person = await aPerson(services, foreign.project)
  const client = await openClientSession((await logIn(person.email, PASSWORD)).body.code)
  const given = { email: anEmail(), password: STRANGERS }
  t.equal((await invite(superAdmin, foreign.project.id, given)).status, 200)
  for (const email of [person.email, given.email]) {
    t.equal((await invite(admin, project.id, { email })).status, 200)
    t.match((await mailsTo(services, email)).at(-1), { kind: 'welcome' })
  }
  t.equal((await client.get('/auth/me')).status, 200)
  t.match((await logIn(person.email, PASSWORD)).body.memberships, [{}, {}])
  t.match((await logIn(given.email, STRANGERS)).body.memberships, [{}, {}])
  const refreshed = await client.patch(`User/${person.user.id}`, [
    { op: 'replace', path: '/firstName', value: 'Augusta' },
  ])
  t.equal(refreshed.status, 200, refreshed.text)
  t.match(await findInvitedUsers(services, person.email), [
    { firstName: 'Augusta', provenEmail: person.email },
  ])
})

t.test('hides on registration whether an address is known', async (t) => {
  const known = await aPerson(services, project)
  const email = anEmail()
  const answers = [await register(email, STRANGERS), await register(known.email, STRANGERS)]
  const [fresh, decoy] = answers.map(({ status, body, headers }) => ({
    status,
    names: Object.keys(body),
    isId: /^[0-9a-f-]{36}$/.test(body.login),
    headers: [...headers.keys()].sort(),
  }))
  t.same(decoy, fresh)
  for (const { body } of answers) {
    t.same((await anonymous.get(`/auth/login/${body.login}`)).body, { login: body.login })
  }
  const login = answers[1]?.body.login ?? ''
  t.match(await found(login), { status: 400, body: { issue: [{ details: { text: /mail$/ } }] } })
  const chosen = { login, profile: known.membership.id }
  t.equal((await anonymous.post('/auth/profile', chosen)).status, 400)
  t.equal((await anonymous.post('/auth/mfa/verify', { login, token: '000000' })).status, 400)
  t.match(await logIn(known.email, STRANGERS), REFUSED)
  t.equal((await logIn(known.email, PASSWORD)).status, 200)

  const mailed = async (to: string) => (await mailsTo(services, to)).at(-1)
  await until(async () => (await mailed(known.email)) !== undefined, 60_000)
  await until(async () => (await mailed(email)) !== undefined, 60_000)
  t.match(await mailed(known.email), { kind: 'registration', text: /has an account already/ })
  t.match(await mailed(email), { kind: 'registration', text: /confirm it by choosing/ })
  for (let i = 0; i < 5; i++) await register(known.email, STRANGERS, { nonce: randomUUID() })
  await until(async () => (await mailsTo(services, known.email)).length >= 3, 60_000)
  t.equal((await mailsTo(services, known.email)).length, 3, 'three mails an hour')
})
