import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { basic } from '../../../fixtures/client.ts'
import { FOREIGN_FETCH, openBrowser } from '../../../fixtures/http/browser.ts'
import { aPerson, askToken, codeFlow, PASSWORD } from '../../../fixtures/people.ts'

const publicUrl = 'https://botica.example/'
const botica = await openBotica(t, { publicUrl, env: { CORS_ORIGINS: '*' } })
const { baseUrl, services, project, admin } = botica
const redirectUri = 'https://app.example/callback'
const { asked, authorizePath, redeem } = codeFlow(baseUrl, redirectUri)
const SECRET = 'secret of the app'
const anApp = (fields: object = {}) =>
  admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    redirectUris: [redirectUri],
    ...fields,
  })
const [open, closed] = [await anApp(), await anApp({ secret: SECRET })]
const person = await aPerson(services, project)

const aBrowser = () => openBrowser(baseUrl, publicUrl)
const notFound = { status: 400, body: { issue: [{ details: { text: 'Login not found' } }] } }

const query = (clientId: string, parameters: Record<string, string> = {}) =>
  `/${authorizePath(clientId, parameters)}`

const credentials = (clientId: string, fields: object = {}) => ({
  email: person.email,
  password: PASSWORD,
  clientId,
  redirectUri,
  ...asked,
  ...fields,
})

async function signedIn(clientId: string, form: Record<string, string> = {}, fields: object = {}) {
  const browser = aBrowser()
  const begun = await browser.call('/auth/login', credentials(clientId, fields))
  const tokens = await redeem(begun.body.code, clientId, form)
  if (tokens.status !== 200) throw new Error(begun.text + tokens.text)
  return { browser, tokens: tokens.body }
}

t.test('hides a session cookie from scripts, other sites and neighbouring hosts', async (t) => {
  const { browser } = await signedIn(open.id)
  const names = [...browser.cookies.keys()].map((name) =>
    name.replace(/(?:[\da-f-]{36}|[\da-f]{16})$/, ''),
  )
  t.same(names.sort(), ['__Host-botica-device-', '__Host-botica-login-', '__Host-medplum-'])
  await browser.call('/auth/login', credentials(open.id))
  t.equal(browser.lastCookies.length, 3)
  for (const line of browser.lastCookies) {
    t.match(line, /^__Host-[^;]+; Max-Age=\d+; Path=\/; HttpOnly; Secure; SameSite=Lax$/)
  }
})

t.test('accepts the cookie for navigation and rejects it for script requests', async (t) => {
  const { browser } = await signedIn(open.id)
  const known = await browser.navigate(query(open.id))
  t.match(known.location?.searchParams.get('login'), /^[\w-]{36}$/)
  const cases: [string, Record<string, string>][] = [
    ['a foreign fetch', FOREIGN_FETCH],
    ['a fetch by a neighbouring host', { ...FOREIGN_FETCH, 'Sec-Fetch-Site': 'same-site' }],
    ['a fetch without CORS', { 'Sec-Fetch-Site': 'same-site', 'Sec-Fetch-Mode': 'no-cors' }],
    ['a foreign frame', { 'Sec-Fetch-Dest': 'iframe' }],
    ['an old browser', { 'Sec-Fetch-Site': '', Origin: 'https://evil.example' }],
    ['a null origin', { Origin: 'null' }],
  ]
  for (const [name, headers] of cases) {
    const page = await browser.navigate(query(open.id), headers)
    t.equal(page.location?.pathname, '/oauth', name)
    t.equal(page.location?.searchParams.get('login'), null, name)
    const silent = await browser.navigate(query(open.id, { prompt: 'none' }), headers)
    t.equal(silent.location?.searchParams.get('error'), 'login_required', name)
  }
  const form = { ...FOREIGN_FETCH, 'Content-Type': 'application/x-www-form-urlencoded' }
  const posted = await browser.send('POST', '/oauth2/authorize', form, query(open.id).split('?')[1])
  t.equal(posted.location?.searchParams.get('login'), null)
})

t.test('sends no CORS headers on navigation routes, in any spelling', async (t) => {
  const paths = ['/oauth2/authorize', '/oauth', '/signin', '/resetpassword', '/pages/script.js']
  for (const path of [...paths, '/auth/external', '/setpassword/x/y', '/verifyemail/x/y']) {
    for (const spelling of [path, path.toUpperCase(), `/api${path}/`]) {
      for (const method of ['GET', 'OPTIONS']) {
        const headers = { ...FOREIGN_FETCH, 'Access-Control-Request-Method': 'GET' }
        const answer = await aBrowser().send(method, spelling, headers)
        const cors = Object.keys(answer.headers).filter((name) => name.startsWith('access-control'))
        t.same(cors, [], `${method} ${spelling}`)
      }
    }
  }
  for (const path of ['/auth/login', '/oauth2/token', '/fhir/R4/metadata']) {
    const answer = await aBrowser().send('GET', path, FOREIGN_FETCH)
    t.equal(answer.headers['access-control-allow-origin'], 'https://evil.example', path)
  }
})

