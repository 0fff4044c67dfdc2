import { hash, randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, services, baseUrl, project, admin, superAdmin } = botica
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange'
const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token'
const redirectUri = 'https://app.example/callback'

/** The owner of each token of the provider; `busy` makes the provider rate-limit. */
const identities = new Map<string, Record<string, string>>()
const seen: string[] = []
/** The verifier that came with each code. */
const verifiers = new Map<string, string | null>()
const provider = createServer((req, res) => {
  const token = (req.headers.authorization ?? '').replace('Bearer ', '')
  seen.push(`${req.method} ${req.url} ${req.headers.authorization}`)
  if (req.url === '/token') {
    let body = ''
    req.on('data', (data) => {
      body += data
    })
    req.on('end', () => {
      const form = new URLSearchParams(body)
      const code = form.get('code') ?? ''
      verifiers.set(code, form.get('code_verifier'))
      if (identities.has(code)) res.end(JSON.stringify({ access_token: code }))
      else res.writeHead(400).end('{}')
    })
    return
  }
  if (token === 'busy') res.writeHead(429).end()
  else if (token === 'odd') res.end('not JSON')
  else if (identities.has(token)) res.end(JSON.stringify(identities.get(token)))
  else res.writeHead(401).end()
})
const origin = `http://127.0.0.1:${await listen(t, provider)}`
const identityProvider = {
  authorizeUrl: `${origin}/authorize`,
  tokenUrl: `${origin}/token`,
  userInfoUrl: `${origin}/userinfo`,
  clientId: 'at the provider',
  clientSecret: 'planted provider secret',
}

const aClient = (changes: object = {}) =>
  admin.create({
    resourceType: 'ClientApplication',
    name: 'External',
    redirectUris: [redirectUri],
    identityProvider: { ...identityProvider, ...changes },
  })
const [byEmail, bySubject, plain] = [
  await aClient(),
  await aClient({ useSubject: true }),
  await admin.create({ resourceType: 'ClientApplication', name: 'Plain' }),
]

const exchange = (token: string, form: Record<string, string> = {}) =>
  askToken(baseUrl, {
    grant_type: EXCHANGE,
    client_id: byEmail.id,
    subject_token: token,
    subject_token_type: ACCESS_TOKEN,
    ...form,
  })

t.test('exchanges a token of the provider for a token of the service', async (t) => {
  const person = await aPerson(services, project)
  identities.set('good', { email: person.email, sub: 's1' })
  const { status, body, text } = await exchange('good')
  t.equal(status, 200, text)
  t.match(body, { scope: 'openid offline', refresh_token: String, token_type: 'Bearer' })
  const me = await createClient(baseUrl, body.access_token).get('/auth/me')
  t.match(me.body, { user: { id: person.user.id } })
  const older = await anonymous.post('/auth/exchange', {
    externalAccessToken: 'good',
    clientId: byEmail.id,
  })
  t.match(older, { status: 200, body: { access_token: String } })
  const chosen = await exchange('good', { membership_id: person.membership.id ?? '' })
  t.equal(chosen.status, 200)
})

