/** Imports the system's rights, to change logins as they are stored. */
import { createPrivateKey, sign } from 'node:crypto'
import { exportJWK, generateKeyPair } from 'jose'
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { openBotica, SYSTEM_PROJECT_ID, until } from '../../fixtures/botica.ts'
import { basic, createClient } from '../../fixtures/client.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'
import { getBindingToken, subscribe } from '../../fixtures/sockets.ts'

const botica = await openBotica(t)
const { baseUrl, services } = botica
const projectId = botica.project.id
const TAKES_EFFECT_MS = 5000

t.test('/auth/me returns the client without its secret', async (t) => {
  const { client, id, secret } = await botica.createMember()
  const { status, body, text } = await client.get<Record<string, unknown>>('/auth/me')
  t.equal(status, 200)
  t.match(body, {
    project: { resourceType: 'Project', id: projectId, strictMode: true, superAdmin: false },
    membership: {
      resourceType: 'ProjectMembership',
      user: { reference: `ClientApplication/${id}` },
      profile: { reference: `ClientApplication/${id}` },
    },
    profile: { resourceType: 'ClientApplication', id },
    config: { resourceType: 'UserConfiguration', menu: [{ title: 'Favorites' }] },
    accessPolicy: { resourceType: 'AccessPolicy', resource: [{ resourceType: '*' }] },
  })
  t.equal(body.user, undefined)
  t.notMatch(text, secret)
})

t.test('Basic credentials open the API without a token', async (t) => {
  const { id, secret } = await botica.createMember()
  t.equal((await botica.anonymous.get('/auth/me', basic(id, secret))).status, 200)
  const refused = await botica.anonymous.get('/auth/me', basic(id, 'wrong'))
  t.equal(refused.status, 401)
  t.equal((await botica.anonymous.get('/auth/me', { Authorization: 'Basic !' })).status, 401)
})

t.test('rejects a missing, invalid or foreign token with 401 and a challenge', async (t) => {
  const none = await botica.anonymous.get('Patient/1')
  t.match(none, { status: 401, body: { id: 'unauthorized', issue: [{ code: 'login' }] } })
  t.equal(none.headers.get('www-authenticate'), `Bearer realm="${services.config.baseUrl}"`)

  const [header = '', payload = ''] = (botica.superAdmin.token ?? '').split('.')
  const foreign = await generateKeyPair('ES256', { extractable: true })
  const key = createPrivateKey({ key: await exportJWK(foreign.privateKey), format: 'jwk' })
  const input = `${header}.${payload}`
  const signature = sign('sha256', Buffer.from(input), { key, dsaEncoding: 'ieee-p1363' })
  const unsigned = Buffer.from('{"alg":"none","typ":"at+jwt"}').toString('base64url')
  const tokens = [
    'x',
    'a.b.c',
    `${input}.${signature.toString('base64url')}`,
    `${unsigned}.${payload}.`,
    'y'.repeat(10_000),
  ]
  for (const token of tokens) {
    const refused = await createClient(baseUrl, token).get('Patient/1')
    t.equal(refused.status, 401)
    t.match(refused.headers.get('www-authenticate'), /error="invalid_token"/)
  }
  const prompted = await botica.anonymous.get('/auth/me?_medplum-prompt-basic-auth=1')
  t.match(prompted.headers.get('www-authenticate'), /^Basic /)
})

t.test('reports an expired token as expired', async (t) => {
  const { id } = await botica.createMember()
  const token = await services.tokens.issue({
    loginId: '00000000-0000-4000-8000-000000000000',
    subject: id,
    clientId: id,
    profile: `ClientApplication/${id}`,
    scope: 'openid',
    lifetimeSeconds: -60,
  })
  const refused = await createClient(baseUrl, token).get('/auth/me')
  t.match(refused, { status: 401, body: { issue: [{ code: 'login' }, { code: 'expired' }] } })
})

t.test('rejects a revoked token, and accepts a second revocation', async (t) => {
  const { id, secret, client } = await botica.createMember()
  t.equal((await client.get('/auth/me')).status, 200)
  for (const token of [client.token ?? '', client.token ?? '', 'unknown']) {
    const response = await fetch(`${baseUrl}oauth2/revoke`, {
      method: 'POST',
      headers: basic(id, secret),
      body: new URLSearchParams({ token }),
    })
    t.equal(response.status, 200)
    t.equal(response.headers.get('content-length'), '0')
  }
  t.equal((await client.get('/auth/me')).status, 401)
})

t.test('introspection shows only tokens of the project of the caller', async (t) => {
  const { id, secret, client } = await botica.createMember()
  const ask = async (token: string) => {
    const response = await fetch(`${baseUrl}oauth2/introspect`, {
      method: 'POST',
      headers: basic(id, secret),
      body: new URLSearchParams({ token }),
    })
    return await response.json()
  }
  t.match(await ask(client.token ?? ''), { active: true, client_id: id, sub: id })
  t.same(await ask(botica.superAdmin.token ?? ''), { active: false })
  t.same(await ask('x'), { active: false })
  const forSocket = await getBindingToken(client, await subscribe(client, 'Patient'))
  t.same(await ask(forSocket), { active: false })
})

