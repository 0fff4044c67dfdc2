import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { openBrowser } from '../../fixtures/http/browser.ts'
import { aPerson, askToken, PASSWORD, pkce } from '../../fixtures/people.ts'

const publicUrl = 'https://api.botica.example/service/'
const appUrl = 'https://app.botica.example/'
const botica = await openBotica(t, { publicUrl, env: { APP_URL: appUrl } })
const { baseUrl, services, project, admin } = botica
const redirectUri = 'https://client.example/callback'
const client = await admin.create({
  resourceType: 'ClientApplication',
  name: 'App',
  redirectUris: [redirectUri],
})
const person = await aPerson(services, project)
const { verifier, asked } = pkce()
const credentials = {
  email: person.email,
  password: PASSWORD,
  clientId: client.id,
  redirectUri,
  ...asked,
}
const aBrowser = () => openBrowser(baseUrl, publicUrl)
/** Headers of a script of the app at APP_URL on the same site, and of a neighbouring app. */
const near = { Origin: new URL(appUrl).origin, 'Sec-Fetch-Site': 'same-site' }
const neighbour = { ...near, Origin: 'https://blog.botica.example' }

t.test('sets secure cookies scoped to the base path', async (t) => {
  const browser = aBrowser()
  await browser.call('/auth/login', credentials, near)
  t.equal(browser.lastCookies.length, 3)
  for (const line of browser.lastCookies) {
    t.match(
      line,
      /^__Secure-(?:medplum|botica-login|botica-device)-.*; Path=\/service\/; HttpOnly; Secure; SameSite=Lax$/,
    )
  }
})

t.test('serves the app at APP_URL but no neighbouring app', async (t) => {
  const browser = aBrowser()
  const { body } = await browser.call('/auth/login', credentials, near)
  const form = { grant_type: 'authorization_code', redirect_uri: redirectUri }
  const tokens = await askToken(baseUrl, {
    ...form,
    code: String(body.code),
    code_verifier: verifier,
  })
  t.equal(tokens.status, 200, tokens.text)
  const query = new URLSearchParams({
    client_id: client.id,
    redirect_uri: redirectUri,
    response_type: 'code',
    scope: 'openid',
    code_challenge: asked.codeChallenge,
    code_challenge_method: 'S256',
  })
  const { location } = await browser.navigate(`/oauth2/authorize?${query}`)
  t.equal(`${location?.origin}${location?.pathname}`, `${appUrl}oauth`)
  const path = `/auth/login/${location?.searchParams.get('login')}`
  t.match(await browser.call(path, undefined, near), { status: 200, body: { code: String } })
  t.equal((await browser.call(path, undefined, neighbour)).status, 400)
  t.equal((await aBrowser().call(path, undefined, near)).status, 400)
})

t.test('serves an app on another site without cookies', async (t) => {
  const browser = aBrowser()
  const far = { ...near, 'Sec-Fetch-Site': 'cross-site' }
  const { body } = await browser.call('/auth/login', credentials, far)
  t.same(browser.lastCookies, [])
  const next = await browser.call('/auth/scope', { login: body.login, scope: 'openid' }, far)
  t.match(next, { status: 200, body: { code: String } })
})
