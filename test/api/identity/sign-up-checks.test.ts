import { hash, randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import { text as textOf } from 'node:stream/consumers'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { anEmail } from '../../fixtures/invites.ts'
import { aPerson, PASSWORD } from '../../fixtures/people.ts'

const SERVER_SECRET = 'secret of the server'
const SITE_SECRET = 'secret of the site'
const BREACHED = 'known to too many people'

/** The requests to both services; `isDown` makes both fail. */
const asked: string[] = []
let isDown = false

/** Accepts `token for <secret>` and knows one breached password. */
const server = createServer(async (req, res) => {
  const body = await textOf(req)
  asked.push(`${req.url} ${body}`)
  if (isDown) return res.writeHead(503).end()
  if (req.url === '/siteverify') {
    const form = new URLSearchParams(body)
    const success = form.get('response') === `token for ${form.get('secret')}`
    return res.end(JSON.stringify({ success, 'error-codes': [] }, null, 2))
  }
  const digest = hash('sha1', BREACHED).toUpperCase()
  const padding = `${'0'.repeat(35)}:0`
  const isThere = req.url === `/range/${digest.slice(0, 5)}`
  return res.end(isThere ? `${padding}\r\n${digest.slice(5)}:7\r\n` : padding)
})
const port = await listen(t, server)
const env = {
  RECAPTCHA_URL: `http://127.0.0.1:${port}/siteverify`,
  PASSWORD_CHECK: 'remote',
  PASSWORD_CHECK_URL: `http://127.0.0.1:${port}/range`,
  REGISTER_ENABLED: 'true',
}
const [botica, asking] = await Promise.all([
  openBotica(t, { env }),
  openBotica(t, {
    env: { ...env, RECAPTCHA_SITE_KEY: 'key of the server', RECAPTCHA_SECRET: SERVER_SECRET },
  }),
])

const failure = (text: string, field: string) => ({
  status: 400,
  body: { issue: [{ details: { text }, expression: [field] }] },
})
const missing = failure('Recaptcha token is required', 'recaptchaToken')
const failed = failure('Recaptcha failed', 'recaptchaToken')

function register(service: typeof botica, fields: Record<string, unknown>) {
  const names = { firstName: 'Grace', lastName: 'Hopper', email: anEmail() }
  return service.anonymous.post('/auth/newuser', { ...names, password: PASSWORD, ...fields })
}

/** A Project with reCAPTCHA on its site. */
async function aProject(service: typeof botica): Promise<string> {
  const { admin, project } = await service.createTenant()
  const site = { name: 'Site', domain: ['site.example'], recaptchaSiteKey: 'key of the site' }
  const sites = [{ ...site, recaptchaSecretKey: SITE_SECRET }]
  const saved = await admin.post(`/admin/projects/${project.id}/sites`, sites)
  if (saved.status !== 200) throw new Error(saved.text)
  return project.id
}

t.test('a registration needs the token of a human where the server has a secret', async (t) => {
  t.match(await register(asking, {}), missing)
  for (const recaptchaSiteKey of ['', 'key of the server', 'an unknown key']) {
    t.match(await register(asking, { recaptchaSiteKey }), missing, recaptchaSiteKey)
    t.match(await register(asking, { recaptchaSiteKey, recaptchaToken: 'x' }), failed)
  }
  const recaptchaToken = `token for ${SERVER_SECRET}`
  const taken = await register(asking, { recaptchaSiteKey: 'key of the server', recaptchaToken })
  t.match(taken, { status: 200, body: { login: String } })
  t.notMatch(taken.text, SERVER_SECRET)
})

t.test('so does a reset, before anything is looked up', async (t) => {
  const { email } = await aPerson(asking.services, asking.project)
  const reset = (fields: object) =>
    asking.anonymous.post('/auth/resetpassword', { email, ...fields })
  t.match(await reset({}), missing)
  t.match(await reset({ recaptchaToken: 'x' }), failed)
  const recaptchaToken = `token for ${SERVER_SECRET}`
  t.match(await reset({ recaptchaToken }), { status: 200, body: { id: 'ok' } })
})

t.test('verifies registrations in a Project by the keys of its site', async (t) => {
  const projectId = await aProject(botica)
  const recaptchaToken = `token for ${SITE_SECRET}`
  const registered = { status: 200, body: { login: String } }
  t.match(await register(botica, {}), registered, 'other projects require no check')
  for (const recaptchaSiteKey of [undefined, 'key of the site', 'an unknown key']) {
    const here = { projectId, recaptchaSiteKey }
    t.match(await register(botica, here), missing, String(recaptchaSiteKey))
    t.match(await register(botica, { ...here, recaptchaToken: 'x' }), failed)
    t.match(await register(botica, { ...here, recaptchaToken }), registered)
  }
  const both = { projectId: await aProject(asking), recaptchaSiteKey: 'key of the site' }
  t.match(await register(asking, { ...both, recaptchaToken }), registered)
  const ofServer = { ...both, recaptchaToken: `token for ${SERVER_SECRET}` }
  t.match(await register(asking, ofServer), failed)
})

t.test('rejects registrations when verification is unavailable', async (t) => {
  isDown = true
  t.match(await register(asking, { recaptchaToken: `token for ${SERVER_SECRET}` }), failed)
  isDown = false
})

t.test('rejects a breached password on every path that sets one', async (t) => {
  const text = 'Password found in breach database'
  const { admin, superAdmin, project } = botica
  t.match(await register(botica, { password: BREACHED }), failure(text, 'password'))
  const email = anEmail()
  const invited = { resourceType: 'Practitioner', firstName: 'A', lastName: 'B', email }
  const path = `/admin/projects/${project.id}/invite`
  const body = { ...invited, scope: 'project', sendEmail: false }
  t.match(await admin.post(path, { ...body, password: BREACHED }), failure(text, 'password'))
  t.equal((await admin.post(path, body)).status, 200)
  for (const [client, route] of [
    [admin, '/admin/projects/setpassword'],
    [superAdmin, '/admin/super/setpassword'],
  ] as const) {
    const set = { email, projectId: project.id, password: BREACHED }
    t.match(await client.post(route, set), failure(text, 'password'), route)
  }
  const link = { id: randomUUID(), secret: 'x', password: BREACHED }
  t.match(await botica.anonymous.post('/auth/setpassword', link), failure(text, 'password'))
})

t.test('sends five digits to the breach database and tolerates its outage', async (t) => {
  asked.length = 0
  t.equal((await register(botica, { password: 'a password without a breach' })).status, 200)
  const digest = hash('sha1', 'a password without a breach').toUpperCase()
  t.same(asked, [`/range/${digest.slice(0, 5)} `])
  isDown = true
  t.equal((await register(botica, { password: BREACHED })).status, 200)
  isDown = false
})
