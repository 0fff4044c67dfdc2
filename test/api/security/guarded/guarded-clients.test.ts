/** A member tries to become an administrator through the clients of its Project, on every write path. */
import { createServer } from 'node:http'
import { exportJWK, generateKeyPair, SignJWT } from 'jose'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { type Client, createClient } from '../../../fixtures/client.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { listen } from '../../../fixtures/http/listening.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { aPerson, askToken } from '../../../fixtures/people.ts'
import { memberUnder } from '../../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin, adminCredentials, baseUrl, services, project, superAdmin } = botica
const [free, starred, named] = await Promise.all([
  botica.createMember(),
  memberUnder(botica, { entries: [{ resourceType: '*' }] }),
  memberUnder(botica, { entries: [{ resourceType: 'ClientApplication' }, { resourceType: '*' }] }),
])
const path = `ClientApplication/${adminCredentials.id}`
const provider = {
  authorizeUrl: 'https://evil.example/authorize',
  tokenUrl: 'https://evil.example/token',
  userInfoUrl: 'https://evil.example/userinfo',
  clientId: 'x',
  clientSecret: 'y',
}
const GUARDED: Readonly<Record<string, unknown>> = {
  secret: 'my own secret',
  retiringSecret: 'my own secret',
  jwks: JSON.stringify({ keys: [] }),
  jwksUri: 'https://evil.example/jwks',
  identityProvider: provider,
  redirectUri: 'https://evil.example/',
  redirectUris: ['https://evil.example/'],
  launchUri: 'https://evil.example/launch',
  pkceOptional: true,
  allowedOrigin: ['https://evil.example'],
  defaultScope: ['system/*.*'],
  signInForm: { welcomeString: 'Your password, please' },
  accessTokenLifetime: '24h',
  refreshTokenLifetime: '90d',
  status: 'off',
  extension: [{ url: 'https://example.org/of-tomorrow', valueBoolean: true }],
}

type Stored = Resource & { readonly id: string }
const read = async (client: Client, id: string) =>
  (await client.get<Stored>(`ClientApplication/${id}`)).body
const before = await superAdmin.get(path)

t.test('hides the keys of an administrator’s client from members on every path', async (t) => {
  for (const { client } of [free, starred, named]) {
    const current = await read(client, adminCredentials.id)
    const ways = await changedEveryWay(client, current, { jwksUri: GUARDED.jwksUri })
    t.ok(ways.size >= 9)
    for (const [way, status] of ways) t.equal(status, 403, way)
  }
  t.same((await superAdmin.get(path)).body, before.body)
})

t.test('rejects changes of client credentials by members, with the reason', async (t) => {
  const { id } = await admin.create({
    resourceType: 'ClientApplication',
    name: 'Without a member',
  })
  for (const [name, value] of Object.entries(GUARDED)) {
    const change = [{ op: 'add', path: `/${name}`, value }]
    for (const { client } of [free, starred]) {
      for (const target of [adminCredentials.id, id]) {
        const answer = await client.patch<Raw>(`ClientApplication/${target}`, change)
        t.equal(answer.status, 403, name)
        t.match(answer.body.issue[0], {
          details: {
            text: new RegExp(`^ClientApplication\\.${name} is for project administrators`),
          },
          expression: [`ClientApplication.${name}`],
        })
      }
      const made = await client.post('ClientApplication', {
        resourceType: 'ClientApplication',
        name: 'Mine',
        [name]: value,
      })
      t.equal(made.status, 403, `new ${name}`)
    }
    t.equal((await named.client.patch(path, change)).status, 403, `named ${name}`)
  }
  t.same((await superAdmin.get(path)).body, before.body)
})

t.test('rejects sign-in as an administrator with a key of the member', async (t) => {
  const { publicKey, privateKey } = await generateKeyPair('ES384', { extractable: true })
  const keys = [{ ...(await exportJWK(publicKey)), kid: 'mine' }]
  const change = [{ op: 'add', path: '/jwks', value: JSON.stringify({ keys }) }]
  t.equal((await free.client.patch(path, change)).status, 403)
  const assertion = await new SignJWT({})
    .setProtectedHeader({ alg: 'ES384', kid: 'mine', typ: 'JWT' })
    .setIssuer(adminCredentials.id)
    .setSubject(adminCredentials.id)
    .setAudience(`${baseUrl}oauth2/token`)
    .setExpirationTime('4m')
    .setJti('once')
    .sign(privateKey)
  const signedIn = await askToken(baseUrl, {
    grant_type: 'client_credentials',
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: assertion,
  })
  t.match(signedIn, { status: 401, body: { error: 'invalid_client' } })
})

