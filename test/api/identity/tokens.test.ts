/** Imports the system's rights, to read logins as they are stored. */
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import { basic, createClient } from '../../fixtures/client.ts'

const botica = await openBotica(t)
const { baseUrl, services } = botica
const projectId = botica.project.id

interface TokenAnswer {
  readonly access_token: string
  readonly expires_in: number
  readonly [key: string]: unknown
}

async function askToken(
  form: Record<string, string> | string,
  headers: Record<string, string> = {},
) {
  const response = await fetch(`${baseUrl}oauth2/token`, {
    method: 'POST',
    headers,
    body: new URLSearchParams(form),
  })
  // Asserted on by each caller.
  const body = (await response.json()) as TokenAnswer
  return { status: response.status, headers: response.headers, body }
}

function parsePart(token: string, place: 0 | 1): Record<string, unknown> {
  return JSON.parse(Buffer.from(token.split('.')[place] ?? '', 'base64url').toString())
}

t.test('client credentials in the form give a token with the claims of the contract', async (t) => {
  const { id, secret } = await botica.createMember()
  const { status, headers, body } = await askToken({
    grant_type: 'client_credentials',
    client_id: id,
    client_secret: secret,
  })
  t.equal(status, 200)
  t.match(headers.get('cache-control'), /no-store/)
  t.match(body, {
    token_type: 'Bearer',
    expires_in: 3600,
    scope: 'openid',
    project: { reference: `Project/${projectId}`, display: botica.project.name },
    profile: { reference: `ClientApplication/${id}`, display: 'Test client' },
  })
  t.match(parsePart(body.access_token, 0), { alg: 'ES256', typ: 'at+jwt', kid: String })
  const claims = parsePart(body.access_token, 1)
  t.match(claims, {
    iss: services.config.baseUrl,
    aud: services.config.baseUrl,
    sub: id,
    client_id: id,
    username: id,
    scope: 'openid',
    profile: `ClientApplication/${id}`,
    login_id: String,
    jti: String,
  })
  t.equal(Number(claims.exp) - Number(claims.iat), 3600)
  t.equal(claims.cid, undefined)
})

t.test('Basic credentials and agreeing body credentials are accepted together', async (t) => {
  const { id, secret } = await botica.createMember()
  const grant = { grant_type: 'client_credentials' }
  t.match(await askToken(grant, basic(id, secret)), { status: 200 })
  const both = { ...grant, client_id: id, client_secret: secret }
  t.match(await askToken(both, basic(id, secret)), { status: 200 })
  t.match(await askToken(both, basic(id, 'another')), {
    status: 400,
    body: { error: 'invalid_request' },
  })
})

t.test('returns the errors of the contract', async (t) => {
  const { id, secret } = await botica.createMember()
  const grant = { grant_type: 'client_credentials' }
  const nobody = '00000000-0000-4000-8000-000000000000'
  const cases: [string, Record<string, string>, number, string, string][] = [
    ['no grant', {}, 400, 'invalid_request', 'Missing grant_type'],
    ['empty grant', { grant_type: '' }, 400, 'invalid_request', 'Missing grant_type'],
    ['odd grant', { grant_type: 'x' }, 400, 'unsupported_grant_type', 'Unsupported grant_type'],
    ['no client', grant, 400, 'invalid_request', 'Missing client_id'],
    ['no secret', { ...grant, client_id: id }, 400, 'invalid_request', 'Missing client_secret'],
    [
      'unknown client',
      { ...grant, client_id: nobody, client_secret: 'x' },
      401,
      'invalid_client',
      'Invalid client',
    ],
    [
      'no client id at all',
      { ...grant, client_id: '../x', client_secret: 'x' },
      401,
      'invalid_client',
      'Invalid client',
    ],
    [
      'wrong secret',
      { ...grant, client_id: id, client_secret: `${secret}x` },
      401,
      'invalid_client',
      'Invalid secret',
    ],
  ]
  for (const [name, form, status, error, description] of cases) {
    const found = await askToken(form)
    t.match(found, { status, body: { error, error_description: description } }, name)
  }
  const viaBasic = await askToken(grant, basic(id, 'wrong'))
  t.match(viaBasic.headers.get('www-authenticate'), /^Basic /)
  const json = await fetch(`${baseUrl}oauth2/token`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ ...grant, client_id: id, client_secret: secret }),
  })
  t.equal(json.status, 400)
  t.match(await json.json(), { error: 'invalid_request' })
  const twice = `grant_type=client_credentials&client_id=${id}&client_id=${id}`
  t.match(await askToken(twice), { status: 400, body: { error: 'invalid_request' } })
})