t.test('binds an unfinished sign-in to the browser that started it', async (t) => {
  const { browser } = await signedIn(open.id)
  const login = (await browser.navigate(query(open.id))).location?.searchParams.get('login')
  const steps: [string, Record<string, unknown> | undefined][] = [
    [`/auth/login/${login}`, undefined],
    [`/auth/login/${login}/consent`, undefined],
    ['/auth/scope', { login, scope: 'openid' }],
    ['/auth/profile', { login, profile: person.membership.id }],
    ['/auth/mfa/verify', { login, token: '123456' }],
    ['/auth/mfa/login-enroll', { login, token: '123456' }],
    ['/auth/newproject', { login, projectName: 'Taken over' }],
    ['/auth/newpatient', { login, projectId: project.id }],
    ['/auth/deny', { login }],
  ]
  for (const [path, body] of steps) {
    t.match(await aBrowser().call(path, body), notFound, `${path} by another browser`)
    const program = { 'Sec-Fetch-Site': '', Origin: '' }
    t.match(await aBrowser().call(path, body, program), notFound, `${path} by a program`)
    t.match(await browser.call(path, body, FOREIGN_FETCH), notFound, `${path} by a foreign page`)
  }
  const own = await browser.call(`/auth/login/${login}`)
  t.match(own, { status: 200, body: { login, code: String } })

  const second = await browser.call('/auth/login', credentials(open.id))
  t.match(await aBrowser().call(`/auth/login/${second.body.login}`), notFound, 'also by a password')
})

t.test('returns nothing to continue with in a silent response', async (t) => {
  const { browser } = await signedIn(open.id)
  const silent = await browser.navigate(query(open.id, { prompt: 'none' }))
  const code = silent.location?.searchParams.get('code') ?? ''
  const hex = Buffer.from(code, 'base64url').toString('hex').slice(0, 32)
  const id = hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
  t.match(await browser.call(`/auth/login/${id}`), notFound)
  t.equal((await redeem(code, open.id)).status, 200)
})

t.test('rejects sign-in by a foreign page that knows a password', async (t) => {
  const browser = aBrowser()
  const headers = { ...FOREIGN_FETCH, 'Content-Type': 'text/plain' }
  const body = JSON.stringify(credentials(open.id))
  for (const sent of [headers, { ...headers, 'Content-Type': 'application/fhir+json' }]) {
    await browser.send('POST', '/auth/login', sent, body)
    t.same(browser.lastCookies, [])
  }
})

t.test(
  'continues a client library by login id and requires the verifier for its code',
  async (t) => {
    const browser = aBrowser()
    const begun = await browser.call('/auth/login', credentials(open.id), FOREIGN_FETCH)
    const { login } = begun.body
    t.equal(begun.headers['access-control-allow-credentials'], 'true')
    const scope = await browser.call('/auth/scope', { login, scope: 'openid' }, FOREIGN_FETCH)
    t.match(scope, { status: 200, body: { code: String } })
    t.equal((await redeem(scope.body.code, open.id)).status, 200)

    const bare = { codeChallenge: '', codeChallengeMethod: '' }
    const unproven = await browser.call('/auth/login', credentials(open.id, bare), FOREIGN_FETCH)
    t.type(unproven.body.code, 'string')
    const again = await browser.call(`/auth/login/${unproven.body.login}`, undefined, FOREIGN_FETCH)
    t.same(again.body, { login: unproven.body.login }, 'gives no code to an id without a challenge')
  },
)

t.test('requires the client’s secret to redeem a code of the cookie alone', async (t) => {
  const proof = { client_secret: SECRET }
  const { browser } = await signedIn(closed.id, proof)
  const silent = async (scope = 'openid') => {
    const answer = await browser.navigate(query(closed.id, { prompt: 'none', scope }))
    return answer.location?.searchParams.get('code')
  }
  const stolen = await redeem(await silent(), closed.id)
  t.match(stolen, { status: 400, body: { error_description: 'Missing client_secret' } })
  const wrong = await redeem(await silent(), closed.id, { client_secret: 'guessed' })
  t.match(wrong, { status: 401, body: { error: 'invalid_client' } })
  t.equal((await redeem(await silent(), closed.id, proof)).status, 200)

  const login = (await browser.navigate(query(closed.id))).location?.searchParams.get('login')
  const consented = await browser.call('/auth/scope', { login, scope: 'openid' })
  t.equal((await redeem(consented.body.code, closed.id)).status, 400, 'consent is not proof')
  t.equal((await redeem(consented.body.code, closed.id, proof)).status, 200)
})

