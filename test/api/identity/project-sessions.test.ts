/** A session of the console goes on in another Project of its person. */
import t from 'tap'
import { oneTimeCode } from '../../fixtures/accounts.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { openBrowser } from '../../fixtures/http/browser.ts'
import { mailsTo } from '../../fixtures/invites.ts'
import { aPerson, codeFlow, PASSWORD, type Person } from '../../fixtures/people.ts'

const CLIENT = 'botica-console'
const botica = await openBotica(t)
const { baseUrl, services, project } = botica
const redirectUri = `${baseUrl}console`
const { asked, authorizePath, redeem } = codeFlow(baseUrl, redirectUri)
const other = await botica.createTenant()
const third = await botica.createTenant()
const person = await aPerson(services, project)
await aPerson(services, other.project, { user: person.user })

async function begun({ email }: Person, projectId = project.id) {
  const browser = openBrowser(baseUrl)
  const credentials = { email, password: PASSWORD, clientId: CLIENT, redirectUri, projectId }
  const { body } = await browser.call('/auth/login', { ...credentials, ...asked })
  return { browser, step: body }
}

async function signedIn(person: Person, projectId = project.id) {
  const { browser, step } = await begun(person, projectId)
  const { body } = await redeem(step.code, CLIENT)
  return { browser, tokens: body }
}

async function aStrictTenant(isByMail = false) {
  const tenant = await botica.createTenant()
  const settings = [
    { name: 'mfaRequired', valueBoolean: true },
    { name: 'mfaMailCodes', valueBoolean: isByMail },
  ]
  const path = `/admin/projects/${tenant.project.id}/settings`
  const json = { 'Content-Type': 'application/json' }
  const set = await tenant.admin.post(path, settings, json)
  if (set.status !== 200) throw new Error(set.text)
  return tenant.project
}

const query = (projectId: string | undefined, more: Record<string, string> = {}) =>
  `/${authorizePath(CLIENT, { project_id: projectId ?? '', ...more })}`

async function me(token: string) {
  const headers = { Authorization: `Bearer ${token}` }
  const answer = await fetch(`${baseUrl}auth/me`, { headers })
  return (await answer.json()) as Me
}

interface Me {
  readonly project: { readonly id: string }
  readonly security: {
    readonly memberships: readonly { readonly project: { readonly reference: string } }[]
  }
}

t.test('opens another project of the person without a password', async (t) => {
  const { browser, tokens } = await signedIn(person)
  const first = await me(tokens.access_token)
  t.equal(first.project.id, project.id)
  t.same(
    first.security.memberships.map((one) => one.project.reference).sort(),
    [`Project/${project.id}`, `Project/${other.project.id}`].sort(),
  )
  const page = await browser.navigate(query(other.project.id))
  const login = page.location?.searchParams.get('login')
  t.match(login, /^[\w-]{36}$/)
  const { body } = await browser.call(`/auth/login/${login}`)
  const switched = await redeem(body.code, CLIENT)
  t.equal((await me(switched.body.access_token)).project.id, other.project.id)
  t.equal((await me(tokens.access_token)).project.id, project.id, 'the first session stays')
})

t.test('answers silently with a code for the other project', async (t) => {
  const { browser } = await signedIn(person)
  const silent = await browser.navigate(query(other.project.id, { prompt: 'none' }))
  const { body } = await redeem(silent.location?.searchParams.get('code') ?? '', CLIENT)
  t.equal((await me(body.access_token)).project.id, other.project.id)
})

t.test('asks for the password where the person has no membership', async (t) => {
  const { browser } = await signedIn(person)
  for (const id of [third.project.id, '00000000-0000-4000-8000-000000000000']) {
    const page = await browser.navigate(query(id))
    t.equal(page.location?.pathname, '/oauth')
    t.equal(page.location?.searchParams.get('login'), null)
    const silent = await browser.navigate(query(id, { prompt: 'none' }))
    t.equal(silent.location?.searchParams.get('error'), 'login_required')
  }
})

t.test('keeps an account of one project in its project', async (t) => {
  const own = await aPerson(services, project, { isProjectScoped: true })
  const { browser } = await signedIn(own)
  const page = await browser.navigate(query(other.project.id))
  t.equal(page.location?.searchParams.get('login'), null)
  const refused = await browser.call('/auth/login', {
    ...{ email: own.email, password: PASSWORD, clientId: CLIENT, redirectUri, ...asked },
    projectId: other.project.id,
  })
  t.equal(refused.status, 400)
})

