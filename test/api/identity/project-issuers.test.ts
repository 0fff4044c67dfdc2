/**
 * OAuth at the address of a Project: its issuer, clients, members and tokens. Imports the principal of the service, to
 * store a client as earlier versions did.
 */
import { randomUUID } from 'node:crypto'
import { createRemoteJWKSet, exportJWK, generateKeyPair, jwtVerify, SignJWT } from 'jose'
import { MedplumClient } from 'medplum52'
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { openBotica, type Tenant } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { basic, createClient } from '../../fixtures/client.ts'
import { aPerson, askToken, codeFlow, decodeJwtClaims, PASSWORD } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { admin, adminCredentials, anonymous, baseUrl, project, services } = botica
const other = await botica.createTenant()

const formatIssuer = ({ project: { id } }: Pick<Tenant, 'project'>) => `${baseUrl}projects/${id}/`
const issuer = formatIssuer(botica)
const foreign = formatIssuer(other)
const path = new URL(issuer).pathname
const byClient = { grant_type: 'client_credentials' }

const credentials = ({ id, secret }: { id: string; secret: string }) => ({
  client_id: id,
  client_secret: secret,
})

t.test('discovery below the project names its issuer and endpoints', async (t) => {
  const documents = ['openid-configuration', 'oauth-authorization-server', 'smart-configuration']
  for (const prefix of [path, `/api${path}`, `${path}fhir/R4/`]) {
    for (const name of prefix.includes('fhir') ? documents.slice(2) : documents) {
      const { status, body } = await anonymous.get<Untyped>(`${prefix}.well-known/${name}`)
      t.equal(status, 200, prefix + name)
      t.equal(body.issuer, issuer)
      const addresses = Object.values(body).filter((value) => String(value).startsWith('http'))
      for (const address of addresses) t.ok(String(address).startsWith(issuer), String(address))
      t.ok(addresses.length > 5)
    }
  }
  const resource = await anonymous.get<Untyped>(`${path}.well-known/oauth-protected-resource`)
  t.match(resource.body, { resource: `${issuer}fhir/R4`, authorization_servers: [issuer] })
  for (const name of documents.slice(0, 2)) {
    const { status, body } = await anonymous.get<Untyped>(`/.well-known/${name}${path}`)
    t.match({ status, body }, { status: 200, body: { issuer } }, 'at the path of RFC 8414')
    t.equal((await anonymous.get(`/.well-known/${name}${path}fhir/R4`)).status, 404)
  }
  const named = `/.well-known/oauth-protected-resource${path}`
  for (const end of ['fhir/R4', 'mcp']) {
    const { body } = await anonymous.get<Untyped>(named + end)
    t.match(body, { resource: issuer + end, authorization_servers: [issuer] }, end)
  }
  t.match((await anonymous.get('/.well-known/oauth-protected-resource/fhir/R4')).body, {
    resource: `${baseUrl}fhir/R4`,
    authorization_servers: [baseUrl],
  })
  t.equal((await anonymous.get('/.well-known/jwks.json/projects/1')).status, 404)
  const all = await anonymous.get<Untyped>('/.well-known/openid-configuration')
  t.equal(all.body.issuer, baseUrl)
})

t.test('answers alike for a project of others and an unknown one', async (t) => {
  const unknown = `${baseUrl}projects/${randomUUID()}/`
  const form = { ...byClient, ...credentials(adminCredentials) }
  for (const place of [foreign, unknown]) {
    const refused = await askToken(place, form)
    t.match(refused, { status: 401, body: { error: 'invalid_client' } })
    t.match(refused.body, { error_description: 'Invalid client' })
    const document = await anonymous.get<Untyped>(
      `${new URL(place).pathname}.well-known/openid-configuration`,
    )
    t.match(document, { status: 200, body: { issuer: place } })
  }
})

t.test('signs in clients of two projects with one id at their own addresses', async (t) => {
  const id = randomUUID()
  const redirect = (name: string) => `https://${name}.example/signed-in`
  const tenants = [
    { ...botica, name: 'ours' },
    { ...other, name: 'theirs' },
  ]
  for (const { admin, project, name } of tenants) {
    const { body } = await botica.superAdmin.get<Untyped>(`Project/${project.id}`)
    const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
    await botica.superAdmin.put(`Project/${project.id}`, { ...body, systemSetting })
    services.principals.forget()
    const client = { resourceType: 'ClientApplication', id, name, secret: `secret-of-${name}` }
    const app = { ...client, redirectUris: [redirect(name)] }
    if (name === 'theirs') {
      const refused = await admin.put(`ClientApplication/${id}`, app)
      t.match(refused, {
        status: 409,
        body: { issue: [{ details: { text: /choose another id/ } }] },
      })
      // Copies from before ids had to be unique remain.
      const copy = { ...app, meta: { project: project.id } }
      await services.repository.create(system, copy, { keepId: true })
    } else t.equal((await admin.put(`ClientApplication/${id}`, app)).status, 201)
    const profile = { reference: `ClientApplication/${id}` }
    const membership = { resourceType: 'ProjectMembership', user: profile, profile }
    const home = { project: { reference: `Project/${project.id}` } }
    t.equal((await admin.post('ProjectMembership', { ...membership, ...home })).status, 201)
  }
  for (const tenant of tenants) {
    const place = formatIssuer(tenant)
    const secret = `secret-of-${tenant.name}`
    const { body } = await askToken(place, { ...byClient, ...credentials({ id, secret }) })
    const client = createClient(baseUrl, body.access_token)
    const { pathname } = new URL(place)
    const me = `${pathname}auth/me`
    const shown = { status: 200, body: { project: { id: tenant.project.id } } }
    t.match(await client.get(me), shown)
    t.match(await anonymous.get(me, basic(id, secret)), shown)
    const { authorizePath } = codeFlow(place, redirect(tenant.name))
    const { headers } = await anonymous.get(pathname + authorizePath(id))
    const page = new URL(headers.get('location') ?? '')
    t.equal(page.searchParams.get('project_id'), tenant.project.id)
  }
})

