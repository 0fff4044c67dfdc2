import { createServer } from 'node:http'
import { type CryptoKey, exportJWK, generateKeyPair, SignJWT } from 'jose'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { type Client, createClient } from '../../fixtures/client.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPerson, pkce, redeemCode } from '../../fixtures/people.ts'

const [google, stranger] = await Promise.all([generateKeyPair('RS256'), generateKeyPair('RS256')])
const keySet = { keys: [{ ...(await exportJWK(google.publicKey)), kid: 'g1', alg: 'RS256' }] }
const server = createServer((_req, res) => res.end(JSON.stringify(keySet)))
const GOOGLE_JWKS_URL = `http://127.0.0.1:${await listen(t, server)}/certs`
const GOOGLE_CLIENT_ID = 'service.apps.googleusercontent.com'
const botica = await openBotica(t, { env: { GOOGLE_CLIENT_ID, GOOGLE_JWKS_URL } })
const { anonymous, superAdmin, services, baseUrl, project } = botica
const { verifier, asked } = pkce()

interface Given {
  readonly claims?: Record<string, unknown>
  readonly issuer?: string
  readonly audience?: string
  readonly expires?: string
  readonly kid?: string
  readonly key?: CryptoKey
}

/** Signs an ID token like Google's button. */
function credential(email: string, given: Given = {}): Promise<string> {
  const { claims, issuer = 'https://accounts.google.com', audience = GOOGLE_CLIENT_ID } = given
  const payload = { email, email_verified: true, given_name: 'Ada', family_name: 'L', ...claims }
  return new SignJWT(payload)
    .setProtectedHeader({ alg: 'RS256', kid: given.kid ?? 'g1' })
    .setSubject('g-subject')
    .setIssuer(issuer)
    .setAudience(audience)
    .setIssuedAt()
    .setExpirationTime(given.expires ?? '5m')
    .sign(given.key ?? google.privateKey)
}

const signIn = (googleCredential: string, fields: object = {}) =>
  anonymous.post<{ login: string; code: string }>('/auth/google', {
    googleClientId: GOOGLE_CLIENT_ID,
    googleCredential,
    ...asked,
    ...fields,
  })
const failure = (text: string) => ({ status: 400, body: { issue: [{ details: { text } }] } })

t.test('signs in a person with a Google ID token', async (t) => {
  const { email, user } = await aPerson(services, project)
  const { status, body, text } = await signIn(await credential(email))
  t.equal(status, 200, text)
  const tokens = await redeemCode(baseUrl, body.code, verifier)
  t.equal(tokens.status, 200, tokens.text)
  const me = await createClient(baseUrl, tokens.body.access_token).get('/auth/me')
  t.match(me.body, { user: { id: user.id } })
})

t.test('rejects every invalid credential', async (t) => {
  const { email } = await aPerson(services, project)
  const bad: Record<string, string> = {
    'of another key': await credential(email, { key: stranger.privateKey }),
    'of an unknown key': await credential(email, { kid: 'g2' }),
    'for another client': await credential(email, { audience: 'other' }),
    'of another issuer': await credential(email, { issuer: baseUrl }),
    'that has expired': await credential(email, { expires: '-5m' }),
    'of an unverified address': await credential(email, {
      claims: { email_verified: false },
    }),
    'without an address': await credential(email, { claims: { email: undefined } }),
    'that is not a token': 'nonsense',
    'without a signature': `${(await credential(email)).split('.').slice(0, 2).join('.')}.`,
  }
  for (const [what, token] of Object.entries(bad)) {
    t.match(await signIn(token), failure('Invalid googleCredential'), what)
  }
  const fine = await credential(email)
  t.match(await signIn(fine, { googleClientId: 'other' }), failure('Invalid googleClientId'))
  t.equal((await signIn('')).status, 400)
  const nobody = await credential('nobody@example.org')
  t.match(await signIn(nobody), failure('User not found'))
  t.match(await signIn(nobody, { createUser: true }), failure('Registration is disabled'))
})

