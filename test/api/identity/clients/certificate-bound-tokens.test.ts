import t from 'tap'
import { agentUrl, anAgent } from '../../../fixtures/agents/agents.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Untyped } from '../../../fixtures/bots/bots.ts'
import { basic, createClient } from '../../../fixtures/client.ts'
import { aPerson, askToken, decodeJwtClaims, PASSWORD, pkce } from '../../../fixtures/people.ts'
import { aCertificate, thumbprint } from '../../../fixtures/services/certificate.ts'
import { openSocket, socketUrl, subscribe } from '../../../fixtures/sockets.ts'

const env = { TRUST_PROXY: 'true', CLIENT_CERTIFICATE_HEADER: 'Client-Cert' }
const botica = await openBotica(t, { env })
const { admin, anonymous, baseUrl, project, services } = botica
const { cert: own } = aCertificate()
const { cert: other } = aCertificate()
const withOwn = { 'Client-Cert': encodeURIComponent(own) }
const withOther = { 'Client-Cert': encodeURIComponent(other) }
const pinned = {
  tokenEndpointAuthMethod: 'self_signed_tls_client_auth',
  tlsClientCertificateThumbprint: [thumbprint(own), thumbprint(other)],
}
const person = await aPerson(services, project)

const anApp = (fields: object = {}) =>
  admin.create({
    resourceType: 'ClientApplication',
    name: 'App',

    ...fields,
  })

/** Signs the person in to the app, and redeems the code with these headers. */
async function redeem(clientId: string, headers: Record<string, string>) {
  const { verifier, asked } = pkce()
  const { body } = await anonymous.post<{ code: string }>('/auth/login', {
    email: person.email,
    password: PASSWORD,
    clientId,
    scope: 'openid offline_access',
    ...asked,
  })
  const grant = { grant_type: 'authorization_code', code: body.code, code_verifier: verifier }
  return await askToken(baseUrl, { ...grant, client_id: clientId }, headers)
}

const refresh = (clientId: string, token: string, headers: Record<string, string>) =>
  askToken(
    baseUrl,
    { grant_type: 'refresh_token', refresh_token: token, client_id: clientId },
    headers,
  )

t.test('binds the tokens of an app without credentials to its certificate', async (t) => {
  const app = await anApp()
  const { status, body } = await redeem(app.id, withOwn)
  t.equal(status, 200)
  const bearer = { Authorization: `Bearer ${body.access_token}` }
  t.equal((await anonymous.get('/auth/me', { ...bearer, ...withOwn })).status, 200)
  t.equal((await anonymous.get('/auth/me', { ...bearer, ...withOther })).status, 401)
  for (const headers of [{}, withOther]) {
    const refused = await refresh(app.id, body.refresh_token, headers)
    t.match(refused, { status: 400, body: { error: 'invalid_grant' } })
  }
  const renewed = await refresh(app.id, body.refresh_token, withOwn)
  t.equal(renewed.status, 200)
  const claims = decodeJwtClaims(renewed.body.access_token)
  t.match(claims, { cnf: { 'x5t#S256': thumbprint(own) } })
})

t.test('requires the certificate of a registered app for codes and refreshes', async (t) => {
  const app = await anApp(pinned)
  t.match(await redeem(app.id, {}), { status: 401, body: { error: 'invalid_client' } })
  const { status, body } = await redeem(app.id, withOwn)
  t.equal(status, 200)
  const refused = await refresh(app.id, body.refresh_token, {})
  t.match(refused, { status: 401, body: { error: 'invalid_client' } })
  const renewed = await refresh(app.id, body.refresh_token, withOther)
  t.equal(renewed.status, 200, 'it may have replaced its certificate')
  const claims = decodeJwtClaims(renewed.body.access_token)
  t.match(claims, { cnf: { 'x5t#S256': thumbprint(other) } })
})

t.test('revokes tokens only for the certificate of the app', async (t) => {
  const app = await anApp(pinned)
  const { body } = await redeem(app.id, withOwn)
  const revoke = async (headers: Record<string, string>) => {
    const form = new URLSearchParams({ token: body.access_token, client_id: app.id })
    return (await fetch(`${baseUrl}oauth2/revoke`, { method: 'POST', headers, body: form })).status
  }
  t.equal(await revoke({}), 401)
  t.equal(await revoke(withOwn), 200)
  const bearer = { Authorization: `Bearer ${body.access_token}` }
  t.equal((await anonymous.get('/auth/me', { ...bearer, ...withOwn })).status, 401)
})

