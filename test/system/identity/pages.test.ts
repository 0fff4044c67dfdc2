/** Imports one-time codes of second factors, which an app would compute. */
import { createServer } from 'node:http'
import t from 'tap'
import { readUser } from '../../../shared/projects/users.ts'
import { oneTimeCode } from '../../fixtures/accounts.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { exitWithoutChromium, openPage } from '../../fixtures/http/chromium.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { mailsTo } from '../../fixtures/invites.ts'
import { aPerson, askToken, PASSWORD, pkce, redeemCode } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const page = await openPage(t)

/** The redirect URL of the app. */
const app = createServer((_req, res) => res.end('<title>app</title>'))
const redirectUri = `http://127.0.0.1:${await listen(t, app)}/callback`
const client = await admin.create({
  resourceType: 'ClientApplication',
  name: 'App',
  redirectUris: ['http://127.0.0.1/callback'],
  signInForm: { welcomeString: 'Welcome <b>to</b> the ward' },
})

function authorizeUrl(parameters: Record<string, string>): string {
  const query = new URLSearchParams({
    client_id: client.id,
    redirect_uri: redirectUri,
    response_type: 'code',
    ...parameters,
  })
  return `${baseUrl}oauth2/authorize?${query}`
}

const heading = () => page.value<string>(`document.querySelector('h1').textContent`)

async function allow(): Promise<void> {
  await page.shows(`document.querySelector('h1').textContent === 'Allow access'`)
  await page.press('button')
}

async function arrived(): Promise<URLSearchParams> {
  await page.shows(`location.href.startsWith('${redirectUri}')`)
  return new URL(await page.value<string>('location.href')).searchParams
}

t.test('a person signs in on the page and the app gets its tokens', async (t) => {
  const { email } = await aPerson(services, project)
  const { verifier, asked } = pkce()
  await page.goto(
    authorizeUrl({
      scope: 'openid user/Patient.rs user/Observation.rs',
      state: 'a&b',
      code_challenge: asked.codeChallenge,
      code_challenge_method: 'S256',
    }),
  )
  await page.shows(`document.getElementById('email')`)
  t.equal(await heading(), 'Sign in')
  t.match(await page.value('document.body.innerText'), /Welcome <b>to<\/b> the ward/)
  t.equal(await page.value('document.activeElement.id'), 'email', 'the first field has the focus')
  const unlabelled = `[...document.querySelectorAll('input')].filter((i) => i.labels.length === 0).length`
  t.equal(await page.value(unlabelled), 0, 'every field has a label')
  t.equal(await page.value('document.documentElement.lang'), 'en')
  t.equal(await page.value('document.title'), 'Sign in – Botica')
  t.equal(await page.value(`document.querySelectorAll('main h1').length`), 1)
  t.equal(await page.value(`document.getElementById('problem').getAttribute('role')`), 'alert')

  await page.type('email', email)
  await page.type('password', 'a wrong one')
  await page.press('button')
  await page.shows(`document.getElementById('problem').textContent.includes('invalid')`)
  t.equal(await page.value('document.activeElement.id'), 'password', 'it is to be typed again')
  const described = `document.activeElement.getAttribute('aria-describedby')`
  t.equal(await page.value(described), 'problem')
  await page.type('password', PASSWORD)
  await page.press('button')
  await page.shows(`document.querySelector('input[type=checkbox]')`)
  t.equal(await heading(), 'Allow access')
  const said = await page.value<string>('document.body.innerText')
  for (const text of ['App by', project.name, 'Ada Lovelace', email, new URL(redirectUri).host]) {
    t.match(said, String(text), 'the page says who asks, for whom and where it leads')
  }
  t.match(said, 'Know who you are')
  t.match(said, 'Read and search records of type Patient that you have access to')
  t.equal(await page.value('document.title'), 'Allow access – Botica')
  await page.press('input[value="user/Observation.rs"]')
  await page.press('button')

  const parameters = await arrived()
  t.equal(parameters.get('state'), 'a&b')
  t.equal(parameters.get('iss'), baseUrl)
  const answer = await redeemCode(baseUrl, parameters.get('code'), verifier, {
    client_id: client.id,
    redirect_uri: redirectUri,
  })
  t.equal(answer.status, 200, answer.text)
  t.equal(answer.body.scope, 'openid user/Patient.rs')
  t.same(
    page.complaints.filter((text) => /Content Security Policy/.test(text)),
    [],
  )
})

t.test('a session needs no password unless the app requires it', async (t) => {
  const { verifier, asked } = pkce()
  const parameters = {
    scope: 'openid',
    code_challenge: asked.codeChallenge,
    code_challenge_method: 'S256',
  }
  await page.goto(authorizeUrl(parameters))
  await page.shows(`document.querySelector('h1').textContent === 'Allow access'`)
  t.match(await page.value('document.body.innerText'), 'Do everything that you may do in')
  await allow()
  const code = (await arrived()).get('code') ?? ''
  const form = {
    grant_type: 'authorization_code',
    code,
    client_id: client.id,
    redirect_uri: redirectUri,
    code_verifier: verifier,
  }
  t.equal((await askToken(baseUrl, form)).status, 200)
  await page.goto(authorizeUrl({ ...parameters, prompt: 'none' }))
  t.ok((await arrived()).get('code'))
  await page.goto(authorizeUrl({ ...parameters, prompt: 'login' }))
  await page.shows(`document.getElementById('email')`)
})

