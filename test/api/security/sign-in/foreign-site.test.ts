/** Attacks from another site in Chromium, while a person is signed in to a confidential client. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { exitWithoutChromium, openPage } from '../../../fixtures/http/chromium.ts'
import { aPerson, codeFlow, PASSWORD } from '../../../fixtures/people.ts'
import { EXAMPLE_HOSTS, openTls, proxyTo } from './tls-front.ts'

exitWithoutChromium(t)
let target = ''
const publicUrl = `https://botica.example:${await openTls(
  t,
  proxyTo(() => target),
)}/`
const others = await openTls(t, (_req, res) => res.end('<!doctype html><title>a site</title>'))
const redirectUri = `https://app.example:${others}/callback`
const botica = await openBotica(t, { publicUrl, env: { CORS_ORIGINS: '*' } })
target = botica.baseUrl
const { services, project, admin } = botica
const SECRET = 'secret of the app'
const anApp = (fields: object = {}) =>
  admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    redirectUris: [redirectUri],
    ...fields,
  })
const [app, spa] = [await anApp({ secret: SECRET }), await anApp()]
const person = await aPerson(services, project)
const page = await openPage(t, EXAMPLE_HOSTS)
/** The attacker knows the challenge and its verifier. */
const { asked, authorizePath, redeem } = codeFlow(botica.baseUrl, redirectUri)

const authorizeUrl = (clientId: string, parameters: Record<string, string> = {}) =>
  publicUrl + authorizePath(clientId, parameters)

async function arrivedCode(): Promise<string> {
  await page.shows(`location.href.startsWith('${redirectUri}')`)
  return new URL(await page.value<string>('location.href')).searchParams.get('code') ?? ''
}

/** Returns the response that a script of the page can read, with the browser's cookies. */
function learnt(path: string, init: object = {}): Promise<string> {
  const url = JSON.stringify(new URL(path, publicUrl).href)
  const options = JSON.stringify({ credentials: 'include', ...init })
  return page.value(
    `fetch(${url}, ${options}).then(async (r) => [r.type, r.status, r.url, await r.text()].join(' '), String)`,
  )
}

const posted = (body: object) => ({
  method: 'POST',
  headers: { 'Content-Type': 'application/json' },
  body: JSON.stringify(body),
})

t.test('signs in the person, stores consent and creates a session', async (t) => {
  await page.goto(authorizeUrl(app.id))
  await page.type('email', person.email)
  await page.type('password', PASSWORD)
  await page.press('button')
  await page.shows(`document.querySelector('h1').textContent === 'Allow access'`)
  await page.press('button')
  t.equal((await redeem(await arrivedCode(), app.id, { client_secret: SECRET })).status, 200)
  await page.goto(authorizeUrl(app.id))
  await page.shows(`document.querySelector('h1').textContent === 'Allow access'`)
  t.equal(await page.value(`new URL(location.href).searchParams.has('login')`), true)
})

for (const host of ['evil.example', 'sibling.botica.example']) {
  t.test(`hides the session and its results from a page of ${host}`, async (t) => {
    await page.goto(authorizeUrl(app.id))
    await page.shows(`document.querySelector('h1').textContent === 'Allow access'`)
    // The most an attacker could know: the content of the person's address bar.
    const login = new URL(await page.value<string>('location.href')).searchParams.get('login')
    await page.goto(`https://${host}:${others}/`)

    for (const parameters of [{}, { prompt: 'none' }]) {
      const url = authorizeUrl(app.id, parameters)
      for (const init of [{}, { redirect: 'manual' }]) {
        t.match(await learnt(url, init), /^TypeError: Failed to fetch/, 'cannot read a redirect')
      }
      t.match(await learnt(url, { mode: 'no-cors' }), /^opaque 0 {2}$/, 'cannot guess one')
    }
    for (const path of ['oauth', 'signin', 'pages/script.js']) {
      t.match(await learnt(path), /^TypeError: Failed to fetch/, `cannot read ${path}`)
    }
    const steps: [string, object?][] = [
      [`auth/login/${login}`],
      [`auth/login/${login}/consent`],
      ['auth/scope', posted({ login, scope: 'openid' })],
      ['auth/profile', posted({ login, profile: person.membership.id })],
      ['auth/deny', posted({ login })],
    ]
    for (const [path, init] of steps) {
      t.match(await learnt(path, init), /^cors 400 .*Login not found/, path)
    }
    const frame = `new Promise((resolve) => {
      const frame = document.createElement('iframe')
      frame.onload = () => {
        try { resolve(frame.contentWindow.location.href) } catch (error) { resolve(error.name) }
      }
      frame.src = ${JSON.stringify(authorizeUrl(app.id))}
      document.body.append(frame)
    })`
    t.equal(await page.value(frame), 'SecurityError', 'cannot see the target in a frame')
  })
}

t.test('requires the secret for a code requested by another site', async (t) => {
  await page.goto(`https://evil.example:${others}/`)
  await page.value(`location.assign(${JSON.stringify(authorizeUrl(app.id, { prompt: 'none' }))})`)
  const leaked = await arrivedCode()
  t.not(leaked, '')
  t.equal((await redeem(leaked, app.id)).status, 400)
  t.equal((await redeem(leaked, app.id, { client_secret: SECRET })).status, 200)
})

t.test(
  'signs in a browser app of another site by password and PKCE without a cookie',
  async (t) => {
    await page.goto(`https://spa.example:${others}/`)
    const credentials = { email: person.email, password: PASSWORD, clientId: spa.id, ...asked }
    const begun = await learnt(
      'auth/login',
      posted({ ...credentials, redirectUri, scope: 'openid' }),
    )
    t.match(begun, /^cors 200 /)
    const { login } = JSON.parse(begun.slice(begun.indexOf('{')))
    const next = await learnt('auth/scope', posted({ login, scope: 'openid' }))
    const { code } = JSON.parse(next.slice(next.indexOf('{')))
    t.equal((await redeem(code, spa.id)).status, 200)
    await page.goto(authorizeUrl(spa.id))
    await page.shows(`document.getElementById('password')`)
  },
)
