/** Codes by mail as the second factor of people without an authenticator app. */
import t from 'tap'
import { oneTimeCode } from '../../fixtures/accounts.ts'
import { openBotica, type Tenant, until } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { mailsTo } from '../../fixtures/invites.ts'
import { aPerson, PASSWORD, type Person, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, services, baseUrl } = botica
const { redis } = services
const json = { 'Content-Type': 'application/json' }

interface Step {
  readonly login: string
  readonly code?: string
  readonly mfaRequired?: boolean
  readonly mfaMethods?: readonly string[]
  readonly enrollUri?: string
}

const { verifier, asked } = pkce()
const post = (path: string, body: object, client = anonymous) =>
  client.post<Step>(`/auth/${path}`, body)

async function aStrictTenant(isByMail = true): Promise<Tenant> {
  const tenant = await botica.createTenant()
  const settings = [
    { name: 'mfaRequired', valueBoolean: true },
    { name: 'mfaMailCodes', valueBoolean: isByMail },
  ]
  const path = `/admin/projects/${tenant.project.id}/settings`
  const set = await tenant.admin.post(path, settings, json)
  if (set.status !== 200) throw new Error(set.text)
  return tenant
}

const strict = await aStrictTenant()
const aMember = (options: Parameters<typeof aPerson>[2] = { isProjectScoped: true }) =>
  aPerson(services, strict.project, options)
const logIn = async ({ email }: Person, projectId = strict.project.id) =>
  (await post('login', { email, password: PASSWORD, projectId, ...asked })).body

const readCodes = async ({ email }: Person) => {
  const mails = await mailsTo(services, email)
  return mails
    .filter(({ kind }) => kind === 'sign-in-code')
    .map(({ text = '' }) => /^\d{6}$/m.exec(text)?.[0] ?? '')
}
const send = (login: string) => post('mfa/send-email', { login })
const verify = (login: string, token: string) => post('mfa/verify', { login, token })
const wrongFor = (code: string) => (code === '000000' ? '000001' : '000000')

t.test('a mailed code is the second step of a sign-in', async (t) => {
  const person = await aMember()
  const begun = await logIn(person)
  t.match(begun, { mfaRequired: true, mfaMethods: ['email'], email: person.email })
  t.equal(begun.code, undefined)
  t.equal(begun.enrollUri, undefined, 'a password alone sets up no app')
  t.same(await readCodes(person), [], 'nothing is sent before it is asked for')

  const sent = await send(begun.login)
  t.match(sent, { status: 200, body: { resourceType: 'OperationOutcome' } })
  const [mail] = await mailsTo(services, person.email)
  t.match(mail?.text, `resetpassword?project_id=${strict.project.id}`)
  const [code = ''] = await readCodes(person)
  const early = await post('profile', { login: begun.login, profile: person.membership.id })
  t.equal(early.body.code, undefined)
  t.equal((await verify(begun.login, wrongFor(code))).status, 400)
  const done = await verify(begun.login, code)
  t.equal(done.status, 200, done.text)
  const { status, body } = await redeemCode(baseUrl, done.body.code, verifier)
  t.equal(status, 200)
  const client = createClient(baseUrl, body.access_token)
  t.equal((await client.get('/auth/me')).status, 200)

  const found = await client.get<{ enrollUri: string }>('/auth/mfa/status')
  const secret = new URL(found.body.enrollUri).searchParams.get('secret') ?? ''
  const token = oneTimeCode(secret, Math.floor(Date.now() / 30_000))
  t.equal((await post('mfa/enroll', { token }, client)).status, 200)
  const again = await logIn(person)
  t.match(again, { mfaRequired: true, mfaMethods: ['totp'] })
  t.equal((await send(again.login)).status, 400, 'an app replaces the mail')
})