t.test('returns an error to the app when a person denies access', async (t) => {
  const { asked } = pkce()
  const parameters = {
    scope: 'openid user/Patient.rs',
    state: 'kept',
    code_challenge: asked.codeChallenge,
    code_challenge_method: 'S256',
  }
  await page.goto(authorizeUrl(parameters))
  await page.press('button.no')
  t.match(Object.fromEntries(await arrived()), {
    error: 'access_denied',
    error_description: String,
    state: 'kept',
    iss: baseUrl,
    code: undefined,
  })
  await page.goto(authorizeUrl({ ...parameters, scope: 'openid', prompt: 'none' }))
  t.ok((await arrived()).get('code'), 'the session itself goes on')
})

t.test('the second factor is enrolled on the page, then asked for', async (t) => {
  const { email, user } = await aPerson(services, project, { mfaRequired: true })
  const { asked } = pkce()
  const url = authorizeUrl({
    scope: 'openid',
    prompt: 'login',
    code_challenge: asked.codeChallenge,
    code_challenge_method: 'S256',
  })
  const signIn = async () => {
    await page.goto(url)
    await page.type('email', email)
    await page.type('password', PASSWORD)
    await page.press('button')
    await page.shows(`document.getElementById('token')`)
  }
  const token = async (shift: number) => {
    const stored = await readUser(services.repository, user.id)
    return oneTimeCode(String(stored?.mfaSecret), Math.floor(Date.now() / 30_000) + shift)
  }
  await signIn()
  await page.shows(`document.querySelector('img').naturalWidth > 0`)
  await page.type('token', await token(0))
  await page.press('button')
  await allow()
  t.ok((await arrived()).get('code'))
  await signIn()
  t.equal(await page.value(`document.querySelector('img')`), null)
  await page.type('token', await token(1))
  await page.press('button')
  await allow()
  t.ok((await arrived()).get('code'))
})

t.test('a code by mail is the second step where the project permits it', async (t) => {
  const strict = await botica.createTenant()
  const settings = ['mfaRequired', 'mfaMailCodes'].map((name) => ({ name, valueBoolean: true }))
  await strict.admin.post(`/admin/projects/${strict.project.id}/settings`, settings, {
    'Content-Type': 'application/json',
  })
  const itsApp = await strict.admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    redirectUris: ['http://127.0.0.1/callback'],
  })
  const { email } = await aPerson(services, strict.project, { isProjectScoped: true })
  const codes = async () => {
    const mails = await mailsTo(services, email)
    return mails.map(({ text = '' }) => /^\d{6}$/m.exec(text)?.[0] ?? '')
  }
  const { asked } = pkce()
  await page.goto(
    authorizeUrl({
      client_id: itsApp.id,
      scope: 'openid',
      prompt: 'login',
      project_id: strict.project.id,
      code_challenge: asked.codeChallenge,
      code_challenge_method: 'S256',
    }),
  )
  await page.type('email', email)
  await page.type('password', PASSWORD)
  await page.press('button')
  await page.shows(`document.getElementById('token')`)
  t.equal(await heading(), 'Second step')
  t.match(await page.value('document.body.innerText'), `A code is on its way to ${email}`)
  t.equal(await page.value(`document.querySelector('img')`), null)
  t.equal((await codes()).length, 1)

  await page.press('button.no')
  await until(async () => (await codes()).length === 2, 60_000)
  const [, code = ''] = await codes()
  await page.shows(`document.querySelector('button[type=submit]:not([disabled])')`)
  await page.type('token', code === '000000' ? '000001' : '000000')
  await page.press('button[type=submit]')
  await page.shows(`document.getElementById('problem').textContent.includes('Invalid MFA token')`)
  await page.type('token', code)
  await page.press('button[type=submit]')
  await allow()
  t.ok((await arrived()).get('code'))
})

