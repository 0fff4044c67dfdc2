/** Imports mails and security requests, because only the mailbox of a user shows them. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { readMails } from '../../../shared/outbound/mails.ts'
import { createSecurityRequest } from '../../../shared/projects/security-requests.ts'
import { readUser } from '../../../shared/projects/users.ts'
import { oneTimeCode } from '../../fixtures/accounts.ts'
import { openBotica, type Tenant, until } from '../../fixtures/botica.ts'
import { type Client, createClient } from '../../fixtures/client.ts'
import { aPerson, PASSWORD, type Person, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t, { env: { REGISTER_ENABLED: 'true' } })
const closed = await openBotica(t)
const { anonymous, services, baseUrl, project, superAdmin } = botica
const NEW_PASSWORD = 'another long password'

interface Result {
  readonly login: string
  readonly code: string
  readonly mfaRequired: boolean
  readonly mfaEnrollRequired: boolean
  readonly enrollUri: string
  readonly enrollQrCode: string
  readonly issue: { readonly details: { readonly text: string }; readonly expression: string[] }[]
}

const post = (path: string, body: unknown, client = anonymous) =>
  client.post<Result>(`/auth/${path}`, body)
const { verifier, asked } = pkce()
const logIn = (email: string, password = PASSWORD, fields: Record<string, unknown> = {}) =>
  post('login', { email, password, ...asked, ...fields })

async function exchangeCode(code: string): Promise<Client> {
  const answer = await redeemCode(baseUrl, code, verifier)
  if (answer.status !== 200) throw new Error(answer.text)
  return createClient(baseUrl, answer.body.access_token)
}

const signIn = async ({ email }: Person) => exchangeCode((await logIn(email)).body.code)
const failure = (text: string) => ({ status: 400, body: { issue: [{ details: { text } }] } })
const names = { firstName: 'Grace', lastName: 'Hopper' }
const anAddress = () => `g${randomUUID()}@example.org`

t.test('registers a user and makes the creator of a project its administrator', async (t) => {
  const email = anAddress()
  const user = await post('newuser', { ...names, email, password: NEW_PASSWORD, ...asked })
  t.equal(user.status, 200, user.text)
  t.equal(user.body.code, undefined)
  const { login } = user.body
  t.match(await post('newproject', { login, projectName: 'abc' }), { status: 400 })
  const made = await post('newproject', { login, projectName: 'Ward 7' })
  t.equal(made.status, 200, made.text)
  const client = await exchangeCode(made.body.code)
  t.match((await client.get('/auth/me')).body, {
    project: { name: 'Ward 7' },
    membership: { admin: true },
    profile: { resourceType: 'Practitioner', name: [{ family: 'Hopper' }] },
  })
  t.match((await client.get<{ entry: object[] }>('ClientApplication')).body.entry, [{}])
  const again = await post('newproject', { login, projectName: 'Ward 8' })
  t.match(again, failure('Login already granted'))
  const taken = await post('newuser', {
    ...names,
    email: email.toUpperCase(),
    password: NEW_PASSWORD,
  })
  t.same([taken.status, Object.keys(taken.body)], [200, ['login']], 'as if it were new')
})

t.test('accepts one of several registrations of an address', async (t) => {
  const body = { ...names, email: anAddress(), password: NEW_PASSWORD }
  const answers = await Promise.all([post('newuser', body), post('newuser', body)])
  t.same(
    answers.map(({ status }) => status),
    [200, 200],
  )
  const made = await Promise.all(
    answers.map(({ body: { login } }) => post('newproject', { login, projectName: 'Ward 9' })),
  )
  t.same(made.map(({ status }) => status).sort(), [200, 400])
})

t.test('registration is closed unless it was opened', async (t) => {
  const body = { ...names, email: anAddress(), password: NEW_PASSWORD }
  t.match(await closed.anonymous.post('/auth/newuser', body), failure('Registration is disabled'))
  const inProject = { ...body, projectId: closed.project.id }
  t.match(
    await closed.anonymous.post('/auth/newuser', inProject),
    failure('Registration is disabled'),
  )
})

async function openToPatients({ admin, project }: Tenant): Promise<void> {
  const policy = await admin.create({
    resourceType: 'AccessPolicy',
    name: 'Patients',
    resource: [{ resourceType: 'Patient' }],
  })
  const known = await admin.get(`Project/${project.id}`)
  const defaultPatientAccessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const changed = { ...known.body, defaultPatientAccessPolicy }
  const saved = await admin.put(`Project/${project.id}`, changed)
  if (saved.status !== 200) throw new Error(saved.text)
}

t.test('a project with a policy for patients takes them in', async (t) => {
  const { anonymous: nobody } = closed
  await openToPatients(closed)
  const projectId = closed.project.id
  const body = { ...names, email: anAddress(), password: NEW_PASSWORD, projectId, ...asked }
  const user = await nobody.post<Result>('/auth/newuser', body)
  t.equal(user.status, 200, user.text)
  const { login } = user.body
  const project = await nobody.post('/auth/newproject', { login, projectName: 'Mine' })
  t.match(project, failure('Registration is disabled'))
  const elsewhere = await nobody.post('/auth/newpatient', { login, projectId: botica.project.id })
  t.match(elsewhere, failure('Project does not allow open registration'))
  const patient = await nobody.post<Result>('/auth/newpatient', { login, projectId })
  t.equal(patient.status, 200, patient.text)
  const again = await nobody.post('/auth/newpatient', { login, projectId })
  t.match(again, failure('Login already has a membership'))
  const tokens = await redeemCode(closed.baseUrl, patient.body.code, verifier)
  const me = await createClient(closed.baseUrl, tokens.body.access_token).get('/auth/me')
  t.match(me.body, { profile: { resourceType: 'Patient' }, user: { email: body.email } })
  t.equal(tokens.body.patient, (me.body.profile as { id: string }).id)
})

const total = async (client: Client, path: string) =>
  (await client.get<{ total: number }>(path)).body.total

async function registeredIn(projectId: string): Promise<Result> {
  const body = { ...names, email: anAddress(), password: NEW_PASSWORD, projectId, ...asked }
  return (await post('newuser', body)).body
}

t.test('a sign-in registers once', async (t) => {
  const open = await botica.createTenant()
  await openToPatients(open)
  const projectId = open.project.id
  const { login } = await registeredIn(projectId)
  const both = [post('newpatient', { login, projectId }), post('newpatient', { login, projectId })]
  const statuses = (await Promise.all(both)).map(({ status }) => status)
  t.same(statuses.sort(), [200, 400])
  t.equal(await total(open.admin, 'Patient?_summary=count'), 1)
  t.equal(await total(open.admin, 'ProjectMembership?profile-type=Patient&_summary=count'), 1)

  const email = anAddress()
  const user = await post('newuser', { ...names, email, password: NEW_PASSWORD, ...asked })
  const projectName = `Ward ${randomUUID()}`
  const request = { login: user.body.login, projectName }
  await Promise.all([post('newproject', request), post('newproject', request)])
  t.equal(
    await total(superAdmin, `Project?name=${encodeURIComponent(projectName)}&_summary=count`),
    1,
  )
})

t.test('a registration needs the second factor first', async (t) => {
  const enroll = ({ login, enrollUri }: Result) => {
    const secret = new URL(enrollUri).searchParams.get('secret') ?? ''
    const token = oneTimeCode(secret, Math.floor(Date.now() / 30_000))
    return post('mfa/login-enroll', { login, token })
  }
  const { user, email } = await aPerson(services, project, { mfaRequired: true })
  const { body: begun } = await logIn(email, PASSWORD, { projectId: 'new' })
  const founded = () => post('newproject', { login: begun.login, projectName: 'Ward 10' })
  t.match((await founded()).body, { mfaEnrollRequired: true, code: undefined })
  const memberships = `ProjectMembership?user=User/${user.id}&_summary=count`
  t.equal(await total(superAdmin, memberships), 1)
  t.match((await enroll(begun)).body, { login: begun.login, code: undefined })
  t.match((await founded()).body, { code: String })

  const strict = await botica.createTenant()
  await openToPatients(strict)
  const projectId = strict.project.id
  const settings = [{ name: 'mfaRequired', valueBoolean: true }]
  const path = `/admin/projects/${projectId}/settings`
  const json = { 'Content-Type': 'application/json' }
  t.equal((await strict.admin.post(path, settings, json)).status, 200)
  const { login } = await registeredIn(projectId)
  const { body: step } = await post('newpatient', { login, projectId })
  t.match(step, { mfaEnrollRequired: true, code: undefined })
  t.equal(await total(strict.admin, 'Patient?_summary=count'), 0)
  t.equal((await enroll(step)).status, 200)
  t.match((await post('newpatient', { login, projectId })).body, { code: String })
})

t.test('rejects weak passwords on every path that sets one', async (t) => {
  const base = { ...names, email: anAddress() }
  t.match(await post('newuser', { ...base, password: 'short' }), { status: 400 })
  const known = failure('Password found in breach database')
  t.match(await post('newuser', { ...base, password: 'Password123!' }), known)
  t.match(await post('newuser', { ...base, password: 'x'.repeat(257) }), { status: 400 })
})

t.test('changing a password ends the other logins', async (t) => {
  const person = await aPerson(services, project)
  const [here, there] = await Promise.all([signIn(person), signIn(person)])
  const change = (body: unknown) => post('changepassword', body, here)
  const wrong = await change({ oldPassword: 'wrong', newPassword: NEW_PASSWORD })
  t.match(wrong, failure('Incorrect password'))
  t.same(wrong.body.issue[0]?.expression, ['oldPassword'])
  t.match(await change({ oldPassword: PASSWORD, newPassword: 'password1' }), { status: 400 })
  t.equal((await change({ oldPassword: PASSWORD, newPassword: NEW_PASSWORD })).status, 200)
  t.equal((await here.get('/auth/me')).status, 200)
  t.equal((await there.get('/auth/me')).status, 401)
  t.equal((await logIn(person.email)).status, 400)
  t.equal((await logIn(person.email, NEW_PASSWORD)).status, 200)
  t.equal((await botica.admin.post('/auth/changepassword', {})).status, 403)
  t.equal((await anonymous.post('/auth/changepassword', {})).status, 401)
})

t.test('mails resets to known users without revealing whether a user exists', async (t) => {
  const person = await aPerson(services, project)
  const client = await signIn(person)
  const unknown = await post('resetpassword', { email: anAddress() })
  const known = await post('resetpassword', { email: person.email })
  t.same(
    [known.status, known.text.replace(/[0-9a-f-]{36}/g, '')],
    [200, unknown.text.replace(/[0-9a-f-]{36}/g, '')],
  )
  const findMail = async () =>
    (await readMails(services.database, 1000)).find(({ message }) => message.to[0] === person.email)
  await until(async () => (await findMail()) !== undefined, 60_000)
  const text = (await findMail())?.message.text ?? ''
  const [, id, secret = ''] = /setpassword\/([\w-]+)\/([0-9a-f]{32})/.exec(text) ?? []
  const set = (fields: object) =>
    post('setpassword', { id, secret, password: NEW_PASSWORD, ...fields })
  t.match(await set({ secret: 'a'.repeat(32) }), failure('Incorrect secret'))
  t.match(await set({ password: 'password1' }), failure('Password found in breach database'))
  const racing = await Promise.all([set({}), set({})])
  t.same(racing.map(({ status }) => status).sort(), [200, 400])
  t.match(await set({}), failure('Already used'))
  t.equal((await client.get('/auth/me')).status, 401)
  t.equal((await logIn(person.email, NEW_PASSWORD)).status, 200)
  t.match(await readUser(services.repository, person.user.id), { emailVerified: true })
  t.match(await set({ id: randomUUID() }), { status: 404 })
})

t.test('limits a link to one purpose and lifetime, and resists guessing', async (t) => {
  const { user } = await aPerson(services, project)
  const make = (type: 'reset' | 'verify-email') =>
    createSecurityRequest(services.repository, system, { type, user })
  const verify = await make('verify-email')
  t.match(
    await post('setpassword', { ...verify, password: NEW_PASSWORD }),
    failure('Invalid request type'),
  )
  t.equal((await post('verifyemail', verify)).status, 200)
  t.match(await post('verifyemail', verify), failure('Already used'))
  const reset = await make('reset')
  t.match(await post('verifyemail', reset), failure('Invalid request type'))
  for (let i = 0; i < 5; i++) {
    const guess = { ...reset, secret: 'b'.repeat(32), password: NEW_PASSWORD }
    t.match(await post('setpassword', guess), failure('Incorrect secret'))
  }
  t.match(await post('setpassword', { ...reset, password: NEW_PASSWORD }), failure('Already used'))
  const old = await make('reset')
  await services.repository.patch(
    system,
    { type: 'UserSecurityRequest', id: old.id },
    (request) => ({
      ...request,
      expires: '2020-01-01T00:00:00.000Z',
    }),
  )
  t.match(await post('setpassword', { ...old, password: NEW_PASSWORD }), failure('Expired'))
})

t.test('enrols, requires and removes a second factor', async (t) => {
  const person = await aPerson(services, project)
  const client = await signIn(person)
  const status = await client.get<Result & { enrolled: boolean }>('/auth/mfa/status')
  t.match(status.body, { enrolled: false, enrollQrCode: /^data:image\/svg\+xml;base64,/ })
  const secret = new URL(status.body.enrollUri).searchParams.get('secret') ?? ''
  // The clock may reach the next step while this runs; each step counts once.
  const used = new Set<number>()
  const freshToken = () => {
    const now = Math.floor(Date.now() / 30_000)
    const step = [now, now + 1, now - 1].find((candidate) => !used.has(candidate)) ?? now
    used.add(step)
    return oneTimeCode(secret, step)
  }
  t.match(await post('mfa/disable', { token: '1' }, client), failure('User not enrolled in MFA'))
  t.match(await post('mfa/enroll', { token: '000' }, client), failure('Invalid token'))
  const first = freshToken()
  t.equal((await post('mfa/enroll', { token: first }, client)).status, 200)
  t.match(await post('mfa/enroll', { token: first }, client), failure('Already enrolled'))
  t.match((await client.get('/auth/mfa/status')).body, { enrolled: true })

  const { body } = await logIn(person.email)
  t.match(body, { login: String, mfaRequired: true })
  t.equal(body.code, undefined)
  t.equal((await anonymous.get<Result>(`/auth/login/${body.login}`)).body.code, undefined)
  const skip = await post('profile', { login: body.login, profile: person.membership.id })
  t.equal(skip.body.code, undefined)
  const verify = (value: string) => post('mfa/verify', { login: body.login, token: value })
  t.match(await verify(first), failure('Invalid MFA token'), 'a step counts once')
  const second = freshToken()
  t.match(await verify(second), { status: 200, body: { code: String } })
  t.match(await verify(second), failure('Login already verified'))

  const { body: guessed } = await logIn(person.email)
  for (let i = 0; i < 5; i++) {
    const wrong = { login: guessed.login, token: '000000' }
    t.match(await post('mfa/verify', wrong), failure('Invalid MFA token'))
  }
  t.match(
    await post('mfa/verify', { login: guessed.login, token: second }),
    failure('Login revoked'),
  )
  // The oldest of three steps may expire meanwhile.
  await until(async () => {
    return (await post('mfa/disable', { token: freshToken() }, client)).status === 200
  }, 60_000)
  t.match((await logIn(person.email)).body, { code: String })
})

t.test('enrols a required second factor during sign-in', async (t) => {
  const person = await aPerson(services, project, { mfaRequired: true })
  const { body } = await logIn(person.email)
  t.match(body, { mfaEnrollRequired: true, enrollUri: /^otpauth:\/\/totp\/Botica:/ })
  t.equal(body.code, undefined)
  const secret = new URL(body.enrollUri).searchParams.get('secret') ?? ''
  const token = oneTimeCode(secret, Math.floor(Date.now() / 30_000))
  const { body: done } = await post('mfa/login-enroll', { login: body.login, token })
  const client = await exchangeCode(done.code)
  t.match(await post('mfa/disable', { token }, client), failure('A second factor is required'))
})

t.test('lets users end only their own logins', async (t) => {
  const [person, stranger] = [await aPerson(services, project), await aPerson(services, project)]
  const [client, other] = [await signIn(person), await signIn(stranger)]
  const { body } = await client.get<{ security: { sessions: { id: string }[] } }>('/auth/me')
  const loginId = body.security.sessions[0]?.id
  t.equal((await post('revoke', { loginId }, other)).status, 404)
  t.equal((await post('revoke', { loginId }, client)).status, 200)
  t.equal((await client.get('/auth/me')).status, 401)
})

t.test('a scope is narrowed by its owner, never widened', async (t) => {
  const { email } = await aPerson(services, project)
  const scope = 'openid user/Patient.rs user/Observation.rs'
  const { body } = await logIn(email, PASSWORD, { scope: `${scope} nonsense` })
  const choose = (words: string) => post('scope', { login: body.login, scope: words })
  for (const words of ['openid', `${scope} email`, 'openid user/*.cruds', ' ']) {
    t.match(await choose(words), { status: 400 }, words)
  }
  const { body: chosen } = await choose('openid user/Patient.rs')
  const client = await exchangeCode(chosen.code)
  t.equal((await client.get('Patient')).status, 200)
  t.equal((await client.get('Observation')).status, 403)
})

t.test('returns the sign-in method and the public details of an app', async (t) => {
  t.same((await post('method', { email: anAddress() })).body, {})
  t.match(await post('google', { googleClientId: 'x', googleCredential: 'y' }), {
    ...failure('Invalid googleClientId'),
  })
  const app = await botica.admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    signInForm: { welcomeString: 'Hello' },
    secret: 'planted',
  })
  t.same((await anonymous.get(`/auth/clientinfo/${app.id}`)).body, { welcomeString: 'Hello' })
  t.equal((await anonymous.get(`/auth/clientinfo/${randomUUID()}`)).status, 404)
  t.equal((await superAdmin.get('/auth/login/x')).status, 400)
})
