/** OAuth of `/mcp`, as the official client library finds it by itself. */
import {
  Client,
  ClientCredentialsProvider,
  type OAuthClientProvider,
  StreamableHTTPClientTransport,
} from '@modelcontextprotocol/client'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { openBrowser } from '../../fixtures/http/browser.ts'
import { aPerson, decodeJwtClaims, PASSWORD } from '../../fixtures/people.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { openModel } from './mcp.ts'

const botica = await openBotica(t, { env: { CORS_ORIGINS: 'https://model.example' } })
const { admin, adminCredentials, baseUrl, services, project } = botica
const redirectUrl = 'https://model.example/callback'
const app = await admin.create({
  resourceType: 'ClientApplication',
  name: 'Model',
  redirectUris: [redirectUrl],
  tokenEndpointAuthMethod: 'none',
})
const person = await aPerson(services, project)
const patient = await admin.create(aPatient())
const url = new URL('mcp', baseUrl)
const newClient = () => new Client({ name: 'test', version: '1.0.0' })

/** Keeps the library's values, and the address for the browser. */
function aProvider() {
  const kept: { tokens?: object; verifier?: string; address?: URL } = {}
  const provider: OAuthClientProvider = {
    redirectUrl,
    clientMetadata: { redirect_uris: [redirectUrl], client_name: 'Model' },
    clientInformation: () => ({ client_id: app.id }),
    tokens: () => kept.tokens as never,
    saveTokens: (tokens) => {
      kept.tokens = tokens
    },
    redirectToAuthorization: (address) => {
      kept.address = address
    },
    saveCodeVerifier: (verifier) => {
      kept.verifier = verifier
    },
    codeVerifier: () => kept.verifier ?? '',
  }
  return { kept, provider }
}

t.test('says where to sign in, and for what', async (t) => {
  const answer = await fetch(url, { method: 'POST', body: '{}' })
  t.equal(answer.status, 401)
  const metadata = `${baseUrl}.well-known/oauth-protected-resource/mcp`
  const challenge = answer.headers.get('www-authenticate') ?? ''
  t.match(challenge, /^Bearer realm=/)
  t.ok(challenge.includes(`resource_metadata="${metadata}"`), challenge)
  t.match(challenge, /scope="openid offline_access user\/\*\.rs"/)
  t.match(await (await fetch(metadata)).json(), {
    resource: `${baseUrl}mcp`,
    authorization_servers: [baseUrl],
  })
})

t.test('signs in a person by the discovery of the service', async (t) => {
  const { kept, provider } = aProvider()
  const first = new StreamableHTTPClientTransport(url, { authProvider: provider })
  await t.rejects(newClient().connect(first), { name: 'UnauthorizedError' })
  const address = kept.address ?? new URL('about:blank')
  t.equal(address.origin + address.pathname, `${baseUrl}oauth2/authorize`)
  t.equal(address.searchParams.get('resource'), `${baseUrl}mcp`)

  const browser = openBrowser(baseUrl)
  const begun = await fetch(address, { redirect: 'manual' })
  t.equal(begun.status, 302)
  const page = new URL(begun.headers.get('location') ?? '').searchParams
  const { body } = await browser.call('/auth/login', {
    email: person.email,
    password: PASSWORD,
    clientId: page.get('client_id'),
    redirectUri: page.get('redirect_uri'),
    scope: page.get('scope'),
    codeChallenge: page.get('code_challenge'),
    codeChallengeMethod: page.get('code_challenge_method'),
  })
  const { login } = body
  const consented = await browser.call('/auth/scope', { login, scope: page.get('scope') })
  // The page sends the browser back with the code and the issuer.
  const callback = new URLSearchParams({ code: String(consented.body.code), iss: baseUrl })
  const transport = new StreamableHTTPClientTransport(url, { authProvider: provider })
  await transport.finishAuth(callback)
  t.match(kept.tokens, { scope: 'openid offline_access user/*.rs', refresh_token: String })
  const client = newClient()
  t.teardown(() => client.close())
  await client.connect(transport)
  const read = { name: 'fhir-read', arguments: { type: 'Patient', id: patient.id } }
  t.match(await client.callTool(read), { content: [{ text: new RegExp(patient.id) }] })
})

t.test('serves tools and sign-in at the address of the project', async (t) => {
  const issuer = `${baseUrl}projects/${project.id}/`
  const own = new URL('mcp', issuer)
  const answer = await fetch(own, { method: 'POST', body: '{}' })
  t.equal(answer.status, 401)
  const metadata = `${baseUrl}.well-known/oauth-protected-resource${own.pathname}`
  const challenge = answer.headers.get('www-authenticate') ?? ''
  t.ok(challenge.includes(`resource_metadata="${metadata}"`), challenge)

  const { id: clientId, secret: clientSecret } = adminCredentials
  const authProvider = new ClientCredentialsProvider({
    clientId,
    clientSecret,
    expectedIssuer: issuer,
  })
  const client = newClient()
  t.teardown(() => client.close())
  await client.connect(new StreamableHTTPClientTransport(own, { authProvider }))
  t.equal(decodeJwtClaims(authProvider.tokens()?.access_token ?? '').iss, issuer)
  const search = { name: 'fhir-search', arguments: { type: 'Patient', query: `_id=${patient.id}` } }
  const found = await client.callTool(search)
  t.ok(JSON.stringify(found).includes(`${issuer}fhir/R4/Patient`), 'links keep the prefix')

  const other = await botica.createTenant()
  for (const place of ['mcp', 'cds-services']) {
    const foreign = await admin.post(`/projects/${other.project.id}/${place}`, {})
    t.equal(foreign.status, place === 'mcp' ? 403 : 405, place)
  }
})

t.test('signs in a program by its secret', async (t) => {
  const { id, secret } = adminCredentials
  const authProvider = new ClientCredentialsProvider({
    clientId: id,
    clientSecret: secret,
    expectedIssuer: baseUrl,
  })
  const client = newClient()
  t.teardown(() => client.close())
  await client.connect(new StreamableHTTPClientTransport(url, { authProvider }))
  t.match(authProvider.tokens(), { scope: /user\/\*\.rs/ })
  const { tools } = await client.listTools()
  t.match(tools[0], { name: 'fhir-read' })
})

t.test('rejects tokens for other services, ended sessions and foreign pages', async (t) => {
  const authorize = new URL(`${baseUrl}oauth2/authorize`)
  authorize.search = String(
    new URLSearchParams({
      client_id: app.id,
      redirect_uri: redirectUrl,
      response_type: 'code',
      scope: 'openid',
      resource: 'https://other.example/mcp',
    }),
  )
  const refused = await fetch(authorize, { redirect: 'manual' })
  t.match(refused.headers.get('location'), /error=invalid_target/)
  const { id, secret } = adminCredentials
  const form = {
    grant_type: 'client_credentials',
    client_id: id,
    client_secret: secret,
    resource: 'https://other.example/mcp',
  }
  const body = new URLSearchParams(form)
  const token = await fetch(`${baseUrl}oauth2/token`, { method: 'POST', body })
  t.equal(token.status, 400)
  t.match(await token.json(), { error: 'invalid_target' })

  await t.rejects(openModel(t, baseUrl, 'wrong'))
  const from = async (Origin: string) => {
    const headers = { Authorization: `Bearer ${admin.token}`, Origin }
    return (await fetch(url, { method: 'POST', body: '{}', headers })).status
  }
  t.equal(await from('https://evil.example'), 403)
  t.equal(await from('https://model.example'), 415)
})
