/**
 * Identity providers of a Project are trusted only in that Project. Imports the system's rights, to store providers
 * that writes reject.
 */
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { exportJWK, generateKeyPair, SignJWT } from 'jose'
import t from 'tap'
import { system } from '../../../../shared/access/project-context.ts'
import { createAccounts } from '../../../fixtures/accounts.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import { createClient } from '../../../fixtures/client.ts'
import { listen } from '../../../fixtures/http/listening.ts'
import { anEmail, findInvitedUsers, invite } from '../../../fixtures/invites.ts'
import { aPerson, askToken, PASSWORD } from '../../../fixtures/people.ts'

const google = await generateKeyPair('RS256')
const keySet = { keys: [{ ...(await exportJWK(google.publicKey)), kid: 'g1', alg: 'RS256' }] }
const identities = new Map<string, Record<string, unknown>>()
const provider = createServer((req, res) => {
  if (req.url === '/certs') return res.end(JSON.stringify(keySet))
  const token = (req.headers.authorization ?? '').replace('Bearer ', '')
  if (req.url === '/userinfo') return res.end(JSON.stringify(identities.get(token) ?? {}))
  let body = ''
  req.on('data', (data) => {
    body += data
  })
  return req.on('end', () => {
    res.end(JSON.stringify({ access_token: new URLSearchParams(body).get('code') }))
  })
})
const origin = `http://127.0.0.1:${await listen(t, provider)}`
const GOOGLE_CLIENT_ID = 'service.apps.googleusercontent.com'
const SITE_CLIENT_ID = 'site.apps.googleusercontent.com'
const env = { GOOGLE_CLIENT_ID, GOOGLE_JWKS_URL: `${origin}/certs` }
const botica = await openBotica(t, { env })
const { admin, superAdmin, anonymous, services, project, baseUrl } = botica
const { asked, logIn, openClientSession } = createAccounts(botica)
const foreign = await botica.createTenant()
const redirectUri = 'https://app.example/callback'
const identityProvider = {
  authorizeUrl: `${origin}/authorize`,
  tokenUrl: `${origin}/token`,
  userInfoUrl: `${origin}/userinfo`,
  clientId: 'at the provider',
  clientSecret: 'a secret',
}
const app = await foreign.admin.create({
  resourceType: 'ClientApplication',
  name: 'Own provider',
  redirectUris: [redirectUri],
  identityProvider,
})
const exchange = (subject_token: string, form: Record<string, string> = {}) =>
  askToken(baseUrl, {
    grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
    subject_token_type: 'urn:ietf:params:oauth:token-type:access_token',
    client_id: app.id,
    subject_token,
    ...form,
  })
const names = [{ op: 'replace', path: '/firstName', value: 'Changed' }]

async function aVictim() {
  const person = await aPerson(services, project)
  const there = await aPerson(services, foreign.project, { user: person.user })
  identities.set(person.email, { email: person.email })
  return { ...person, there }
}
const back = (state: object, code: string) =>
  anonymous.get(`/auth/external?${new URLSearchParams({ code, state: JSON.stringify(state) })}`)

t.test("rejects changes of the User by a session of a Project's provider", async (t) => {
  const { email, user } = await aVictim()
  const { body, text, status } = await exchange(email)
  t.equal(status, 200, text)
  const claimed = createClient(baseUrl, body.access_token)
  const path = `User/${user.id}`
  const renamed = { resourceType: 'User', id: user.id, firstName: 'Changed', lastName: 'Lee' }
  t.equal((await claimed.get(path)).status, 403)
  t.equal((await claimed.get(`${path}/_history`)).status, 403)
  t.equal((await claimed.patch(path, names)).status, 403)
  t.equal((await claimed.put(path, renamed)).status, 403)
  const graph = await claimed.post<{ data?: unknown }>(
    '$graphql',
    JSON.stringify({ query: `{ User(id: "${user.id}") { firstName } }` }),
    { 'Content-Type': 'application/json' },
  )
  t.notMatch(graph.text, 'Ada')
  t.equal((await claimed.get('/auth/mfa/status')).status, 403)
  const me = await claimed.get<{ user: object }>('/auth/me')
  t.same(Object.keys(me.body.user).sort(), ['email', 'id', 'resourceType'])
  t.notOk('security' in me.body)

  // The session keeps its origin after the provider is removed.
  const { identityProvider: _, ...plain } = app as typeof app & { identityProvider: object }
  t.equal((await foreign.admin.put(`ClientApplication/${app.id}`, plain)).status, 200)
  t.equal((await claimed.get('/auth/mfa/status')).status, 403)
  t.equal((await foreign.admin.put(`ClientApplication/${app.id}`, app)).status, 200)

  const own = await openClientSession(
    (await logIn(email, PASSWORD, { projectId: project.id })).body.code,
  )
  t.match(await own.get(path), { status: 200, body: { firstName: 'Ada' } })
  t.equal((await own.patch(path, names)).status, 200)
})