t.test('rejects sign-in as an administrator through a provider of the member', async (t) => {
  const boss = await aPerson(services, project, { details: { admin: true } })
  const server = createServer((_req, res) => res.end(JSON.stringify({ email: boss.email })))
  const userInfoUrl = `http://127.0.0.1:${await listen(t, server)}/`
  const client = { resourceType: 'ClientApplication', name: 'Mine' }
  const identityProvider = { ...provider, userInfoUrl }
  for (const { client: member } of [free, starred, named]) {
    const made = await member.post('ClientApplication', { ...client, identityProvider })
    t.equal(made.status, 403)
    const bare = await member.create({ resourceType: 'ClientApplication', name: 'Mine' })
    const ways = await changedEveryWay(member, bare, { identityProvider })
    for (const [way, status] of ways) t.equal(status, 403, way)
    const claimed = await askToken(baseUrl, {
      grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
      client_id: bare.id,
      subject_token: 'mine',
      subject_token_type: 'urn:ietf:params:oauth:token-type:access_token',
    })
    t.match(claimed, { status: 400, body: { error: 'invalid_grant' } })
  }
  const byAdmin = await admin.create({ ...client, identityProvider })
  t.match(byAdmin.identityProvider, { userInfoUrl })
  const seen = await free.client.get(`ClientApplication/${byAdmin.id}`)
  t.notOk('identityProvider' in seen.body, 'hides its secret from members')
  t.equal((await free.client.put(`ClientApplication/${byAdmin.id}`, seen.body)).status, 200)
  t.match(await read(admin, byAdmin.id), { identityProvider })
})

t.test('opens no membership in a foreign Project through the provider of a Project', async (t) => {
  const other = await botica.createTenant()
  const person = await aPerson(services, project)
  const twice = await aPerson(services, project, { user: person.user })
  const elsewhere = await aPerson(services, other.project, { user: person.user })
  const server = createServer((_req, res) =>
    res.end(JSON.stringify({ email: person.email, access_token: 'x' })),
  )
  const origin = `http://127.0.0.1:${await listen(t, server)}/`
  const client = await admin.create({
    resourceType: 'ClientApplication',
    name: 'Own provider',
    identityProvider: { ...provider, userInfoUrl: origin, tokenUrl: origin },
  })
  const state = JSON.stringify({ clientId: client.id })
  const { anonymous } = botica
  const back = await anonymous.get(`/auth/external?${new URLSearchParams({ code: 'x', state })}`)
  t.equal(back.status, 302, back.text)
  const login = new URL(back.headers.get('location') ?? '').searchParams.get('login')
  const choose = (profile: string | undefined) =>
    anonymous.post('/auth/profile', { login, profile })
  t.equal((await choose(elsewhere.membership.id)).status, 400)
  t.equal((await choose(twice.membership.id)).status, 200)
})

t.test(
  'allows a policy that names the type as before, up to the rights of the caller',
  async (t) => {
    const jwksUri = 'https://app.example/jwks'
    const { id } = await named.client.create({
      resourceType: 'ClientApplication',
      name: 'App',
      redirectUris: ['https://app.example/'],
    })
    const own = await read(named.client, id)
    t.equal((await named.client.put(`ClientApplication/${id}`, { ...own, jwksUri })).status, 200)
    // A member without a policy has rights on more types than a member with one of these.
    const change = [{ op: 'add', path: '/jwksUri', value: jwksUri }]
    const weak = await memberUnder(botica, { entries: [{ resourceType: 'ClientApplication' }] })
    t.match(await weak.client.patch<Raw>(`ClientApplication/${free.id}`, change), {
      status: 403,
      body: { issue: [{ details: { text: /more rights than yours$/ } }] },
    })
    t.equal((await named.client.patch(`ClientApplication/${free.id}`, change)).status, 200)
  },
)

t.test('grants nothing through a narrower entry that * does not grant', async (t) => {
  for (const entry of [{ readonly: true }, { criteria: 'ClientApplication?name=nobody' }]) {
    const { client } = await memberUnder(botica, {
      entries: [{ resourceType: 'ClientApplication', ...entry }, { resourceType: '*' }],
    })
    const own = await client.create({ resourceType: 'ClientApplication', name: 'App' })
    for (const [way, status] of await changedEveryWay(client, own, { pkceOptional: true })) {
      t.equal(status, 403, way)
    }
  }
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'AccessPolicy', readonly: true }, { resourceType: '*' }],
  })
  const { body } = await client.get<Raw>('AccessPolicy?_count=1')
  const policy = body.entry[0].resource
  t.equal((await client.put(`AccessPolicy/${policy.id}`, { ...policy, name: 'x' })).status, 403)
  t.equal((await client.post('AccessPolicy', { resourceType: 'AccessPolicy' })).status, 403)
  t.equal((await client.del(`AccessPolicy/${policy.id}`)).status, 403)
})

