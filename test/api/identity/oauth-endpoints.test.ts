import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import {
  aPerson,
  askToken,
  decodeJwtClaims,
  PASSWORD,
  pkce,
  redeemCode,
} from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, services, baseUrl, project, admin } = botica
const redirectUri = 'https://app.example/callback?kept=1'
const app = await admin.create({
  resourceType: 'ClientApplication',
  name: 'App',
  redirectUris: [redirectUri, 'http://127.0.0.1/callback'],
  launchUri: 'https://app.example/launch',
})
const person = await aPerson(services, project)
const { verifier, asked } = pkce()

async function requestTokens(fields: Record<string, unknown> = {}) {
  const login = await anonymous.post<{ code: string }>(
    '/auth/login',
    { email: person.email, password: PASSWORD, clientId: app.id, ...asked, ...fields },
    // Acts as a page of the service, whose browser gets a session.
    { Origin: new URL(baseUrl).origin },
  )
  const answer = await redeemCode(baseUrl, login.body.code, verifier)
  if (answer.status !== 200) throw new Error(login.text + answer.text)
  const cookies = login.headers.getSetCookie()
  return { ...answer.body, cookie: cookies.find((line) => line.includes(app.id)) ?? '' }
}

async function authorize(parameters: Record<string, string>, headers: Record<string, string> = {}) {
  const query = new URLSearchParams({
    client_id: app.id,
    redirect_uri: redirectUri,
    response_type: 'code',
    scope: 'openid',
    state: 's',
    ...parameters,
  })
  const answer = await anonymous.get(`/oauth2/authorize?${query}`, headers)
  const location = answer.headers.get('location')
  return { ...answer, url: location === null ? undefined : new URL(location) }
}

t.test('never redirects to an unregistered URL', async (t) => {
  const tricks = [
    'https://app.example/callback',
    'https://app.example/callback?kept=1&more=1',
    'https://app.example/callback?kept=1#fragment',
    'https://app.example:443/callback?kept=1',
    'https://app.example@evil.example/callback?kept=1',
    'https://APP.example/callback?kept=1',
    'https://evil.example/callback?kept=1',
    '//app.example/callback?kept=1',
    'javascript:alert(1)',
    'http://127.0.0.1:80@evil.example/callback',
    'http://127.0.0.1.evil.example/callback',
    'http://localhost/callback',
    'http://127.0.0.1:99999999/callback',
    '',
  ]
  for (const redirect_uri of tricks) {
    const { status, url, text, headers } = await authorize({ redirect_uri })
    t.same([status, url, text], [400, undefined, 'Invalid redirect URI'], redirect_uri)
    t.match(headers.get('content-type'), /^text\/plain/)
  }
  const ported = await authorize({ redirect_uri: 'http://127.0.0.1:5123/callback' })
  t.equal(ported.status, 302)
  for (const client_id of ['', randomUUID(), '../x']) {
    t.match(await authorize({ client_id }), { status: 400, text: 'Client not found' })
  }
})

t.test('sends all other errors to the app', async (t) => {
  const cases: [Record<string, string>, string][] = [
    [{ response_type: 'token' }, 'unsupported_response_type'],
    [{ response_type: '' }, 'unsupported_response_type'],
    [{ scope: '' }, 'invalid_request'],
    [{ aud: 'https://elsewhere.example/fhir' }, 'invalid_request'],
    [{ aud: 'nonsense' }, 'invalid_request'],
    [{ launch: randomUUID() }, 'invalid_request'],
    [{ code_challenge: 'x' }, 'invalid_request'],
    [{ code_challenge: 'x', code_challenge_method: 'S512' }, 'invalid_request'],
    [{ request: 'eyJ' }, 'request_not_supported'],
    [{ prompt: 'none' }, 'login_required'],
  ]
  for (const [parameters, error] of cases) {
    const { status, url } = await authorize(parameters)
    t.equal(status, 302)
    t.match(
      Object.fromEntries(url?.searchParams ?? []),
      { kept: '1', error, error_description: String, state: 's', iss: baseUrl },
      error,
    )
    t.equal(url?.origin, 'https://app.example')
  }
  const fine = await authorize({ aud: `${baseUrl}fhir/R4` })
  t.equal(fine.url?.pathname, '/oauth')
})

t.test('a recent session answers its client without a page', async (t) => {
  const { cookie, id_token } = await requestTokens()
  t.match(cookie, new RegExp(`^medplum-${app.id}=.*HttpOnly`))
  const headers = { Cookie: cookie.split(';')[0] ?? '' }
  const known = await authorize({ prompt: 'none', nonce: 'n2' }, headers)
  t.match(Object.fromEntries(known.url?.searchParams ?? []), {
    code: String,
    state: 's',
    iss: baseUrl,
  })
  const hinted = await authorize({ prompt: 'none', id_token_hint: id_token }, headers)
  t.ok(hinted.url?.searchParams.get('code'))
  const page = await authorize({}, headers)
  t.match(page.url?.searchParams.get('login'), /^[\w-]{36}$/)
  const old = await authorize({ prompt: 'none', max_age: '0' }, headers)
  t.equal(old.url?.searchParams.get('error'), 'login_required')
  const other = await admin.create({
    resourceType: 'ClientApplication',
    name: 'Other',
    redirectUris: [redirectUri],
  })
  const stolen = { Cookie: headers.Cookie.replace(app.id, other.id) }
  for (const [parameters, sent] of [
    [{ client_id: other.id }, stolen],
    [{ client_id: other.id, id_token_hint: id_token }, {}],
    [{}, { Cookie: `${headers.Cookie.slice(0, -4)}AAAA` }],
  ] as const) {
    const refused = await authorize({ prompt: 'none', ...parameters }, sent)
    t.equal(refused.url?.searchParams.get('error'), 'login_required')
  }
})