t.test('ends a login in other processes within 5 s', async (t) => {
  const elsewhere = await botica.startWeb()
  const { repository } = services
  const readMembership = async (id: string) => {
    const session = await services.principals.forProfile(`ClientApplication/${id}`)
    return session?.membership.id ?? ''
  }
  const ends: Record<string, (id: string) => Promise<unknown>> = {
    'an inactive membership': async (id) =>
      repository.patch(
        system,
        { type: 'ProjectMembership', id: await readMembership(id) },
        (current) => ({
          ...current,
          active: false,
        }),
      ),
    'a deleted membership': async (id) =>
      repository.delete(system, 'ProjectMembership', await readMembership(id)),
    'a deleted client': (id) => repository.delete(system, 'ClientApplication', id),
    'a client that is off': (id) =>
      repository.patch(system, { type: 'ClientApplication', id }, (current) => ({
        ...current,
        status: 'off',
      })),
  }
  await Promise.all(
    Object.entries(ends).map(async ([name, end]) => {
      const { id, client } = await botica.createMember()
      const there = createClient(elsewhere, client.token)
      t.equal((await there.get('/auth/me')).status, 200, name)
      await end(id)
      const isRefused = async () => (await there.get('/auth/me')).status === 401
      await t.resolves(until(isRefused, TAKES_EFFECT_MS), `${name} is refused`)
    }),
  )
})

t.test('accepts tokens of people only while their app exists and is active', async (t) => {
  const { admin, anonymous, project } = botica
  const elsewhere = await botica.startWeb()
  const app = await admin.create({ resourceType: 'ClientApplication', name: 'App' })
  const { email } = await aPerson(services, project)
  const { verifier, asked } = pkce()
  const credentials = { email, password: PASSWORD, clientId: app.id, scope: 'openid offline' }
  const begun = await anonymous.post<{ code: string }>('/auth/login', { ...credentials, ...asked })
  const { body: tokens } = await redeemCode(baseUrl, begun.body.code, verifier, {
    client_id: app.id,
  })
  const [here, there] = [baseUrl, elsewhere].map((url) => createClient(url, tokens.access_token))
  const expectBoth = async (status: number) => {
    t.equal((await here?.get('/auth/me'))?.status, status)
    await until(async () => (await there?.get('/auth/me'))?.status === status, TAKES_EFFECT_MS)
  }
  await expectBoth(200)
  const path = `ClientApplication/${app.id}`
  t.equal((await admin.put(path, { ...app, status: 'off' })).status, 200)
  await expectBoth(401)
  const { id, secret } = await botica.createMember()
  const introspection = await fetch(`${baseUrl}oauth2/introspect`, {
    method: 'POST',
    headers: basic(id, secret),
    body: new URLSearchParams({ token: tokens.access_token }),
  })
  t.same(await introspection.json(), { active: false })
  const { refresh_token } = tokens
  const form = { grant_type: 'refresh_token', client_id: app.id, refresh_token }
  t.match(await askToken(baseUrl, form), { status: 400, body: { error: 'invalid_grant' } })

  t.equal((await admin.put(path, { ...app, status: 'active' })).status, 200)
  await expectBoth(200)
  t.equal((await admin.del(path)).status, 200)
  await expectBoth(401)
})

t.test('applies a policy to a client and immediately to its existing tokens', async (t) => {
  const policy = await services.repository.create(system, {
    resourceType: 'AccessPolicy',
    meta: { project: projectId },
    name: 'Patients, read only',
    resource: [
      { resourceType: 'Patient', readonly: true },
      { resourceType: 'Observation', criteria: 'Observation?status=final' },
    ],
  })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const { client } = await botica.createMember({ accessPolicy })
  t.equal((await client.post('Patient', { resourceType: 'Patient' })).status, 403)
  t.equal((await client.get('Patient/00000000-0000-4000-8000-000000000000')).status, 404)
  t.equal((await client.get('Observation/00000000-0000-4000-8000-000000000000')).status, 404)
  t.equal((await client.get('Encounter/00000000-0000-4000-8000-000000000000')).status, 403)
  const me = await client.get<Record<string, unknown>>('/auth/me')
  t.match(me.body, {
    accessPolicy: {
      basedOn: [accessPolicy],
      resource: [
        { resourceType: 'Patient', interaction: ['read', 'vread', 'search', 'history'] },
        { resourceType: 'Observation', criteria: 'Observation?status=final' },
        { resourceType: 'SearchParameter' },
        { resourceType: 'StructureDefinition' },
      ],
    },
  })
})

t.test('an administrator acts for a member of the same project', async (t) => {
  const target = await botica.createMember({}, SYSTEM_PROJECT_ID)
  const onBehalf = (reference: string) => ({ 'X-Medplum-On-Behalf-Of': reference })
  const acting = onBehalf(`ClientApplication/${target.id}`)
  t.match(await botica.superAdmin.get('/auth/me', acting), {
    status: 200,
    body: { profile: { id: target.id } },
  })
  const { id, client } = await botica.createMember()
  const foreign = onBehalf(`ClientApplication/${id}`)
  t.equal((await botica.superAdmin.get('/auth/me', foreign)).status, 403)
  t.equal((await botica.superAdmin.get('/auth/me', onBehalf('nobody'))).status, 403)
  t.equal((await client.get('/auth/me', acting)).status, 403)
})
