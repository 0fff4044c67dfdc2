import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, services, baseUrl, project, admin, superAdmin } = botica
const { verifier, asked } = pkce()

const aPolicy = (rules: object[]) =>
  admin.create({
    resourceType: 'AccessPolicy',
    name: 'Somewhere',
    resource: [{ resourceType: 'Patient' }],
    ipAccessRule: rules,
  })
const here = { name: 'here', value: '127.0.0.1', action: 'allow' }
const nowhere = { name: 'nowhere', value: '*', action: 'block' }

const logIn = (email: string, fields: object = {}) =>
  anonymous.post<{ code: string }>('/auth/login', {
    email,
    password: PASSWORD,
    scope: 'openid offline',
    ...asked,
    ...fields,
  })
const grant = (code: string) => redeemCode(baseUrl, code, verifier)

t.test('a person signs in from allowed addresses only, and refreshes from there', async (t) => {
  const policy = await aPolicy([here, nowhere])
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const { email } = await aPerson(services, project, { details: { accessPolicy } })
  const { body: unused } = await logIn(email)
  const { body: login } = await logIn(email)
  const { body: tokens } = await grant(login.code)
  t.ok(tokens.refresh_token)

  t.equal(
    (await admin.put(`AccessPolicy/${policy.id}`, { ...policy, ipAccessRule: [nowhere] })).status,
    200,
  )
  services.principals.forget()
  t.match(await logIn(email), {
    status: 400,
    body: { issue: [{ details: { text: 'IP address not allowed' } }] },
  })
  const denied = {
    status: 400,
    body: { error: 'access_denied', error_description: 'IP address not allowed' },
  }
  t.match(await grant(unused.code), denied)
  const refresh = { grant_type: 'refresh_token', refresh_token: tokens.refresh_token }
  t.match(await askToken(baseUrl, refresh), denied)
})

t.test('rejects a client at an address that its policy does not allow', async (t) => {
  const policy = await aPolicy([nowhere])
  const reference = `AccessPolicy/${policy.id}`
  const made = await admin.post<{ id: string; secret: string }>(
    `/admin/projects/${project.id}/client`,
    { name: 'Elsewhere', accessPolicy: { reference } },
  )
  const { id, secret } = made.body
  const form = { grant_type: 'client_credentials', client_id: id, client_secret: secret }
  t.match(await askToken(baseUrl, form), { status: 400, body: { error: 'access_denied' } })
})

t.test('denies sign-in to members whose policy was deleted', async (t) => {
  const accessPolicy = { reference: 'AccessPolicy/00000000-0000-4000-8000-000000000000' }
  const { email } = await aPerson(services, project, { details: { accessPolicy } })
  t.match(await logIn(email), {
    status: 400,
    body: { issue: [{ details: { text: /^Cannot authenticate: Invalid access policy/ } }] },
  })
})

t.test('rejects a sign-in with a deleted profile or an inactive membership', async (t) => {
  const gone = await aPerson(services, project)
  t.equal((await admin.del(`Practitioner/${gone.profile.id}`)).status, 200)
  services.principals.forget()
  t.match(await logIn(gone.email), { status: 400 })
  const resting = await aPerson(services, project)
  const path = `ProjectMembership/${resting.membership.id}`
  const { body } = await superAdmin.get(path)
  t.equal((await superAdmin.put(path, { ...body, active: false })).status, 200)
  t.match(await logIn(resting.email), {
    status: 400,
    body: { issue: [{ details: { text: 'Email or password is invalid' } }] },
  })
})

t.test('a client accepts sign-ins from its own origins', async (t) => {
  const app = await admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    allowedOrigin: ['https://app.example'],
  })
  const { email } = await aPerson(services, project)
  const from = (Origin: string) =>
    anonymous.post(
      '/auth/login',
      { email, password: PASSWORD, clientId: app.id, ...asked },
      { Origin },
    )
  t.equal((await from('https://app.example')).status, 200)
  t.match(await from('https://evil.example'), {
    status: 400,
    body: { issue: [{ details: { text: 'Invalid origin' } }] },
  })
})

t.test('a project can require Google sign-in', async (t) => {
  const tenant = await botica.createTenant()
  const path = `Project/${tenant.project.id}`
  const { body } = await superAdmin.get(path)
  const features = ['google-auth-required']
  t.equal((await superAdmin.put(path, { ...body, features })).status, 200)
  services.principals.forget()
  const { email } = await aPerson(services, tenant.project)
  t.match(await logIn(email), {
    status: 400,
    body: { issue: [{ details: { text: 'Google authentication is required' } }] },
  })
})