t.test('a logout ends the session for browser and app', async (t) => {
  const { cookie, access_token, id_token } = await requestTokens()
  const client = createClient(baseUrl, access_token)
  t.match(await client.post('/oauth2/logout', {}), { status: 200, body: { id: 'ok' } })
  t.equal((await client.get('/auth/me')).status, 401)
  const headers = { Cookie: cookie.split(';')[0] ?? '' }
  const after = await authorize({ prompt: 'none' }, headers)
  t.equal(after.url?.searchParams.get('error'), 'login_required')

  const second = await requestTokens()
  const query = new URLSearchParams({
    id_token_hint: second.id_token,
    post_logout_redirect_uri: 'https://app.example/bye',
    state: 'x',
  })
  const left = await anonymous.get(`/oauth2/logout?${query}`)
  t.same([left.status, left.headers.get('location')], [302, 'https://app.example/bye?state=x'])
  t.equal((await createClient(baseUrl, second.access_token).get('/auth/me')).status, 401)
  query.set('post_logout_redirect_uri', 'https://evil.example/')
  query.set('id_token_hint', id_token)
  const elsewhere = await anonymous.get(`/oauth2/logout?${query}`)
  t.equal(elsewhere.headers.get('location'), `${baseUrl}signin`)
})

t.test('introspects tokens only for callers of the Project', async (t) => {
  const { access_token } = await requestTokens()
  const ask = (token: string, headers: Record<string, string>) =>
    fetch(`${baseUrl}oauth2/introspect`, {
      method: 'POST',
      headers,
      body: new URLSearchParams({ token }),
    })
  const bearer = { Authorization: `Bearer ${admin.token}` }
  t.match(await (await ask(access_token, bearer)).json(), {
    active: true,
    sub: person.user.id,
    client_id: app.id,
    token_type: 'Bearer',
    scope: 'openid',
  })
  t.same(await (await ask('nonsense', bearer)).json(), { active: false })
  t.equal((await ask(access_token, {})).status, 401)
  const tenant = await botica.createTenant()
  const foreign = { Authorization: `Bearer ${tenant.admin.token}` }
  t.same(await (await ask(access_token, foreign)).json(), { active: false })
})

t.test('a refresh token is revoked by its client alone', async (t) => {
  const { refresh_token, access_token } = await requestTokens({ scope: 'openid offline' })
  const revoke = (token: string, client_id: string) =>
    fetch(`${baseUrl}oauth2/revoke`, {
      method: 'POST',
      body: new URLSearchParams({ token, client_id }),
    })
  t.equal((await revoke(refresh_token, 'medplum-cli')).status, 200)
  const client = createClient(baseUrl, access_token)
  t.equal((await client.get('/auth/me')).status, 200)
  const answer = await revoke(refresh_token, app.id)
  t.same([answer.status, answer.headers.get('content-length')], [200, '0'])
  t.equal((await client.get('/auth/me')).status, 401)
  t.equal((await revoke('unknown', app.id)).status, 200)
  t.equal((await revoke(refresh_token, randomUUID())).status, 401)
})

t.test('revokes for a public client that has a secret all the same', async (t) => {
  const fields = {
    resourceType: 'ClientApplication',
    secret: 'unused',
    redirectUris: [redirectUri],
  }
  const [open, closed] = await Promise.all(
    ['none', 'client_secret_post'].map((tokenEndpointAuthMethod) =>
      admin.create({ ...fields, tokenEndpointAuthMethod }),
    ),
  )
  const revoke = async (client_id = '', token = '') =>
    (
      await fetch(`${baseUrl}oauth2/revoke`, {
        method: 'POST',
        body: new URLSearchParams({ token, client_id }),
      })
    ).status
  const { access_token } = await requestTokens({ clientId: open?.id })
  const client = createClient(baseUrl, access_token)
  t.equal((await client.get('/auth/me')).status, 200)
  t.equal(await revoke(open?.id, access_token), 200)
  t.equal((await client.get('/auth/me')).status, 401)
  t.equal(await revoke(closed?.id, access_token), 400, 'a confidential client proves itself')
})

t.test('limits userinfo to the scope', async (t) => {
  const { access_token } = await requestTokens({ scope: 'openid profile email phone address' })
  const { status, body } = await createClient(baseUrl, access_token).get('/oauth2/userinfo')
  t.equal(status, 200)
  t.match(body, {
    sub: person.profile.id,
    name: 'Ada Lovelace',
    given_name: 'Ada',
    family_name: 'Lovelace',
    email: person.email,
    email_verified: false,
  })
  t.notOk('phone_number' in body)
  const { access_token: bare } = await requestTokens()
  t.same((await createClient(baseUrl, bare).get('/oauth2/userinfo')).body, {
    sub: person.profile.id,
  })
})