t.test('a password alone sets up no app by way of another project', async (t) => {
  const other = await botica.createTenant()
  const withApps = await aStrictTenant(false)
  const person = await aMember({})
  const { user } = person
  await aPerson(services, other.project, { user })
  await aPerson(services, withApps.project, { user })

  const { code = '' } = await logIn(person, other.project.id)
  const { body } = await redeemCode(baseUrl, code, verifier)
  const client = createClient(baseUrl, body.access_token)
  const found = await client.get<{ enrollUri: string }>('/auth/mfa/status')
  const secret = new URL(found.body.enrollUri).searchParams.get('secret') ?? ''
  const token = oneTimeCode(secret, Math.floor(Date.now() / 30_000))
  const enrolled = await post('mfa/enroll', { token, password: PASSWORD }, client)
  t.equal(enrolled.status, 400)
  t.match(enrolled.text, /code by mail first/)

  const begun = await logIn(person, withApps.project.id)
  t.type(begun.enrollUri, 'string')
  const again = await post('mfa/login-enroll', { login: begun.login, token })
  t.equal(again.status, 400)
  t.match(again.text, /code by mail first/)
  t.match(await logIn(person), { mfaMethods: ['email'] })
})

t.test('a code is stored as a slow hash, for ten minutes', async (t) => {
  const person = await aMember()
  const { login } = await logIn(person)
  await send(login)
  const [code = ''] = await readCodes(person)
  const key = `botica:sign-in-code:${login}`
  const stored = (await redis.get(key)) ?? ''
  t.match(stored, /^scrypt\$/)
  t.notOk(stored.includes(code))
  const left = await redis.ttl(key)
  t.ok(left > 500 && left <= 600, String(left))
  await redis.pexpire(key, 1)
  await until(async () => (await redis.exists(key)) === 0, 60_000)
  t.equal((await verify(login, code)).status, 400)
})

t.test('accepts only the newest code, and only for its sign-in', async (t) => {
  const person = await aMember()
  const [first, second] = [await logIn(person), await logIn(person)]
  await send(first.login)
  await send(second.login)
  await send(second.login)
  const [ofFirst = '', older = '', newer = ''] = await readCodes(person)
  if (older !== newer) t.equal((await verify(second.login, older)).status, 400)
  if (ofFirst !== newer) t.equal((await verify(first.login, newer)).status, 400)
  const both = await Promise.all([verify(second.login, newer), verify(second.login, newer)])
  t.equal(both.filter(({ status }) => status === 200).length, 1, 'works once')
  t.equal((await verify(first.login, ofFirst)).status, 200)
})

t.test('five wrong codes end the sign-in', async (t) => {
  const person = await aMember()
  const { login } = await logIn(person)
  await send(login)
  const [code = ''] = await readCodes(person)
  for (let i = 0; i < 5; i++) t.equal((await verify(login, wrongFor(code))).status, 400)
  t.not((await verify(login, code)).status, 200)
  await redis.del(`botica:guesses-pause:factor:${person.user.id}`)
  const after = await verify(login, code)
  t.match(after, { status: 400, body: { issue: [{ details: { text: 'Login revoked' } }] } })
  t.equal((await send(login)).status, 400)
})

t.test('at most five codes an hour are mailed to a person', async (t) => {
  const person = await aMember()
  for (let i = 0; i < 5; i++) t.equal((await send((await logIn(person)).login)).status, 200)
  const { login } = await logIn(person)
  const refused = await send(login)
  t.equal(refused.status, 429)
  t.ok(Number(refused.headers.get('retry-after')) > 3000)
  t.equal((await readCodes(person)).length, 5)
})

t.test('a password alone cannot replace the mail by an app', async (t) => {
  const person = await aMember()
  const before = await logIn(person)
  const lenient = await post('mfa/login-enroll', { login: before.login, token: '123456' })
  t.match(lenient, {
    status: 400,
    body: { issue: [{ details: { text: /Continue with a code by mail/ } }] },
  })
})

t.test('codes are mailed only where the project permits it', async (t) => {
  const other = await aStrictTenant(false)
  const person = await aPerson(services, other.project, { isProjectScoped: true })
  const begun = await logIn(person, other.project.id)
  t.match(begun, { mfaEnrollRequired: true, enrollUri: /^otpauth:/ })
  t.equal((await send(begun.login)).status, 400)
  t.equal((await verify(begun.login, '123456')).status, 400)
  t.same(await readCodes(person), [])

  const shared = await aMember({ mfaRequired: true })
  const needsApp = await logIn(shared)
  t.match(needsApp, { mfaEnrollRequired: true }, 'no project lowers a requirement of the account')
  t.equal((await send(needsApp.login)).status, 400)
  const free = await aPerson(services, botica.project)
  const done = (await post('login', { email: free.email, password: PASSWORD, ...asked })).body
  t.ok(done.code)
  t.equal((await send(done.login)).status, 400, 'no second factor is due')
})