t.test('lets members name clients and administrators configure them', async (t) => {
  const { id } = await admin.create({ resourceType: 'ClientApplication', ...GUARDED, name: 'Full' })
  for (const { client } of [free, starred]) {
    const seen = await read(client, id)
    t.equal((await client.put(`ClientApplication/${id}`, { ...seen, name: 'x' })).status, 200)
    const rename = [{ op: 'replace', path: '/description', value: client.token }]
    t.not((await client.patch(`ClientApplication/${id}`, rename)).status, 403)
  }
  const hiding = await memberUnder(botica, {
    entries: [{ resourceType: 'ClientApplication', hiddenFields: ['jwksUri', 'redirectUris'] }],
  })
  const change = [{ op: 'add', path: '/jwksUri', value: 'https://app.example/jwks' }]
  t.equal((await admin.patch(`ClientApplication/${free.id}`, change)).status, 200)
  const shown = await read(hiding.client, free.id)
  t.notOk('jwksUri' in shown)
  const renamed = { ...shown, name: 'y' }
  t.equal((await hiding.client.put(`ClientApplication/${free.id}`, renamed)).status, 200)
  t.match(await read(admin, free.id), { name: 'y', jwksUri: 'https://app.example/jwks' })
  const kept = await read(admin, id)
  for (const name of Object.keys(GUARDED)) t.same(kept[name], GUARDED[name], name)
  t.equal(
    (await free.client.del(path)).status,
    403,
    'rejects deletion of an administrator’s client',
  )
  t.equal((await free.client.get('/auth/me')).status, 200)
})

t.test(
  'rejects imports, clones, launches and quotas that exceed the rights of members',
  async (t) => {
    const line = [{ name: 'type', valueCode: 'ClientApplication' }]
    const body = { resourceType: 'Parameters', parameter: [{ name: 'input', part: line }] }
    t.equal((await starred.client.post('$import', body)).status, 403)
    const clone = { name: 'Copy' }
    t.equal((await starred.client.post(`Project/${project.id}/$clone`, clone)).status, 403)
    const patient = await admin.create({ resourceType: 'Patient' })
    const launch = {
      resourceType: 'SmartAppLaunch',
      patient: { reference: `Patient/${patient.id}` },
    }
    const home = { reference: `Project/${project.id}` }
    for (const { client, id } of [free, starred]) {
      const self = { reference: `ClientApplication/${id}` }
      t.equal((await client.post('SmartAppLaunch', launch)).status, 403)
      const own = {
        resourceType: 'UserConfiguration',
        option: [{ id: 'fhirQuota', valueInteger: -1 }],
      }
      t.equal((await client.post('UserConfiguration', own)).status, 403)
      t.equal((await client.post('UserConfiguration', { ...own, option: undefined })).status, 201)
      for (const [type, more] of Object.entries({
        DomainConfiguration: { domain: 'example.org', identityProvider: provider },
        Login: { authMethod: 'password', authTime: '2026-01-01T00:00:00Z', user: self },
        Project: { name: 'Mine', secret: [{ name: 'KEY', valueString: 'x' }] },
        ProjectMembership: { admin: true, project: home, user: self, profile: self },
        User: { firstName: 'A', lastName: 'B' },
        AccessPolicy: { resource: [{ resourceType: '*' }] },
      })) {
        t.equal((await client.post(type, { resourceType: type, ...more })).status, 403, type)
      }
      const site = [{ op: 'add', path: '/site', value: [{ name: 'x', domain: ['evil.example'] }] }]
      t.equal((await client.patch(`Project/${project.id}`, site)).status, 403)
    }
  },
)

t.test('treats an administrator’s token outside the administration as a member’s', async (t) => {
  const { id, secret } = adminCredentials
  const narrow = await askToken(baseUrl, {
    grant_type: 'client_credentials',
    client_id: id,
    client_secret: secret,
    scope: 'system/Patient.cruds',
  })
  const client = createClient(baseUrl, narrow.body.access_token)
  const change = [{ op: 'add', path: '/pkceOptional', value: true }]
  t.equal((await client.patch(path, change)).status, 403)
})