t.test('requires the secret for each refresh of such a session', async (t) => {
  const scope = 'openid offline_access'
  const proof = { client_secret: SECRET }
  const { browser } = await signedIn(closed.id, proof, { scope })
  const answer = await browser.navigate(query(closed.id, { prompt: 'none', scope }))
  const code = answer.location?.searchParams.get('code')
  const { refresh_token } = (await redeem(code, closed.id, proof)).body
  const refresh = { grant_type: 'refresh_token', refresh_token, client_id: closed.id }
  t.equal((await askToken(baseUrl, refresh)).status, 400)
  t.equal((await askToken(baseUrl, { ...refresh, ...proof })).status, 200)
})

t.test(
  'signs a browser app in by PKCE alone, each time again, if its client has a secret',
  async (t) => {
    const { browser } = await signedIn(closed.id)
    const page = await browser.navigate(query(closed.id))
    t.equal(page.location?.searchParams.get('login'), null, 'cannot redeem a code of the session')
    const declared = await anApp({ secret: SECRET, tokenEndpointAuthMethod: 'none' })
    const { browser: other } = await signedIn(declared.id)
    const silent = await other.navigate(query(declared.id, { prompt: 'none' }))
    t.equal((await redeem(silent.location?.searchParams.get('code'), declared.id)).status, 200)
  },
)

t.test('requires client authentication if the client declares a method', async (t) => {
  const bySecret = await anApp({ secret: SECRET, tokenEndpointAuthMethod: 'client_secret_basic' })
  const byKey = await anApp({ secret: SECRET, tokenEndpointAuthMethod: 'private_key_jwt' })
  const codeFor = async (id: string) => {
    const headers = { 'Sec-Fetch-Site': '', Origin: '' }
    return (await aBrowser().call('/auth/login', credentials(id), headers)).body.code
  }
  const code = await codeFor(bySecret.id)
  t.equal((await redeem(code, bySecret.id)).status, 400)
  t.equal((await redeem(code, bySecret.id, { client_secret: SECRET })).status, 200)
  const keyed = await redeem(await codeFor(byKey.id), byKey.id, { client_secret: SECRET })
  t.match(
    keyed,
    { status: 401, body: { error: 'invalid_client' } },
    'rejects a secret when a key is configured',
  )
  const exchange = { externalAccessToken: 'x', clientId: bySecret.id }
  t.match(await aBrowser().call('/auth/exchange', exchange), {
    status: 400,
    text: /must authenticate/,
  })
  const odd = await admin.put(`ClientApplication/${open.id}`, {
    ...open,
    tokenEndpointAuthMethod: 'password',
  })
  t.match(odd, {
    status: 400,
    body: { issue: [{ expression: ['ClientApplication.tokenEndpointAuthMethod'] }] },
  })
})

t.test('accepts no secret of a client with key authentication on any route', async (t) => {
  const { id, secret } = await botica.createMember()
  const read = () => botica.anonymous.get('Patient', basic(id, secret))
  t.equal((await read()).status, 200)
  const byKey = [{ op: 'add', path: '/tokenEndpointAuthMethod', value: 'private_key_jwt' }]
  t.equal((await admin.patch(`ClientApplication/${id}`, byKey)).status, 200)
  services.principals.forget()
  t.equal((await read()).status, 401)
})

t.test('requires PKCE of a client without credentials', async (t) => {
  const bare = { codeChallenge: '', codeChallengeMethod: '' }
  const redeemed = async (fields: object, proof: Record<string, string>) => {
    const { id } = await anApp({ pkceOptional: true, ...fields })
    const headers = { 'Sec-Fetch-Site': '', Origin: '' }
    const { code } = (await aBrowser().call('/auth/login', credentials(id, bare), headers)).body
    const form = { grant_type: 'authorization_code', client_id: id, redirect_uri: redirectUri }
    return await askToken(baseUrl, { ...form, code: String(code), ...proof })
  }
  t.match(await redeemed({}, {}), {
    status: 400,
    body: { error_description: 'Missing verification context' },
  })
  t.equal((await redeemed({ secret: SECRET }, { client_secret: SECRET })).status, 200)
})