t.test('rejects self-service calls that a Project makes for a user', async (t) => {
  const person = await aPerson(services, project)
  const user = `User/${person.user.id}`
  identities.set('claimed', { email: person.email, sub: 'c1' })
  const { verifier, asked } = pkce()
  const begun = await anonymous.post<{ login: string; code: string }>('/auth/login', {
    email: person.email,
    password: PASSWORD,
    ...asked,
  })
  const { login, code } = begun.body
  const own = createClient(baseUrl, (await redeemCode(baseUrl, code, verifier)).body.access_token)
  const claimed = createClient(baseUrl, (await exchange('claimed')).body.access_token)
  const acting = { 'X-Medplum-On-Behalf-Of': `ProjectMembership/${person.membership.id}` }
  const address = {
    resourceType: 'Parameters',
    parameter: [
      { name: 'email', valueString: `${randomUUID()}@example.org` },
      { name: 'skipEmailVerification', valueBoolean: true },
    ],
  }
  const names = [{ op: 'replace', path: '/firstName', value: 'Changed' }]
  for (const [who, client, headers] of [
    ['by a provider', claimed, {}],
    ['by an administrator', admin, acting],
  ] as const) {
    t.equal((await client.post(`${user}/$update-email`, address, headers)).status, 403, who)
    t.equal((await client.get('/auth/mfa/status', headers)).status, 403, who)
    const token = { token: '000000' }
    t.equal((await client.post('/auth/mfa/enroll', token, headers)).status, 403, who)
    const revoked = await client.post('/auth/revoke', { loginId: login }, headers)
    t.equal(revoked.status, 404, who)
    const me = await client.get('/auth/me', headers)
    t.match(me, { status: 200, body: { membership: { id: person.membership.id } } }, who)
    t.notOk('security' in me.body, who)
  }
  t.not((await admin.patch(user, names, acting)).status, 200)
  t.equal((await own.get('/auth/mfa/status')).status, 200)
  t.match((await own.get('/auth/me')).body, { security: { sessions: [{}, {}] } })
  t.equal((await own.post(`${user}/$update-email`, address)).status, 200)

  const scoped = await aPerson(services, project, { isProjectScoped: true })
  identities.set('scoped', { email: scoped.email, sub: 'c2' })
  const member = createClient(baseUrl, (await exchange('scoped')).body.access_token)
  t.equal((await member.get('/auth/mfa/status')).status, 200)
})

t.test('a subject is found by the membership’s externalId in the Project', async (t) => {
  const subject = `sub|${randomUUID()}`
  const person = await aPerson(services, project, { details: {} })
  const membership = `ProjectMembership/${person.membership.id}`
  const { body } = await superAdmin.get(membership)
  t.equal((await superAdmin.put(membership, { ...body, externalId: subject })).status, 200)
  identities.set('subject', { email: 'other@example.org', sub: subject })
  const answer = await exchange('subject', { client_id: bySubject.id })
  t.equal(answer.status, 200, answer.text)
  t.match(answer.body, { profile: { reference: `Practitioner/${person.profile.id}` } })
})

t.test('rejects invalid token exchanges', async (t) => {
  identities.set('nobody', { email: 'nobody@example.org', sub: 'x' })
  identities.set('empty', {})
  const person = await aPerson(services, project)
  identities.set('known', { email: person.email })
  const cases: [string, Record<string, string>, number, string][] = [
    ['', {}, 400, 'invalid_request'],
    ['known', { client_id: '' }, 400, 'invalid_request'],
    ['known', { subject_token_type: 'x' }, 400, 'invalid_request'],
    ['known', { client_id: randomUUID() }, 401, 'invalid_client'],
    ['known', { client_id: plain.id }, 400, 'invalid_grant'],
    ['known', { membership_id: randomUUID() }, 400, 'invalid_grant'],
    ['unknown', {}, 400, 'invalid_grant'],
    ['nobody', {}, 400, 'invalid_grant'],
    ['empty', {}, 400, 'invalid_grant'],
    ['empty', { client_id: bySubject.id }, 400, 'invalid_grant'],
    ['odd', {}, 400, 'invalid_grant'],
    ['busy', {}, 429, 'temporarily_unavailable'],
  ]
  for (const [token, form, status, error] of cases) {
    const answer = await exchange(token, form)
    t.match(answer, { status, body: { error, error_description: String } }, `${token} ${error}`)
    t.notMatch(answer.text, /planted/)
  }
})

