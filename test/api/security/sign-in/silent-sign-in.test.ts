import { SignJWT } from 'jose'
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { createClient } from '../../../fixtures/client.ts'
import { openBrowser } from '../../../fixtures/http/browser.ts'
import { aPerson, decodeJwtClaims, PASSWORD, pkce, redeemCode } from '../../../fixtures/people.ts'

const publicUrl = 'https://botica.example/'
const botica = await openBotica(t, { publicUrl })
const { baseUrl, services, project, admin } = botica
const redirectUri = 'https://app.example/callback'
const { verifier, asked } = pkce()
const anApp = (name: string) =>
  admin.create({ resourceType: 'ClientApplication', name, redirectUris: [redirectUri] })
const [app, other] = [await anApp('App'), await anApp('Other')]
const [person, stranger] = [await aPerson(services, project), await aPerson(services, project)]

function query(parameters: Record<string, string> = {}): string {
  return `/oauth2/authorize?${new URLSearchParams({
    client_id: app.id,
    redirect_uri: redirectUri,
    response_type: 'code',
    scope: 'openid',
    state: 's',
    code_challenge: asked.codeChallenge,
    code_challenge_method: 'S256',
    prompt: 'none',
    ...parameters,
  })}`
}

const redeem = (code: unknown) => redeemCode(baseUrl, code, verifier, { redirect_uri: redirectUri })

async function signedIn(
  fields: { email?: string; clientId?: string; scope?: string; allowed?: string } = {},
) {
  const browser = openBrowser(baseUrl, publicUrl)
  const { email = person.email, clientId = app.id, scope = 'openid', allowed = scope } = fields
  const credentials = { email, password: PASSWORD, clientId, redirectUri, scope, ...asked }
  const { login } = (await browser.call('/auth/login', credentials)).body
  const { body } = await browser.call('/auth/scope', { login, scope: allowed })
  const tokens = await redeem(body.code)
  if (tokens.status !== 200) throw new Error(tokens.text)
  return { browser, tokens: tokens.body }
}

const parseParameters = (location: URL | undefined) =>
  Object.fromEntries(location?.searchParams ?? [])

async function forged(token: string, changes: Record<string, unknown>, key?: Uint8Array) {
  const [signing] = services.tokens.keys.keys
  if (signing === undefined) throw new Error('There is no key')
  const alg = key === undefined ? signing.alg : 'HS256'
  return await new SignJWT({ ...decodeJwtClaims(token), ...changes })
    .setProtectedHeader({ alg, kid: signing.kid, typ: 'JWT' })
    .sign(key ?? signing.privateKey)
}

t.test('does not accept an ID token as a session', async (t) => {
  const { tokens } = await signedIn()
  const elsewhere = openBrowser(baseUrl, publicUrl)
  const silent = await elsewhere.navigate(query({ id_token_hint: tokens.id_token }))
  t.match(parseParameters(silent.location), {
    error: 'login_required',
    code: undefined,
    state: 's',
  })
  const page = await elsewhere.navigate(query({ id_token_hint: tokens.id_token, prompt: '' }))
  t.equal(page.location?.pathname, '/oauth')
  t.equal(page.location?.searchParams.get('login'), null)
})

t.test('shows the sign-in page for an invalid hint', async (t) => {
  const { browser, tokens } = await signedIn()
  const { id_token } = tokens
  const own = await browser.navigate(query({ id_token_hint: id_token }))
  t.match(
    parseParameters(own.location),
    { code: String, state: 's' },
    'a hint of the same person is accepted',
  )

  const now = Math.floor(Date.now() / 1000)
  const { tokens: theirs } = await signedIn({ email: stranger.email })
  const { tokens: elsewhere } = await signedIn({ clientId: other.id })
  const hints = {
    'an expired one': await forged(id_token, { exp: now - 60 }),
    'one of another person': theirs.id_token,
    'one for another client': elsewhere.id_token,
    'one of another issuer': await forged(id_token, { iss: 'https://evil.example/' }),
    'one signed by a stranger': await forged(id_token, {}, new Uint8Array(32)),
    'one with another signature': `${id_token.slice(0, -8)}AAAAAAAA`,
    'an access token': tokens.access_token,
    'no token at all': 'x',
  }
  for (const [name, id_token_hint] of Object.entries(hints)) {
    const silent = await browser.navigate(query({ id_token_hint }))
    t.match(parseParameters(silent.location), { error: 'login_required', code: undefined }, name)
    const page = await browser.navigate(query({ id_token_hint, prompt: '' }))
    t.equal(page.location?.searchParams.get('login'), null, name)
  }
})