t.test('keeps the id of a client for its project, also of a deleted one', async (t) => {
  const id = randomUUID()
  const path = `ClientApplication/${id}`
  const app = { resourceType: 'ClientApplication', id, name: 'App' }
  t.equal((await admin.put(path, app)).status, 201)
  t.equal((await admin.del(path)).status, 200)
  t.equal((await other.admin.put(path, app)).status, 409)
  const entry = [{ request: { method: 'PUT', url: path }, resource: app }]
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  t.equal((await other.admin.post('', bundle)).status, 409)
  t.equal((await admin.put(path, app)).status, 200, 'is restored')
  t.equal((await other.admin.put(path, app)).status, 409)
  const note = { resourceType: 'Basic', id, code: { text: 'x' } }
  t.equal((await admin.put(`Basic/${id}`, note)).status, 201)
  t.equal((await other.admin.put(`Basic/${id}`, note)).status, 201, 'other types may share ids')
})

t.test('tokens of the project carry its issuer and are good for it alone', async (t) => {
  const { body } = await askToken(issuer, { ...byClient, ...credentials(adminCredentials) })
  const token = body.access_token ?? ''
  t.match(decodeJwtClaims(token), { iss: issuer, aud: issuer })
  const { body: found } = await anonymous.get<Untyped>(`${path}.well-known/openid-configuration`)
  const keys = createRemoteJWKSet(new URL(found.jwks_uri))
  t.ok((await jwtVerify(token, keys, { issuer, audience: issuer })).payload)

  const client = createClient(baseUrl, token)
  t.equal((await client.get(`${path}fhir/R4/Patient`)).status, 200)
  t.equal((await client.get('Patient')).status, 200, 'without the prefix')
  t.equal((await client.get(`${path}auth/me`)).status, 200)
  t.equal((await client.get(`${path}oauth2/userinfo`)).status, 200)
  for (const place of ['fhir/R4/Patient', 'auth/me', 'oauth2/userinfo', 'fhir/R4/metadata']) {
    t.equal((await client.get(`${new URL(foreign).pathname}${place}`)).status, 403, place)
  }
})

t.test('rejects a token whose issuer names another project than its login', async (t) => {
  const claims = await services.tokens.verify(admin.token ?? '')
  if (typeof claims !== 'object') throw new Error('The token of the administrator is invalid')
  const issue = async (projectScope: string | undefined) =>
    createClient(
      baseUrl,
      await services.tokens.issue({ ...claims, lifetimeSeconds: 60, projectScope } as never),
    )
  t.equal((await (await issue(project.id)).get('Patient')).status, 200)
  t.equal((await (await issue(undefined)).get('Patient')).status, 200)
  for (const id of [other.project.id, randomUUID()]) {
    const client = await issue(id)
    t.equal((await client.get('Patient')).status, 403)
    t.equal((await client.get(`${path}fhir/R4/Patient`)).status, 403)
    t.equal((await client.get(`/projects/${id}/fhir/R4/Patient`)).status, 403)
  }
  for (const id of ['..', `${project.id}/x`, '']) {
    t.equal((await (await issue(id)).get('Patient')).status, 401, id)
  }
})