t.test('lists only the project of an app to the app', async (t) => {
  const app = await botica.admin.create({
    resourceType: 'ClientApplication',
    name: 'App',
    redirectUris: [redirectUri],
  })
  const browser = openBrowser(baseUrl)
  const begun = await browser.call('/auth/login', {
    ...{ email: person.email, password: PASSWORD, clientId: app.id, redirectUri, ...asked },
  })
  const { body } = await redeem(begun.body.code, app.id)
  const { security } = await me(body.access_token)
  t.same(
    security?.memberships.map((one) => one.project.reference),
    [`Project/${project.id}`],
  )
  const page = await browser.navigate(
    `/${authorizePath(app.id, { project_id: other.project.id ?? '' })}`,
  )
  t.equal(page.location?.searchParams.get('error'), 'invalid_request')
})

t.test('does not open a project whose network rules exclude the person', async (t) => {
  const closed = await botica.createTenant()
  const policy = await closed.admin.create({
    resourceType: 'AccessPolicy',
    name: 'Closed',
    resource: [{ resourceType: 'Patient' }],
    ipAccessRule: [{ name: 'All', value: '*', action: 'block' }],
  })
  const access = [{ policy: { reference: `AccessPolicy/${policy.id}` } }]
  await aPerson(services, closed.project, { user: person.user, details: { access } })
  const { browser } = await signedIn(person)
  const page = await browser.navigate(query(closed.project.id))
  t.equal(page.location?.searchParams.get('error'), 'access_denied')
  t.equal(page.location?.searchParams.get('error_description'), 'IP address not allowed')
})

type Browser = ReturnType<typeof openBrowser>

async function answersIn(browser: Browser, projectId: string) {
  const silent = await browser.navigate(query(projectId, { prompt: 'none' }))
  const page = await browser.navigate(query(projectId))
  const login = page.location?.searchParams.get('login')
  const { body } = await browser.call(`/auth/login/${login}`)
  return { silent: Object.fromEntries(silent.location?.searchParams ?? []), step: body }
}

t.test('asks for the second factor of the other project', async (t) => {
  const strict = await aStrictTenant()
  const member = await aPerson(services, project)
  await aPerson(services, strict, { user: member.user })
  const { browser } = await signedIn(member)
  const { silent, step } = await answersIn(browser, strict.id)
  t.match(silent, { error: 'interaction_required', code: undefined })
  t.match(step, { mfaEnrollRequired: true, code: undefined })
})

t.test('does not accept a code mailed for one project in another', async (t) => {
  const [mailing, strict] = [await aStrictTenant(true), await aStrictTenant()]
  const member = await aPerson(services, mailing)
  await aPerson(services, strict, { user: member.user })
  const { browser, step } = await begun(member, mailing.id)
  await browser.call('/auth/mfa/send-email', { login: step.login })
  const [mail] = await mailsTo(services, member.email)
  const token = /^\d{6}$/m.exec(mail?.text ?? '')?.[0]
  const verified = await browser.call('/auth/mfa/verify', { login: step.login, token })
  t.equal((await redeem(verified.body.code, CLIENT)).status, 200)

  t.match((await answersIn(browser, mailing.id)).silent, { code: String })
  const there = await answersIn(browser, strict.id)
  t.match(there.silent, { error: 'interaction_required', code: undefined })
  t.match(there.step, { mfaEnrollRequired: true, code: undefined })
})

t.test('accepts a code of the app of the person in every project', async (t) => {
  const [strict, second] = [await aStrictTenant(), await aStrictTenant()]
  const member = await aPerson(services, strict)
  await aPerson(services, second, { user: member.user })
  const { browser, step } = await begun(member, strict.id)
  const secret = new URL(String(step.enrollUri)).searchParams.get('secret') ?? ''
  const token = oneTimeCode(secret, Math.floor(Date.now() / 30_000))
  const enrolled = await browser.call('/auth/mfa/login-enroll', { login: step.login, token })
  t.equal((await redeem(enrolled.body.code, CLIENT)).status, 200)
  for (const { id } of [strict, second]) {
    t.match(await answersIn(browser, id), { silent: { code: String }, step: { code: String } })
  }
})