t.test('limits silent responses to the consent of the person', async (t) => {
  const scope = 'openid profile user/Patient.rs user/Observation.rs'
  const { browser, tokens } = await signedIn({ scope, allowed: 'openid user/Patient.rs' })
  t.equal(tokens.scope, 'openid user/Patient.rs')
  const wider = [
    scope,
    'openid user/Observation.rs user/Patient.rs',
    'openid user/Patient.cruds',
    'openid user/*.rs',
    'openid user/Patient.rs offline_access',
    // A scope without SMART words allows everything that the person may do.
    'openid',
    'openid unknown',
  ]
  for (const words of wider) {
    const silent = await browser.navigate(query({ scope: words }))
    t.match(parseParameters(silent.location), { error: 'consent_required', code: undefined }, words)
  }
  const same = await browser.navigate(query({ scope: 'openid user/Patient.rs' }))
  const answer = await redeem(same.location?.searchParams.get('code'))
  t.equal(answer.body.scope, 'openid user/Patient.rs')
  const client = createClient(baseUrl, answer.body.access_token)
  t.same(
    [(await client.get('Patient')).status, (await client.get('Observation')).status],
    [200, 403],
  )
})

t.test('uses consent given in the session for later silent responses', async (t) => {
  const { browser } = await signedIn({ scope: 'openid user/Patient.rs' })
  const scope = 'openid user/Patient.rs user/Observation.rs'
  const page = await browser.navigate(query({ scope, prompt: '' }))
  const login = page.location?.searchParams.get('login')
  const consent = await browser.call(`/auth/login/${login}`)
  t.equal(consent.status, 200)
  const before = await browser.navigate(query({ scope }))
  t.match(
    parseParameters(before.location),
    { error: 'consent_required' },
    'a page left open allows nothing',
  )
  const { body } = await browser.call('/auth/scope', { login, scope })
  t.equal((await redeem(body.code)).status, 200)
  const after = await browser.navigate(query({ scope }))
  t.match(parseParameters(after.location), { code: String })
})

t.test('shows client, person and scope on the consent page', async (t) => {
  const browser = openBrowser(baseUrl, publicUrl)
  const scope = 'openid offline_access patient/*.rs user/MedicationRequest.cud'
  const credentials = { email: person.email, password: PASSWORD, clientId: app.id, redirectUri }
  const { login } = (await browser.call('/auth/login', { ...credentials, ...asked, scope })).body
  t.match((await browser.call(`/auth/login/${login}/consent`)).body, {
    application: 'App',
    owner: project.name,
    person: 'Ada Lovelace',
    email: person.email,
    project: project.name,
    redirectUri,
    scopes: [
      { text: 'Know who you are', isChoice: false },
      { text: 'Keep access when you are not using it', isChoice: false },
      { text: 'Read and search all kinds of records of one patient', isChoice: true },
      {
        text: 'Create, change and delete records of type Medication Request that you have access to',
        isChoice: true,
      },
    ],
  })
  t.match(await browser.call('/auth/deny', { login }), { status: 200 })
  t.equal((await browser.call(`/auth/login/${login}`)).status, 400)
  t.equal((await browser.call('/auth/scope', { login, scope })).status, 400)
})