/** Returns a token of a member that is bound to `own`. */
async function aBoundToken(): Promise<string> {
  const { id, secret } = botica.adminCredentials
  const form = { grant_type: 'client_credentials' }
  return (await askToken(baseUrl, form, { ...basic(id, secret), ...withOwn })).body.access_token
}

t.test('binds the token of a web socket, which only that connection may use', async (t) => {
  const id = await subscribe(admin, 'Patient')
  const bearer = { Authorization: `Bearer ${await aBoundToken()}` }
  const path = `Subscription/${id}/$get-ws-binding-token`
  const { body } = await anonymous.get<Untyped>(path, { ...bearer, ...withOwn })
  const token = body.parameter[0].valueString
  t.match(decodeJwtClaims(token), { cnf: { 'x5t#S256': thumbprint(own) } })
  const bind = { type: 'bind-with-token', payload: { token } }
  for (const headers of [{}, withOther]) {
    const socket = await openSocket(t, socketUrl(baseUrl), headers)
    socket.say(bind)
    t.match(await socket.heard(), { resourceType: 'OperationOutcome' })
  }
  const socket = await openSocket(t, socketUrl(baseUrl), withOwn)
  socket.say(bind)
  t.match(await socket.heard(), { resourceType: 'Bundle' })
})

t.test('connects an agent with a bound token only over its connection', async (t) => {
  const agentId = await anAgent(admin)
  const connect = { type: 'agent:connect:request', accessToken: await aBoundToken(), agentId }
  for (const headers of [{}, withOther]) {
    const socket = await openSocket(t, agentUrl(baseUrl), headers)
    socket.say(connect)
    t.same(await socket.heard(), { type: 'agent:error', body: 'Invalid access token' })
  }
  const socket = await openSocket(t, agentUrl(baseUrl), withOwn)
  socket.say(connect)
  t.same(await socket.heard(), { type: 'agent:connect:response' })
})

t.test('does not let a certificate of any issuer stand for a subject', async (t) => {
  const app = await anApp({
    tokenEndpointAuthMethod: 'tls_client_auth',
    tlsClientAuthSubjectDn: 'CN=localhost',
  })
  const refused = await redeem(app.id, withOwn)
  t.match(refused, { status: 401, body: { error_description: /does not accept tls_client_auth/ } })
  const { body } = await anonymous.get<Untyped>('/.well-known/oauth-authorization-server')
  t.notOk(body.token_endpoint_auth_methods_supported.includes('tls_client_auth'))
  t.ok(body.token_endpoint_auth_methods_supported.includes('self_signed_tls_client_auth'))
})

t.test('ignores the header without the setting', async (t) => {
  const plain = await openBotica(t)
  const { id, secret } = await plain.createMember()
  const form = { grant_type: 'client_credentials', client_id: id, client_secret: secret }
  for (const headers of [withOwn, { 'Client-Cert': 'odd' }]) {
    const { status, body } = await askToken(plain.baseUrl, form, headers)
    t.equal(status, 200)
    t.equal(decodeJwtClaims(body.access_token).cnf, undefined)
    t.equal((await createClient(plain.baseUrl, body.access_token).get('/auth/me')).status, 200)
  }
  const app = await plain.admin.post<Untyped>('ClientApplication', {
    resourceType: 'ClientApplication',
    name: 'App',
    ...pinned,
  })
  t.equal(app.status, 201)
  const { body } = await plain.anonymous.get<Untyped>('/.well-known/smart-configuration')
  t.equal(body.tls_client_certificate_bound_access_tokens, undefined)
  t.notMatch(JSON.stringify(body.token_endpoint_auth_methods_supported), /tls/)
})

t.test('does not start with settings of certificates that lack another one', async (t) => {
  const alone = { TRUST_PROXY: 'true', CLIENT_CERTIFICATE_VERIFIED: 'true' }
  await t.rejects(openBotica(t, { env: alone }), /needs CLIENT_CERTIFICATE_HEADER/)
  const untrusted = { CLIENT_CERTIFICATE_HEADER: 'Client-Cert' }
  await t.rejects(openBotica(t, { env: untrusted }), /needs TRUST_PROXY=true/)
  const odd = { TRUST_PROXY: 'true', CLIENT_CERTIFICATE_HEADER: 'Client Cert' }
  await t.rejects(openBotica(t, { env: odd }), /must be the name of a header/)
})
