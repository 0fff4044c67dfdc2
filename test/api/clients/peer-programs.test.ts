import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'
import { aParameters, aPatient } from '../../fixtures/resources.ts'
import { openSdk } from '../../fixtures/sdk.ts'

const botica = await openBotica(t)
const { admin, superAdmin, anonymous, services, project, baseUrl } = botica

t.test('stores small texts of a member in keyValue, invisible to others', async (t) => {
  const sdk = await openSdk(botica)
  await sdk.keyValue.set('state', 'one')
  t.equal(await sdk.keyValue.get('state'), 'one')
  const plain = { 'Content-Type': 'text/plain' }
  const path = '/keyvalue/v1/state'
  t.match(await admin.put(path, 'two', plain), { status: 204 })
  t.match(await admin.get(path), { status: 200, body: 'two' })
  const { client: member } = await botica.createMember()
  const stranger = (await botica.createTenant()).admin
  for (const [who, client] of Object.entries({ member, stranger, superAdmin })) {
    t.equal((await client.get(path)).status, 404, who)
    t.equal((await client.del(path)).status, 204, who)
  }
  t.equal((await anonymous.get(path)).status, 401)
  t.match(await admin.get(path), { body: 'two' })
  t.equal((await admin.del(path)).status, 204)
  t.equal((await admin.get(path)).status, 404)

  t.equal((await admin.put(path, 'a'.repeat(8192), plain)).status, 204)
  t.ok((await admin.put(path, 'a'.repeat(8193), plain)).status >= 400)
  t.equal(
    (await admin.put(path, { foo: 'bar' }, { 'Content-Type': 'application/json' })).status,
    400,
  )
  for (const key of ['key+with+spaces', 'key:with:colons', 'a'.repeat(129)]) {
    t.equal((await admin.put(`/keyvalue/v1/${key}`, 'x', plain)).status, 400, key)
    t.equal((await admin.get(`/keyvalue/v1/${key}`)).status, 400, key)
  }
  for (let n = 0; n < 50; n++) await member.put(`/keyvalue/v1/k${n}`, 'x', plain)
  t.equal((await member.put('/keyvalue/v1/k50', 'x', plain)).status, 400, 'one key over the limit')
  t.equal((await member.put('/keyvalue/v1/k49', 'y', plain)).status, 204)
})

t.test('denies the key value store to an app with a narrow scope', async (t) => {
  const { id, secret } = botica.adminCredentials
  const { body } = await askToken(baseUrl, {
    grant_type: 'client_credentials',
    client_id: id,
    client_secret: secret,
    scope: 'system/Patient.rs',
  })
  const app = createClient(baseUrl, body.access_token)
  t.equal((await app.get('/keyvalue/v1/state')).status, 403)
  t.equal((await app.put('/keyvalue/v1/state', 'x', { 'Content-Type': 'text/plain' })).status, 403)
})

t.test('lets a person narrow the SMART scopes of an app, never widen them', async (t) => {
  const { email } = await aPerson(services, project)
  const { verifier, asked } = pkce()
  const begin = async () => {
    const fields = { email, password: PASSWORD, scope: 'openid user/*.cruds', ...asked }
    const { body } = await anonymous.post<{ login: string }>('/auth/login', fields)
    return body.login
  }
  const allow = async (scope: string) => {
    const login = await begin()
    return anonymous.post<{ code: string }>('/auth/scope', { login, scope })
  }
  const { body } = await allow('openid user/Patient.rs')
  const tokens = await redeemCode(baseUrl, body.code, verifier)
  t.equal(tokens.body.scope, 'openid user/Patient.rs')
  const app = createClient(baseUrl, tokens.body.access_token)
  t.equal((await app.get('Patient')).status, 200)
  t.equal((await app.get('Observation')).status, 403)
  for (const wider of [
    'openid system/*.cruds',
    'openid patient/Patient.rs',
    'openid offline user/*.cruds',
    'openid',
    'openid user/Patient.odd',
    'openid botica/administration',
  ]) {
    t.equal((await allow(wider)).status, 400, wider)
  }
})