t.test('a person signs in at the project, refreshes, and signs out', async (t) => {
  const redirectUri = 'https://app.example/callback'
  const app = await admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    redirectUris: [redirectUri],
  })
  const flow = codeFlow(issuer, redirectUri)
  const authorize = await anonymous.get(
    `${path}${flow.authorizePath(app.id, { scope: 'openid offline' })}`,
  )
  const page = new URL(authorize.headers.get('location') ?? '')
  t.equal(page.searchParams.get('project_id'), project.id)
  const { text } = await anonymous.get(page.pathname + page.search)
  t.ok(text.includes(`data-issuer="${issuer}"`), 'the page returns to the app with the issuer')
  const silent = await anonymous.get(`${path}${flow.authorizePath(app.id, { prompt: 'none' })}`)
  const back = new URL(silent.headers.get('location') ?? '')
  t.match(Object.fromEntries(back.searchParams), { error: 'login_required', iss: issuer })
  const elsewhere = await anonymous.get(`${new URL(foreign).pathname}${flow.authorizePath(app.id)}`)
  t.match(elsewhere, { status: 400, text: 'Client not found' })

  const { email } = await aPerson(services, project)
  const login = async () => {
    const fields = { email, password: PASSWORD, clientId: app.id, ...flow.asked }
    const { body } = await anonymous.post<{ code: string }>('/auth/login', {
      ...fields,
      scope: 'openid offline',
      redirectUri,
    })
    return body.code
  }
  const stolen = await codeFlow(foreign, redirectUri).redeem(await login(), app.id)
  t.equal(stolen.status, 401)
  const { status, body } = await flow.redeem(await login(), app.id)
  t.equal(status, 200)
  t.match(decodeJwtClaims(body.id_token ?? ''), { iss: issuer, fhirUser: /^http/ })
  t.ok(String(decodeJwtClaims(body.id_token ?? '').fhirUser).startsWith(`${issuer}fhir/R4/`))

  const refresh = {
    grant_type: 'refresh_token',
    client_id: app.id,
    refresh_token: body.refresh_token ?? '',
  }
  t.equal((await askToken(foreign, refresh)).status, 400)
  const renewed = await askToken(issuer, refresh)
  t.match(decodeJwtClaims(renewed.body.access_token ?? ''), { iss: issuer })

  const hint = new URLSearchParams({ id_token_hint: body.id_token ?? '' })
  const client = createClient(baseUrl, renewed.body.access_token)
  await anonymous.get(`${new URL(foreign).pathname}oauth2/logout?${hint}`)
  t.equal((await client.get('/auth/me')).status, 200, 'another project ends no session of this one')
  await anonymous.get(`${path}oauth2/logout?${hint}`)
  t.equal((await client.get('/auth/me')).status, 401)
})

t.test('introspects and revokes tokens of the project alone', async (t) => {
  const own = await askToken(issuer, { ...byClient, ...credentials(adminCredentials) })
  const token = own.body.access_token ?? ''
  const post = async (place: string, form: Record<string, string>) => {
    const answer = await fetch(place, { method: 'POST', body: new URLSearchParams(form) })
    return { status: answer.status, text: await answer.text() }
  }
  const asked = { ...credentials(adminCredentials), token }
  const seen = await post(`${issuer}oauth2/introspect`, asked)
  t.match(JSON.parse(seen.text), { active: true, iss: issuer, aud: issuer })
  t.equal((await post(`${foreign}oauth2/introspect`, asked)).status, 401)
  const theirs = { ...credentials(other.adminCredentials), token }
  t.match(JSON.parse((await post(`${foreign}oauth2/introspect`, theirs)).text), { active: false })

  t.not((await post(`${foreign}oauth2/revoke`, asked)).status, 200)
  t.equal((await createClient(baseUrl, token).get('Patient')).status, 200)
  t.equal((await post(`${issuer}oauth2/revoke`, asked)).status, 200)
  t.equal((await createClient(baseUrl, token).get('Patient')).status, 401)
})

t.test('an assertion of a client names the issuer that it is sent to', async (t) => {
  const { publicKey, privateKey } = await generateKeyPair('ES384')
  const { id } = await botica.createMember()
  const { body } = await admin.get<Untyped>(`ClientApplication/${id}`)
  const jwks = JSON.stringify({
    keys: [{ ...(await exportJWK(publicKey)), kid: 'k', alg: 'ES384' }],
  })
  t.equal((await admin.put(`ClientApplication/${id}`, { ...body, jwks })).status, 200)
  const sent = async (audience: string) => {
    const assertion = await new SignJWT()
      .setProtectedHeader({ alg: 'ES384', kid: 'k', typ: 'JWT' })
      .setIssuer(id)
      .setSubject(id)
      .setAudience(audience)
      .setJti(randomUUID())
      .setExpirationTime('4m')
      .sign(privateKey)
    const type = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer'
    const form = { ...byClient, client_assertion: assertion, client_assertion_type: type }
    return (await askToken(issuer, form)).status
  }
  t.equal(await sent(`${issuer}oauth2/token`), 200)
  t.equal(await sent(issuer), 200)
  t.equal(await sent(`${foreign}oauth2/token`), 401)
})

t.test("the client library works with the project's address as its base", async (t) => {
  const medplum = new MedplumClient({ baseUrl: issuer, fetch, cacheTime: 0 })
  const profile = await medplum.startClientLogin(adminCredentials.id, adminCredentials.secret)
  t.equal(profile.id, adminCredentials.id)
  const made = await medplum.createResource({ resourceType: 'Patient' })
  t.equal((await medplum.readResource('Patient', made.id)).id, made.id)
  const stranger = new MedplumClient({ baseUrl: foreign, fetch, cacheTime: 0 })
  await t.rejects(stranger.startClientLogin(adminCredentials.id, adminCredentials.secret), Error)
})
