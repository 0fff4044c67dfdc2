/** Imports the system's rights, to read a login as it is stored. */
import { createHmac, randomUUID } from 'node:crypto'
import { MedplumClient } from '@medplum/core'
import { type CryptoKey, exportJWK, generateKeyPair, SignJWT } from 'jose'
import t from 'tap'
import { system } from '../../../shared/access/project-context.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aPerson, PASSWORD } from '../../fixtures/people.ts'
import { setBrowserGlobals } from '../../fixtures/sdk.ts'

const botica = await openBotica(t)
const { baseUrl, services, project } = botica

setBrowserGlobals()

const sdk = (options: object = {}) =>
  new MedplumClient({ baseUrl, fetch, cacheTime: 0, ...options })

t.test('the SDK signs a person in by PKCE, reads as them, and signs out', async (t) => {
  const { email, profile } = await aPerson(services, project)
  const medplum = sdk()
  const login = await medplum.startLogin({ email, password: PASSWORD, remember: false })
  t.ok(login.code)
  const [stored] = await services.repository.readMany(system, [{ type: 'Login', id: login.login }])
  t.match(stored && parseVersion(stored), { codeChallengeMethod: 'S256' })
  const signedIn = await medplum.processCode(login.code ?? '')
  t.equal(signedIn.id, profile.id)
  t.match(medplum.getProject(), { id: project.id })
  const patient = await medplum.createResource({ resourceType: 'Patient' })
  t.equal((await medplum.readResource('Patient', patient.id)).id, patient.id)
  t.equal(medplum.isSuperAdmin(), false)
  const token = medplum.getAccessToken()
  await medplum.signOut()
  const after = await fetch(`${baseUrl}auth/me`, { headers: { Authorization: `Bearer ${token}` } })
  t.equal(after.status, 401)
})

t.test('the SDK refreshes a token that is about to expire', async (t) => {
  const app = await botica.admin.create({
    resourceType: 'ClientApplication',
    name: 'Short',
    accessTokenLifetime: '10m',
  })
  const { email } = await aPerson(services, project)
  const medplum = sdk({ clientId: app.id, refreshGracePeriod: 0 })
  const login = await medplum.startLogin({ email, password: PASSWORD, scope: 'openid offline' })
  await medplum.processCode(login.code ?? '')
  const first = medplum.getAccessToken()
  t.equal(medplum.isAuthenticated(), true)
  await medplum.refreshIfExpired(3600_000)
  t.not(medplum.getAccessToken(), first)
  await medplum.search('Patient')
})

t.test('the SDK reports why a password is wrong', async (t) => {
  const { email } = await aPerson(services, project)
  const wrong = sdk().startLogin({ email, password: 'not this one' })
  await t.rejects(wrong, { message: 'Email or password is invalid' })
})

t.test('the SDK chooses one of several profiles', async (t) => {
  const other = await botica.createTenant()
  const { email, user } = await aPerson(services, project)
  const second = await aPerson(services, other.project, { user })
  const medplum = sdk()
  const login = await medplum.startLogin({ email, password: PASSWORD })
  t.equal(login.memberships?.length, 2)
  const chosen = await medplum.post('auth/profile', {
    login: login.login,
    profile: second.membership.id,
  })
  const profile = await medplum.processCode(chosen.code)
  t.equal(profile.id, second.profile.id)
})

t.test('the SDK signs a client in', async (t) => {
  const { id, secret } = await botica.createMember()
  const medplum = sdk()
  t.match(await medplum.startClientLogin(id, secret), { resourceType: 'ClientApplication', id })
  const basic = sdk()
  basic.setBasicAuth(id, secret)
  t.equal((await basic.search('Patient')).resourceType, 'Bundle')
  await t.rejects(sdk().startClientLogin(id, 'wrong'), Error)
})

t.test('rejects an assertion that the SDK signs with a shared secret', async (t) => {
  const { id, secret } = await botica.createMember()
  const head = [
    { alg: 'HS256', typ: 'JWT', kid: 'x' },
    { iss: id, sub: id, aud: `${baseUrl}oauth2/token`, exp: Math.floor(Date.now() / 1000) + 60 },
  ]
    .map((part) => Buffer.from(JSON.stringify(part)).toString('base64url'))
    .join('.')
  const jwt = `${head}.${createHmac('sha256', secret).update(head).digest('base64url')}`
  await t.rejects(sdk().startJwtAssertionLogin(jwt), Error)
})

for (const alg of ['RS384', 'ES384']) {
  t.test(`the SDK signs a backend service in by an assertion of ${alg}`, async (t) => {
    const { publicKey, privateKey } = await generateKeyPair(alg)
    const jwks = JSON.stringify({ keys: [{ ...(await exportJWK(publicKey)), kid: 'k1', alg }] })
    const { id } = await botica.createMember()
    const { body } = await botica.admin.get(`ClientApplication/${id}`)
    t.equal((await botica.admin.put(`ClientApplication/${id}`, { ...body, jwks })).status, 200)
    services.principals.forget()
    const assertion = (key: CryptoKey) =>
      new SignJWT()
        .setProtectedHeader({ alg, kid: 'k1', typ: 'JWT' })
        .setIssuer(id)
        .setSubject(id)
        .setAudience(`${baseUrl}oauth2/token`)
        .setJti(randomUUID())
        .setExpirationTime('4m')
        .sign(key)
    const medplum = sdk()
    const profile = await medplum.startJwtAssertionLogin(await assertion(privateKey))
    t.match(profile, { resourceType: 'ClientApplication', id })
    t.equal((await medplum.search('Patient')).resourceType, 'Bundle')
    const stranger = await generateKeyPair(alg)
    await t.rejects(sdk().startJwtAssertionLogin(await assertion(stranger.privateKey)), Error)
  })
}