t.test('signs in to its Project, and only members', async (t) => {
  const victim = await aVictim()
  const second = await aPerson(services, foreign.project, { user: victim.user })
  t.ok(second.membership.id)
  const begun = await back({ clientId: app.id, redirectUri }, victim.email)
  t.equal(begun.status, 302, begun.text)
  const login = new URL(begun.headers.get('location') ?? '').searchParams.get('login')
  const elsewhere = { login, profile: victim.membership.id }
  t.match(await anonymous.post('/auth/profile', elsewhere), {
    status: 400,
    body: { issue: [{ details: { text: 'Invalid profile' } }] },
  })
  const here = { login, profile: victim.there.membership.id }
  t.equal((await anonymous.post('/auth/profile', here)).status, 200)
  const chosen = await exchange(victim.email, { membership_id: victim.membership.id ?? '' })
  t.equal(chosen.status, 400)

  const stranger = await aPerson(services, project)
  identities.set('no member', { email: stranger.email })
  t.equal((await exchange('no member')).status, 400)
  for (const projectId of [project.id, 'new']) {
    t.equal((await back({ clientId: app.id, projectId }, victim.email)).status, 400, projectId)
  }
})

t.test("rejects unverified addresses of a Project's provider", async (t) => {
  const { email, there } = await aVictim()
  for (const email_verified of [false, 'false']) {
    identities.set('unverified', { email, email_verified })
    t.equal((await exchange('unverified')).status, 400)
    t.equal((await back({ clientId: app.id, redirectUri }, 'unverified')).status, 400)
  }
  identities.set('verified', { email, email_verified: true })
  t.equal((await exchange('verified')).status, 200)

  const externalId = randomUUID()
  const path = `ProjectMembership/${there.membership.id}`
  const { body: membership } = await foreign.admin.get(path)
  t.equal((await foreign.admin.put(path, { ...membership, externalId })).status, 200)
  const bySubject = { ...app, identityProvider: { ...identityProvider, useSubject: true } }
  t.equal((await foreign.admin.put(`ClientApplication/${app.id}`, bySubject)).status, 200)
  identities.set('subject of a member', { sub: externalId, email, email_verified: false })
  t.equal((await exchange('subject of a member')).status, 200, 'a subject needs no address')
  t.equal((await foreign.admin.put(`ClientApplication/${app.id}`, app)).status, 200)
})

t.test('neither verifies an address nor ends sessions of other Projects', async (t) => {
  const email = anEmail()
  t.equal((await invite(foreign.admin, foreign.project.id, { email })).status, 200)
  identities.set(email, { email })
  const client = createClient(baseUrl, (await exchange(email)).body.access_token)
  t.notOk((await findInvitedUsers(services, email))[0]?.provenEmail)
  t.equal((await invite(admin, project.id, { email })).status, 200)
  t.equal(
    (await client.get('/auth/me')).status,
    200,
    'an invite of another Project changes nothing',
  )
})

t.test('an administrator configures no domain', async (t) => {
  const domain = `d${randomUUID()}.example`
  const configuration = { resourceType: 'DomainConfiguration', domain, identityProvider }
  t.equal((await foreign.admin.post('DomainConfiguration', configuration)).status, 403)
  const batch = {
    resourceType: 'Bundle',
    type: 'batch',
    entry: [{ request: { method: 'POST', url: 'DomainConfiguration' }, resource: configuration }],
  }
  const sent = await foreign.admin.post('', batch)
  t.match(sent.body, { entry: [{ response: { status: '403' } }] })
})

t.test('accepts a domain provider only for verified addresses of the domain', async (t) => {
  const domain = `d${randomUUID()}.example`
  const bySubject = `s${randomUUID()}.example`
  const configure = (name: string, more: object) =>
    superAdmin.create({
      resourceType: 'DomainConfiguration',
      domain: name,
      identityProvider: { ...identityProvider, ...more },
    })
  await configure(domain, {})
  await configure(bySubject, { useSubject: true })
  const ada = await aPerson(services, project, { email: `ada@${domain}`, isStranger: true })
  identities.set('ada', { email: ada.email })
  identities.set('unverified', { email: ada.email, email_verified: false })
  t.equal((await back({ domain }, 'unverified')).status, 400)
  t.equal((await logIn(ada.email, PASSWORD)).status, 200)
  t.equal((await back({ domain }, 'ada')).status, 302)
  t.equal(
    (await logIn(ada.email, PASSWORD)).status,
    400,
    'signs in the owner and removes the stranger',
  )

  const subject = randomUUID()
  const other = await aPerson(services, project)
  const membership = `ProjectMembership/${other.membership.id}`
  const { body } = await superAdmin.get(membership)
  t.equal((await superAdmin.put(membership, { ...body, externalId: subject })).status, 200)
  identities.set('subject', { email: `evil@${bySubject}`, sub: subject })
  const state = { domain: bySubject, projectId: project.id }
  t.equal((await back(state, 'subject')).status, 400, 'rejects a subject of another person')
})