t.test('a Project that requires Google sign-in accepts the client of its site', async (t) => {
  const tenant = await botica.createTenant()
  const googleClientId = `site-${tenant.project.id}.apps.googleusercontent.com`
  const path = `Project/${tenant.project.id}`
  const { body } = await superAdmin.get(path)
  const site = [{ name: 'Site', domain: ['site.example'], googleClientId }]
  const changed = { ...body, site, features: ['google-auth-required'] }
  const saved = await superAdmin.put(path, changed)
  t.equal(saved.status, 200, saved.text)
  services.principals.forget()
  const { email } = await aPerson(services, tenant.project, { isProjectScoped: true })
  const token = await credential(email, { audience: googleClientId })
  const here = { googleClientId, projectId: tenant.project.id }
  for (const words of [here, { googleClientId }]) {
    const { status, body, text } = await signIn(token, words)
    t.equal(status, 200, text)
    t.match(body, { code: String })
  }
  const elsewhere = { googleClientId, projectId: project.id }
  t.match(await signIn(token, elsewhere), failure('Invalid googleClientId'))
})

t.test(
  'the client of a site leads to its Project alone, and only while it is the only one',
  async (t) => {
    const [tenant, other] = await Promise.all([botica.createTenant(), botica.createTenant()])
    const googleClientId = `of-a|site,of.${process.pid}`
    const sites = (client: Client, id: string) =>
      client.post(`/admin/projects/${id}/sites`, [
        { name: 'Site', domain: ['site.example'], googleClientId },
      ])
    t.equal((await sites(tenant.admin, tenant.project.id)).status, 200)
    const { email, user, membership } = await aPerson(services, tenant.project)
    await aPerson(services, other.project, { user })
    const token = await credential(email, { audience: googleClientId })
    const { status, body, text } = await signIn(token, { googleClientId })
    t.equal(status, 200, text)
    const tokens = await redeemCode(baseUrl, body.code, verifier)
    const me = await createClient(baseUrl, tokens.body.access_token).get('/auth/me')
    t.match(me.body, { project: { id: tenant.project.id }, membership: { id: membership.id } })
    for (const unknown of ['of-a', '|of-a|site,of.one', 'site.apps']) {
      const refused = await signIn(token, { googleClientId: unknown })
      t.match(refused, failure('Invalid googleClientId'), unknown)
    }
    const founding = await signIn(token, { googleClientId, projectId: 'new' })
    t.match(founding, failure('Invalid googleClientId'))

    t.equal((await sites(other.admin, other.project.id)).status, 200)
    t.match(await signIn(token, { googleClientId }), failure('Invalid googleClientId'))
    const projectId = other.project.id
    t.equal((await signIn(token, { googleClientId, projectId })).status, 200)
  },
)

t.test('a new user can register with Google where patients can', async (t) => {
  const tenant = await botica.createTenant()
  const policy = await tenant.admin.create({
    resourceType: 'AccessPolicy',
    resource: [{ resourceType: 'Patient' }],
  })
  const path = `Project/${tenant.project.id}`
  const { body } = await superAdmin.get(path)
  const defaultPatientAccessPolicy = { reference: `AccessPolicy/${policy.id}` }
  t.equal((await superAdmin.put(path, { ...body, defaultPatientAccessPolicy })).status, 200)
  const projectId = tenant.project.id
  const token = await credential('new.patient@example.org')
  t.match(await signIn(token, { projectId }), failure('User not found'))
  const begun = await signIn(token, { projectId, createUser: true })
  t.match(begun, { status: 200, body: { login: String, code: undefined } })
  const { login } = begun.body
  const made = await anonymous.post<{ code: string }>('/auth/newpatient', { login, projectId })
  t.match(made, { status: 200, body: { code: String } })
})