t.test('the people of a domain are sent to its provider and come back with a code', async (t) => {
  const domain = `d${randomUUID()}.example`
  await superAdmin.create({ resourceType: 'DomainConfiguration', domain, identityProvider })
  const person = await aPerson(services, project, { email: `ada@${domain}` })
  const { body } = await anonymous.post<{ authorizeUrl: string; domain: string }>('/auth/method', {
    email: person.email,
  })
  t.equal(body.domain, domain)
  const url = new URL(body.authorizeUrl)
  t.equal(url.searchParams.get('redirect_uri'), `${baseUrl}auth/external`)
  t.notMatch(body.authorizeUrl, /planted/)

  identities.set('code', { email: person.email })
  const back = async (state: object, code = 'code') => {
    const query = new URLSearchParams({ code, state: JSON.stringify(state) })
    return await anonymous.get(`/auth/external?${query}`)
  }
  const signedIn = await back({ domain })
  t.equal(signedIn.status, 302, signedIn.text)
  t.match(signedIn.headers.get('location'), `${baseUrl}signin?login=`)
  t.ok(seen.some((line) => line.startsWith('POST /token Basic ')))

  const { verifier, asked } = pkce()
  const app = await aClient()
  const toApp = await back({ clientId: app.id, redirectUri, ...asked })
  const arrived = new URL(toApp.headers.get('location') ?? '')
  t.equal(arrived.origin, 'https://app.example')
  const tokens = await redeemCode(baseUrl, arrived.searchParams.get('code'), verifier, {
    redirect_uri: redirectUri,
  })
  t.equal(tokens.status, 200, tokens.text)

  const stranger = await aPerson(services, project)
  identities.set('foreign', { email: stranger.email })
  const refused: [object, string?][] = [
    [{ domain }, 'foreign'],
    [{ domain }, 'wrong'],
    [{ domain: 'unknown.example' }],
    [{ clientId: app.id, redirectUri: 'https://evil.example/' }],
    [{}],
  ]
  for (const [state, code] of refused) t.equal((await back(state, code)).status, 400)
  t.equal((await anonymous.get('/auth/external?code=x&state=nonsense')).status, 400)
})

t.test('sends a provider the PKCE verifier of its challenge once', async (t) => {
  const domain = `d${randomUUID()}.example`
  const wanting = { ...identityProvider, usePkce: true }
  await superAdmin.create({
    resourceType: 'DomainConfiguration',
    domain,
    identityProvider: wanting,
  })
  const { email } = await aPerson(services, project, { email: `ada@${domain}` })
  const { body } = await anonymous.post<{ authorizeUrl: string }>('/auth/method', { email })
  const { searchParams } = new URL(body.authorizeUrl)
  t.equal(searchParams.get('code_challenge_method'), 'S256')
  const state = searchParams.get('state') ?? ''
  identities.set('pkce', { email })
  const back = (text: string) =>
    anonymous.get(`/auth/external?${new URLSearchParams({ code: 'pkce', state: text })}`)
  const signedIn = await back(state)
  t.equal(signedIn.status, 302, signedIn.text)
  const verifier = verifiers.get('pkce') ?? ''
  t.equal(hash('sha256', verifier, 'base64url'), searchParams.get('code_challenge'))
  t.notMatch(state, verifier)
  t.match(await back(state), { status: 400, body: { issue: [{ expression: ['state'] }] } })
  t.equal((await back(JSON.stringify({ domain }))).status, 400, 'no way round it')

  // The SDK keeps its verifier in the browser, so that only `plain` can work.
  const app = await aClient({ usePkce: true })
  const asked = { clientId: app.id, redirectUri, codeChallenge: 'c'.repeat(43) }
  const plainly = await back(JSON.stringify({ ...asked, codeChallengeMethod: 'plain' }))
  t.equal(plainly.status, 302, plainly.text)
  t.equal(verifiers.get('pkce'), asked.codeChallenge)
  const hashed = await back(JSON.stringify({ ...asked, codeChallengeMethod: 'S256' }))
  t.match(hashed, {
    status: 400,
    body: { issue: [{ details: { text: /^Missing code verifier/ } }] },
  })
})