t.test('a client without membership cannot sign in', async (t) => {
  const { id } = await services.repository.create(system, {
    resourceType: 'ClientApplication',
    meta: { project: projectId },
    name: 'Bare',
    secret: 'a'.repeat(64),
  })
  const form = {
    grant_type: 'client_credentials',
    client_id: id,
    client_secret: 'a'.repeat(64),
  }
  t.match(await askToken(form), { status: 401, body: { error_description: 'Invalid client' } })
})

t.test('accessTokenLifetime sets the life of a token', async (t) => {
  const { id, secret } = await botica.createMember({ accessTokenLifetime: '5m' })
  const { body } = await askToken({ grant_type: 'client_credentials' }, basic(id, secret))
  t.equal(body.expires_in, 300)
  const claims = parsePart(body.access_token, 1)
  t.equal(Number(claims.exp) - Number(claims.iat), 300)
})

t.test('a token costs at most three statements, a known session none', async (t) => {
  const { id, secret } = await botica.createMember()
  services.principals.forget()
  const before = services.database.statements
  const { body } = await askToken({ grant_type: 'client_credentials' }, basic(id, secret))
  t.ok(services.database.statements - before <= 3, `${services.database.statements - before}`)

  const client = createClient(baseUrl, body.access_token)
  const cost = await statementsAsked(services, client, async () => {
    t.equal((await client.get('/auth/me')).status, 200)
  })
  t.equal(cost, 0)
})

t.test('the second authenticated read is one statement in total', async (t) => {
  const { client } = await botica.createMember()
  const patient = await client.create({ resourceType: 'Patient' })
  await client.get(`Patient/${patient.id}`)
  const cost = await statementsAsked(services, client, async () => {
    t.equal((await client.get(`Patient/${patient.id}`)).status, 200)
  })
  t.equal(cost, 1)
})

t.test('SMART scopes narrow a token', async (t) => {
  const { id, secret } = await botica.createMember()
  const form = { grant_type: 'client_credentials', scope: 'system/Patient.rs odd fhircast/x' }
  const { body } = await askToken(form, basic(id, secret))
  t.equal(body.scope, 'system/Patient.rs')
  const client = createClient(baseUrl, body.access_token)
  t.equal((await client.post('Patient', { resourceType: 'Patient' })).status, 403)
  t.equal((await client.get('Patient/00000000-0000-4000-8000-000000000000')).status, 404)
  t.equal((await client.get('Encounter/00000000-0000-4000-8000-000000000000')).status, 403)
})

t.test('discovery lists the endpoints, and keys without their private part', async (t) => {
  const jwks = await botica.anonymous.get<{ keys: Record<string, unknown>[] }>(
    '/.well-known/jwks.json',
  )
  t.equal(jwks.headers.get('cache-control'), 'public, max-age=300')
  t.match(jwks.body.keys[0], { kty: 'EC', crv: 'P-256', alg: 'ES256', use: 'sig', kid: String })
  t.ok(jwks.body.keys.every((key) => key.d === undefined))
  for (const path of [
    '/.well-known/openid-configuration',
    '/.well-known/oauth-authorization-server',
    '/.well-known/smart-configuration',
    '/fhir/R4/.well-known/smart-configuration',
  ]) {
    t.match(await botica.anonymous.get(path), {
      status: 200,
      body: {
        issuer: services.config.baseUrl,
        token_endpoint: `${services.config.baseUrl}oauth2/token`,
        grant_types_supported: ['client_credentials'],
        token_endpoint_auth_methods_supported: [
          'client_secret_basic',
          'client_secret_post',
          'private_key_jwt',
          'none',
        ],
        token_endpoint_auth_signing_alg_values_supported: [
          'RS256',
          'RS384',
          'RS512',
          'ES256',
          'ES384',
          'ES512',
        ],
      },
    })
  }
  t.equal((await botica.anonymous.get('/.well-known/oauth-protected-resource')).status, 200)
})
