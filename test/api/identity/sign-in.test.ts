import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { aPerson, decodeJwtClaims, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, services, baseUrl, project } = botica

interface Result {
  readonly login: string
  readonly code: string
  readonly memberships: { readonly id: string }[]
  readonly issue: { readonly details: { readonly text: string }; readonly expression?: string[] }[]
}

const logIn = (body: Record<string, unknown>) => anonymous.post<Result>('/auth/login', body)

t.test('a password becomes a code, and the code tokens of the contract', async (t) => {
  const { email, user, profile } = await aPerson(services, project)
  const { verifier, asked } = pkce()

  const login = await logIn({
    email,
    password: PASSWORD,
    ...asked,
    scope: 'openid email',
    nonce: 'n1',
  })
  t.equal(login.status, 200, login.text)
  t.match(login.body, { login: String, code: String })
  const answer = await redeemCode(baseUrl, login.body.code, verifier, { client_id: '' })
  t.equal(answer.status, 200, answer.text)
  t.match(answer.body, {
    token_type: 'Bearer',
    expires_in: 3600,
    scope: 'openid email',
    project: { reference: `Project/${project.id}`, display: project.name },
    profile: { reference: `Practitioner/${profile.id}`, display: 'Ada Lovelace' },
    need_patient_banner: false,
  })
  t.equal(answer.body.refresh_token, undefined)
  t.match(decodeJwtClaims(answer.body.access_token), {
    iss: baseUrl,
    sub: user.id,
    login_id: login.body.login,
    email,
    profile: `Practitioner/${profile.id}`,
  })
  const id = decodeJwtClaims(answer.body.id_token)
  t.match(id, { iss: baseUrl, sub: user.id, nonce: 'n1', login_id: login.body.login })
  t.equal(id.fhirUser, `${baseUrl}fhir/R4/Practitioner/${profile.id}`)
  const me = await createClient(baseUrl, answer.body.access_token).get('/auth/me')
  t.match(me, {
    status: 200,
    body: {
      user: { resourceType: 'User', id: user.id, email },
      profile: { resourceType: 'Practitioner', id: profile.id },
      security: { mfaEnrolled: false, sessions: [{ id: login.body.login }], memberships: [{}] },
    },
  })
  t.notMatch(me.text, /passwordHash|mfaSecret|scrypt/)
  t.equal((await createClient(baseUrl, answer.body.id_token).get('/auth/me')).status, 401)
})

t.test('rejects unknown users and wrong passwords identically', async (t) => {
  const { email } = await aPerson(services, project)
  const wrong = await logIn({ email, password: 'wrong password' })
  const unknown = await logIn({ email: 'nobody@example.org', password: PASSWORD })
  const withoutAny = await logIn({ email, password: PASSWORD, resourceType: 'Patient' })
  for (const answer of [wrong, unknown, withoutAny]) {
    t.equal(answer.status, 400)
    t.equal(answer.body.issue[0]?.details.text, 'Email or password is invalid')
  }
})

t.test('every bad field is named', async (t) => {
  const answer = await logIn({ email: 'nonsense', password: 'abc', scope: 3 })
  t.equal(answer.status, 400)
  t.same(answer.body.issue.map(({ expression }) => expression?.[0]).sort(), [
    'email',
    'password',
    'scope',
  ])
  const { email } = await aPerson(services, project)
  const fine = { email, password: PASSWORD }
  const cases: [Record<string, unknown>, string][] = [
    [{ projectId: randomUUID() }, 'Invalid projectId'],
    [{ clientId: randomUUID() }, 'Client not found'],
    [{ clientId: botica.adminCredentials.id, projectId: randomUUID() }, 'Invalid projectId'],
    [{ launch: randomUUID() }, 'Invalid launch'],
    [{ codeChallenge: 'x' }, 'Invalid code challenge method'],
    [{ codeChallengeMethod: 'S256' }, 'Missing code challenge'],
    [
      { clientId: botica.adminCredentials.id, redirectUri: 'https://evil.example/' },
      'Invalid redirect URI',
    ],
  ]
  for (const [fields, text] of cases) {
    const refused = await logIn({ ...fine, ...fields })
    t.match(refused, { status: 400, body: { issue: [{ details: { text } }] } }, text)
  }
})

t.test('keeps users with the same address apart', async (t) => {
  const other = await botica.createTenant()
  const email = `same-${randomUUID()}@example.org`
  const here = await aPerson(services, project, { email, isProjectScoped: true })
  const there = await aPerson(services, other.project, { email, isProjectScoped: true })
  const nameless = await logIn({ email, password: PASSWORD })
  t.equal(nameless.status, 400, 'project scoped users do not exist where no project is named')
  const own = await logIn({ email, password: PASSWORD, projectId: project.id })
  t.equal(own.status, 200, own.text)
  const server = await aPerson(services, project, { email })
  const plain = await logIn({ email: email.toUpperCase(), password: PASSWORD })
  t.equal(plain.status, 200, plain.text)
  const viaClient = await logIn({ email, password: PASSWORD, clientId: other.adminCredentials.id })
  t.equal(viaClient.status, 200, viaClient.text)
  const users = await Promise.all(
    [own, plain, viaClient].map(async ({ body }) => {
      const login = await botica.superAdmin.get(`Login/${body.login}`)
      return (login.body.user as { reference: string }).reference
    }),
  )
  t.same(
    users,
    [here, server, there].map(({ user }) => `User/${user.id}`),
  )
})

t.test('one of several memberships is chosen, once, and only an own one', async (t) => {
  const other = await botica.createTenant()
  const first = await aPerson(services, project)
  await aPerson(services, other.project, { user: first.user })
  const stranger = await aPerson(services, project)

  const { body } = await logIn({ email: first.email, password: PASSWORD })
  t.equal(body.code, undefined)
  t.match(body.memberships, [{ id: String, profile: { display: 'Ada Lovelace' } }, {}])
  const choose = (profile: unknown) =>
    anonymous.post<Result>('/auth/profile', { login: body.login, profile })
  t.match(await choose(stranger.membership.id), {
    status: 400,
    body: { issue: [{ details: { text: 'Invalid profile' } }] },
  })
  t.match(await choose(randomUUID()), { status: 400 })
  t.match(await choose(''), { status: 400 })
  const again = await anonymous.get<Result>(`/auth/login/${body.login}`)
  t.equal(again.body.memberships.length, 2)
  t.match(await choose(first.membership.id), { status: 200, body: { code: String } })
  t.match(await choose(first.membership.id), {
    status: 400,
    body: { issue: [{ details: { text: 'Login profile already set' } }] },
  })
})

t.test('pauses an account after five wrong passwords', async (t) => {
  const { email } = await aPerson(services, project)
  for (let i = 0; i < 5; i++) t.equal((await logIn({ email, password: `wrong ${i}` })).status, 400)
  const refused = await logIn({ email, password: PASSWORD })
  t.equal(refused.status, 429)
  t.ok(Number(refused.headers.get('retry-after')) > 30)
  const { email: another } = await aPerson(services, project)
  t.equal((await logIn({ email: another, password: PASSWORD })).status, 200)
})