t.test('returns 400 for an invalid address of a provider', async (t) => {
  const addresses = [
    'nowhere',
    'javascript:alert(1)',
    'http://',
    '//example.org',
    'data:text/html,x',
  ]
  for (const authorizeUrl of addresses) {
    const domain = `d${randomUUID()}.example`
    await services.repository.create(system, {
      resourceType: 'DomainConfiguration',
      domain,
      identityProvider: { ...identityProvider, authorizeUrl, tokenUrl: 'nowhere' },
    })
    const answer = await anonymous.post('/auth/method', { email: `ada@${domain}` })
    t.match(answer, { status: 400, body: { resourceType: 'OperationOutcome' } }, authorizeUrl)
    t.equal((await back({ domain }, 'x')).status, 400, authorizeUrl)
  }
})

t.test("signs in through a Project's Google client without changing accounts", async (t) => {
  const { email, user } = await aVictim()
  const sites = [{ name: 'Site', domain: ['site.example'], googleClientId: SITE_CLIENT_ID }]
  const saved = await foreign.admin.post(`/admin/projects/${foreign.project.id}/sites`, sites)
  t.equal(saved.status, 200, saved.text)
  const signIn = async (audience: string, fields: object) => {
    const googleCredential = await new SignJWT({ email, email_verified: true })
      .setProtectedHeader({ alg: 'RS256', kid: 'g1' })
      .setSubject('g-subject')
      .setIssuer('https://accounts.google.com')
      .setAudience(audience)
      .setIssuedAt()
      .setExpirationTime('5m')
      .sign(google.privateKey)
    const body = { googleClientId: audience, googleCredential, ...asked, ...fields }
    return await anonymous.post<{ code?: string }>('/auth/google', body)
  }
  t.equal((await signIn(SITE_CLIENT_ID, { projectId: project.id })).status, 400)
  const there = await signIn(SITE_CLIENT_ID, { projectId: foreign.project.id })
  t.equal(there.status, 200, there.text)
  const claimed = await openClientSession(there.body.code)
  t.equal((await claimed.get('/auth/mfa/status')).status, 403)
  t.equal((await claimed.patch(`User/${user.id}`, names)).status, 403)
  const ours = await signIn(GOOGLE_CLIENT_ID, { projectId: project.id })
  const own = await openClientSession(ours.body.code)
  t.equal((await own.patch(`User/${user.id}`, names)).status, 200)
})

t.test('shows a Project only its own names of people', async (t) => {
  const email = anEmail()
  const elsewhere = await invite(admin, project.id, {
    email,
    firstName: 'Elsewhere',
    lastName: 'Known',
  })
  const called = { email, firstName: 'Here', lastName: 'Known-as' }
  const { body: membership } = await invite(foreign.admin, foreign.project.id, called)
  const path = `/scim/v2/Users/${membership.id}`
  const user = {
    userName: email,
    name: { givenName: 'A', familyName: 'B' },
    emails: [{ value: email }],
  }
  for (const answer of [
    await foreign.admin.get(path),
    await foreign.admin.get(
      `/scim/v2/Users?filter=${encodeURIComponent(`userName eq "${email}"`)}`,
    ),
    await foreign.admin.put(path, user),
    await foreign.admin.patch(path, {
      Operations: [{ op: 'replace', path: 'active', value: true }],
    }),
    await foreign.admin.get(`ProjectMembership/${membership.id}`),
    await foreign.admin.get(
      `ProjectMembership?_id=${membership.id}&_include=ProjectMembership:user`,
    ),
  ]) {
    t.equal(answer.status, 200, answer.text)
    t.notMatch(answer.text, 'Elsewhere')
  }
  t.match((await foreign.admin.get(path)).body, { name: { givenName: 'A', familyName: 'B' } })
  t.match((await admin.get(`/scim/v2/Users/${elsewhere.body.id}`)).body, {
    name: { givenName: 'Elsewhere', familyName: 'Known' },
  })
})