t.test('introspects tokens by JSON and by form', async (t) => {
  const body = { token: admin.token }
  const inspect = (client: typeof admin) =>
    client.post('/oauth2/introspect', body, { 'Content-Type': 'application/json' })
  t.match(await inspect(admin), { status: 200, body: { active: true } })
  t.equal((await inspect(anonymous)).status, 401)
  const stranger = (await botica.createTenant()).admin
  t.match(await inspect(stranger), { status: 200, body: { active: false } })
})

t.test('follows canonical URLs in a graph', async (t) => {
  const anActivity = (client: typeof admin, url: string) =>
    client.create({ resourceType: 'ActivityDefinition', status: 'active', url })
  const activity = await anActivity(admin, 'urn:graph:activity')
  const stranger = (await botica.createTenant()).admin
  await anActivity(stranger, 'urn:graph:foreign')
  const plan = await admin.create({
    resourceType: 'PlanDefinition',
    status: 'active',
    action: ['activity', 'foreign', 'missing'].map((name) => ({
      definitionCanonical: `urn:graph:${name}`,
    })),
  })
  await admin.create({
    resourceType: 'GraphDefinition',
    name: 'plan',
    status: 'active',
    start: 'PlanDefinition',
    link: [{ path: 'action.definition', target: [{ type: 'ActivityDefinition' }] }],
  })
  const { status, body } = await admin.get<Resource & { entry: { resource: Resource }[] }>(
    `PlanDefinition/${plan.id}/$graph?graph=plan`,
  )
  t.equal(status, 200)
  t.same(
    body.entry.map(({ resource }) => resource.id),
    [plan.id, activity.id],
  )
})

t.test('starts launches and copies as Medplum clients do', async (t) => {
  const patient = await admin.create(aPatient())
  const app = await admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    redirectUris: ['https://app.example/'],
    launchUri: 'https://app.example/launch',
  })
  const launched = await admin.get(
    `ClientApplication/${app.id}/$smart-launch?patient=${patient.id}`,
  )
  t.equal(launched.status, 302)
  t.match(launched.headers.get('location'), 'https://app.example/launch?iss=')

  const tenant = await botica.createTenant()
  await tenant.admin.create(aPatient())
  const copied = await superAdmin.post(
    `Project/${tenant.project.id}/$clone`,
    aParameters(
      { name: 'name', valueString: 'Copy' },
      { name: 'resourceTypes', valueString: 'Patient' },
    ),
  )
  t.match(copied, { status: 201, body: { name: 'Copy' } })
  const clone = `Project/${tenant.project.id}/$clone`
  t.equal(
    (await superAdmin.post(clone, aParameters({ name: 'resourceTypes', valueString: 'Odd' })))
      .status,
    400,
  )
  t.equal((await admin.post(clone, aParameters())).status, 403)
})

t.test("lists migrations in Medplum's format for super administrators", async (t) => {
  t.match(await superAdmin.get('/admin/super/migrations'), {
    body: { postDeployMigrations: [], pendingPostDeployMigration: 0 },
  })
  t.equal((await admin.get('/admin/super/migrations')).status, 403)
})

t.test('finds SCIM user names in any case', async (t) => {
  const created = await admin.post<{ id: string }>(
    '/scim/v2/Users',
    {
      schemas: ['urn:ietf:params:scim:schemas:core:2.0:User'],
      userName: 'Ada.Lovelace',
      userType: 'Practitioner',
      name: { givenName: 'Ada', familyName: 'Lovelace' },
      emails: [{ value: 'ada.scim@example.org' }],
    },
    { 'Content-Type': 'application/scim+json' },
  )
  t.equal(created.status, 201, created.text)
  const found = async (name: string) => {
    const filter = encodeURIComponent(`userName eq "${name}"`)
    const { body } = await admin.get<{ totalResults: number }>(`/scim/v2/Users?filter=${filter}`)
    return body.totalResults
  }
  t.equal(await found('ada.lovelace'), 1)
  t.equal(await found('ADA.LOVELACE'), 1)
  t.equal(await found('ada'), 0)
})