t.test('an app is launched for a patient', async (t) => {
  const patient = await admin.create({ resourceType: 'Patient' })
  const launch = (body: unknown) => admin.post(`ClientApplication/${app.id}/$smart-launch`, body)
  const parameters = (...names: string[]) => ({
    resourceType: 'Parameters',
    parameter: names.map((name) => ({ name, valueString: patient.id })),
  })
  t.equal((await launch(parameters())).status, 400)
  t.equal((await launch(parameters('patient', 'encounter'))).status, 400)
  const answer = await launch(parameters('patient'))
  t.equal(answer.status, 302, answer.text)
  const url = new URL(answer.headers.get('location') ?? '')
  t.equal(url.searchParams.get('iss'), `${baseUrl}fhir/R4/`)
  const scope = 'openid launch launch/patient patient/*.rs'
  const launched = await requestTokens({ launch: url.searchParams.get('launch'), scope })
  t.match(launched, { patient: patient.id, need_patient_banner: true, scope })
  const refused = await anonymous.post('/auth/login', {
    email: person.email,
    password: PASSWORD,
    launch: url.searchParams.get('launch'),
  })
  t.equal(refused.status, 400, 'a launch is for clients of its Project')
})

t.test('a launch names further resources', async (t) => {
  const patient = await admin.create({ resourceType: 'Patient' })
  const form = await admin.create({ resourceType: 'Questionnaire', status: 'active' })
  const foreign = await (await botica.createTenant()).admin.create({
    resourceType: 'Questionnaire',
    status: 'active',
  })
  const launch = (...references: string[]) =>
    admin.post(`ClientApplication/${app.id}/$smart-launch`, {
      resourceType: 'Parameters',
      parameter: [
        { name: 'patient', valueString: patient.id },
        ...references.map((reference) => ({ name: 'fhirContext', valueReference: { reference } })),
      ],
    })
  t.equal((await launch(`Questionnaire/${foreign.id}`)).status, 404)
  t.equal((await launch(`Patient/${patient.id}`)).status, 400)
  t.equal((await launch('somewhere')).status, 400)
  const answer = await launch(`Questionnaire/${form.id}`)
  t.equal(answer.status, 302, answer.text)
  const id = new URL(answer.headers.get('location') ?? '').searchParams.get('launch')
  const launched = await requestTokens({ launch: id, scope: 'openid launch patient/*.rs' })
  t.match(launched, {
    patient: patient.id,
    fhirContext: [{ reference: `Questionnaire/${form.id}` }],
  })
})

t.test('a secret is replaced in two steps', async (t) => {
  const { id, secret } = await botica.createMember()
  const rotate = (name: string, valueString: string, client = admin) =>
    client.post(`ClientApplication/${id}/$rotate-secret`, {
      resourceType: 'Parameters',
      parameter: [{ name, valueString }],
    })
  const grant = (client_secret: string) =>
    askToken(baseUrl, { grant_type: 'client_credentials', client_id: id, client_secret })
  const { client: member } = await botica.createMember()
  t.equal((await rotate('secret', secret, member)).status, 403)
  t.equal((await rotate('secret', 'wrong')).status, 400)
  const { body } = await rotate('secret', secret)
  t.match(body, { secret: /^[0-9a-f]{64}$/, retiringSecret: secret })
  for (const both of [secret, String(body.secret)]) t.equal((await grant(both)).status, 200)
  t.equal((await rotate('retiringSecret', secret)).body.retiringSecret, undefined)
  t.equal((await grant(secret)).status, 401)
})

t.test('discovery lists the supported features', async (t) => {
  const { body } = await anonymous.get<Record<string, string>>('/.well-known/openid-configuration')
  for (const [name, url] of Object.entries(body).filter(([key]) => key.endsWith('_endpoint'))) {
    const { status } = await fetch(url, { redirect: 'manual', method: 'GET' })
    t.not(status, 404, name)
  }
  t.match(body, {
    code_challenge_methods_supported: ['S256'],
    authorization_response_iss_parameter_supported: true,
    response_types_supported: ['code'],
  })
  const smart = await anonymous.get<{ capabilities: string[] }>('.well-known/smart-configuration')
  t.ok(smart.body.capabilities.includes('launch-ehr'))
  t.equal((await anonymous.get('.well-known/smart-styles.json')).status, 200)
  const registered = await anonymous.post('/oauth2/register', {
    redirect_uris: ['http://localhost:9615'],
  })
  t.match(registered, { status: 201, body: { client_id: 'medplum-cli' } })
  t.match(await anonymous.post('/oauth2/register', { redirect_uris: ['https://x.example'] }), {
    status: 400,
    body: { error: String, error_description: String },
  })
  t.match(decodeJwtClaims((await requestTokens()).access_token), {
    aud: baseUrl,
    client_id: app.id,
  })
})