t.test(
  'signs a person in at the provider of the address, with the consent in this service',
  async (t) => {
    const provider = createServer((req, res) => {
      const url = new URL(req.url ?? '/', 'http://127.0.0.1')
      if (url.pathname === '/authorize') {
        const back = new URL(url.searchParams.get('redirect_uri') ?? '')
        back.searchParams.set('code', 'x')
        back.searchParams.set('state', url.searchParams.get('state') ?? '')
        res.writeHead(302, { Location: back.href }).end()
      } else res.end(JSON.stringify({ access_token: 'x', email }))
    })
    const origin = `http://127.0.0.1:${await listen(t, provider)}`
    const domain = `d${Date.now()}.example`
    const { email } = await aPerson(services, project, { email: `ada@${domain}` })
    await botica.superAdmin.create({
      resourceType: 'DomainConfiguration',
      domain,
      identityProvider: {
        authorizeUrl: `${origin}/authorize`,
        tokenUrl: `${origin}/token`,
        userInfoUrl: `${origin}/userinfo`,
        clientId: 'x',
        clientSecret: 'y',
      },
    })
    const { verifier, asked } = pkce()
    await page.goto(
      authorizeUrl({
        scope: 'openid',
        state: 'of the app',
        prompt: 'login',
        code_challenge: asked.codeChallenge,
        code_challenge_method: 'S256',
      }),
    )
    await page.type('email', email)
    await page.type('password', 'not asked for')
    await page.press('button')
    await allow()
    const parameters = await arrived()
    t.equal(parameters.get('state'), 'of the app')
    const form = {
      grant_type: 'authorization_code',
      code: parameters.get('code') ?? '',
      client_id: client.id,
      redirect_uri: redirectUri,
      code_verifier: verifier,
    }
    t.equal((await askToken(baseUrl, form)).status, 200)
  },
)

t.test('shows no page for an unregistered redirect URL', async (t) => {
  for (const path of ['oauth', 'oauth2/authorize']) {
    const query = new URLSearchParams({
      client_id: client.id,
      redirect_uri: 'https://evil.example/callback',
      response_type: 'code',
      scope: 'openid',
    })
    const answer = await fetch(`${baseUrl}${path}?${query}`, { redirect: 'manual' })
    t.equal(answer.status, 400)
    t.equal(await answer.text(), 'Invalid redirect URI')
  }
})

t.test('a forgotten password is reset for an account of one project or of several', async (t) => {
  const people = [
    await aPerson(services, project, { isProjectScoped: true }),
    await aPerson(services, project),
  ]
  for (const { email } of people) {
    const challenge = { code_challenge: pkce().asked.codeChallenge, code_challenge_method: 'S256' }
    await page.goto(authorizeUrl({ scope: 'openid', prompt: 'login', ...challenge }))
    await page.act(
      `[...document.querySelectorAll('a')].find(({ innerText }) => innerText.startsWith('Forgot'))`,
      'found.click()',
    )
    await page.shows(`location.pathname === '/resetpassword'`)
    t.equal(await page.value('location.search'), `?project_id=${project.id}`)
    await page.type('email', email)
    await page.press('button')
    await page.shows(`document.body.innerText.includes('Look into your mail')`)
    await until(async () => (await mailsTo(services, email)).length > 0, 60_000)
    const mails = await mailsTo(services, email)
    t.same(
      mails.map(({ kind }) => kind),
      ['reset'],
    )
  }
})

t.test('describes the action on the pages of mailed links', async (t) => {
  await page.goto(`${baseUrl}resetpassword`)
  await page.type('email', 'nobody@example.org')
  await page.press('button')
  await page.shows(`document.body.innerText.includes('Look into your mail')`)
  await page.goto(`${baseUrl}setpassword/00000000-0000-4000-8000-000000000000/${'a'.repeat(32)}`)
  await page.type('password', 'a long new password')
  await page.type('again', 'another new password')
  await page.press('button')
  await page.shows(`document.getElementById('problem').textContent.includes('differ')`)
  await page.goto(`${baseUrl}verifyemail/00000000-0000-4000-8000-000000000000/${'a'.repeat(32)}`)
  await page.press('button')
  await page.shows(`document.getElementById('problem').textContent !== ''`)
  t.match(await page.value(`document.getElementById('problem').textContent`), /Not found/)
})

t.test('a person chooses a patient for an app that asks for one', async (t) => {
  const { email } = await aPerson(services, project)
  const { verifier, asked } = pkce()
  for (const family of ['Quill', 'Rook']) {
    await admin.create({ resourceType: 'Patient', name: [{ family }] })
  }
  const scope = 'openid launch/patient patient/Observation.rs'
  const challenge = { code_challenge: asked.codeChallenge, code_challenge_method: 'S256' }
  await page.goto(authorizeUrl({ scope, prompt: 'login', ...challenge }))
  await page.shows(`document.getElementById('email')`)
  await page.type('email', email)
  await page.type('password', PASSWORD)
  await page.press('button')
  await page.shows(`document.querySelector('h1').textContent === 'Choose a patient'`)
  await page.type('name', 'rook')
  // Enter searches; it does not choose the first patient.
  await page.value(`document.getElementById('name').dispatchEvent(
    new KeyboardEvent('keydown', { key: 'Enter', cancelable: true }))`)
  await page.shows(`document.querySelectorAll('input[type=radio]').length === 1`)
  t.match(await page.value('document.body.innerText'), 'Rook')
  await page.press('button[type=submit]')
  await allow()
  const parameters = await arrived()
  const answer = await redeemCode(baseUrl, parameters.get('code'), verifier, {
    client_id: client.id,
    redirect_uri: redirectUri,
  })
  t.match(answer, { status: 200, body: { patient: String, scope } }, answer.text)
})
