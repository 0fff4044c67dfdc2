import { hash } from 'node:crypto'
import { createServer } from 'node:http'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { FOREIGN_FETCH, openBrowser } from '../../../fixtures/http/browser.ts'
import { listen } from '../../../fixtures/http/listening.ts'
import { aPerson, askToken, pkce, redeemCode } from '../../../fixtures/people.ts'

const publicUrl = 'https://botica.example/'
const env = { HOOK_TARGETS: 'all', CORS_ORIGINS: '*' }
const botica = await openBotica(t, { publicUrl, env })
const { baseUrl, services, project, admin, superAdmin } = botica
const redirectUri = 'https://app.example/callback'

const seen: string[] = []
/** A provider whose codes are also its tokens: the address of their owner. */
const provider = createServer((req, res) => {
  seen.push(req.url ?? '')
  let body = ''
  req.on('data', (data) => {
    body += data
  })
  req.on('end', () => {
    const token = (req.headers.authorization ?? '').replace('Bearer ', '')
    const answer =
      req.url === '/token'
        ? { access_token: new URLSearchParams(body).get('code') }
        : { email: token, sub: token }
    res.end(JSON.stringify(answer))
  })
})
const origin = `http://127.0.0.1:${await listen(t, provider)}`
const domain = `p${Date.now()}.example`
await superAdmin.create({
  resourceType: 'DomainConfiguration',
  domain,
  identityProvider: {
    authorizeUrl: `${origin}/authorize`,
    tokenUrl: `${origin}/token`,
    userInfoUrl: `${origin}/userinfo`,
    clientId: 'at the provider',
    clientSecret: 'planted provider secret',
  },
})
const client = await admin.create({
  resourceType: 'ClientApplication',
  name: 'App',
  redirectUris: [redirectUri],
})
const [ada, eve] = [
  await aPerson(services, project, { email: `ada@${domain}` }),
  await aPerson(services, project, { email: `eve@${domain}` }),
]
const { verifier, asked } = pkce()
const request = { clientId: client.id, redirectUri, scope: 'openid', ...asked }
const aBrowser = () => openBrowser(baseUrl, publicUrl)

async function begun(browser: ReturnType<typeof aBrowser>, headers?: Record<string, string>) {
  const { body } = await browser.call('/auth/method', { email: ada.email, ...request }, headers)
  return new URL(String(body.authorizeUrl)).searchParams.get('state') ?? ''
}
const back = (browser: ReturnType<typeof aBrowser>, state: string, code: string) =>
  browser.navigate(`/auth/external?${new URLSearchParams({ code, state })}`)
const invalid = { status: 400, body: { issue: [{ details: { text: 'Invalid state' } }] } }

t.test('completes a provider sign-in in the browser that started it, by consent', async (t) => {
  const browser = aBrowser()
  const state = await begun(browser)
  t.match(browser.lastCookies, [/^__Host-botica-provider=[^;]+; .*HttpOnly; Secure; SameSite=Lax$/])
  const { location } = await back(browser, state, ada.email)
  t.equal(location?.pathname, '/signin')
  t.equal(location?.searchParams.get('code'), null, 'puts no code into a URL before consent')
  const login = location?.searchParams.get('login')
  t.equal((await aBrowser().call(`/auth/login/${login}`)).status, 400)
  t.match((await browser.call(`/auth/login/${login}`)).body, { login, code: String })
  const { body } = await browser.call('/auth/scope', { login, scope: 'openid' })
  const tokens = await redeemCode(baseUrl, body.code, verifier, { redirect_uri: redirectUri })
  t.equal(tokens.status, 200, tokens.text)
  t.match(await back(browser, state, ada.email), invalid, 'once')
})

t.test('does not send the code of a domain’s provider to the provider of the client', async (t) => {
  const hostile = await admin.create({
    resourceType: 'ClientApplication',
    name: 'Hostile',
    redirectUris: [redirectUri],
    identityProvider: {
      authorizeUrl: `${origin}/hostile`,
      tokenUrl: `${origin}/hostile`,
      userInfoUrl: `${origin}/hostile`,
      clientId: 'x',
      clientSecret: 'y',
    },
  })
  const browser = aBrowser()
  const { body } = await browser.call('/auth/method', {
    ...request,
    email: ada.email,
    clientId: hostile.id,
  })
  const state = new URL(String(body.authorizeUrl)).searchParams.get('state') ?? ''
  const { location } = await back(browser, state, ada.email)
  t.ok(location?.searchParams.get('login'))
  t.notOk(seen.includes('/hostile'))
})

t.test('does not sign a person in as the sender of a link', async (t) => {
  const attacker = aBrowser()
  const state = await begun(attacker)
  const victim = aBrowser()
  t.match(await back(victim, state, eve.email), invalid)
  const { browser: _, ...rest } = JSON.parse(state)
  const bare = JSON.stringify({ ...rest, browser: hash('sha256', JSON.stringify(rest)) })
  t.match(await back(victim, bare, eve.email), invalid, 'a missing cookie matches no digest')
  await begun(victim)
  t.match(await back(victim, state, eve.email), invalid, 'rejects the cookie of another sign-in')
  const changed = JSON.stringify({ ...JSON.parse(await begun(victim)), scope: 'openid email' })
  t.match(await back(victim, changed, ada.email), invalid, 'the state is unchanged')
})

t.test('gives a client library a code for its verifier and no session', async (t) => {
  const browser = aBrowser()
  const made = JSON.parse(await begun(browser, FOREIGN_FETCH))
  t.same(browser.lastCookies, [], 'gives a foreign page no cookie')
  const state = JSON.stringify({ ...made, ...request })
  const { location } = await back(browser, state, ada.email)
  t.same(browser.lastCookies, [])
  t.equal(`${location?.origin}${location?.pathname}`, redirectUri)
  const form = { grant_type: 'authorization_code', redirect_uri: redirectUri }
  const code = location?.searchParams.get('code') ?? ''
  t.equal((await askToken(baseUrl, { ...form, code })).status, 400)
  t.equal((await askToken(baseUrl, { ...form, code, code_verifier: verifier })).status, 200)
})
