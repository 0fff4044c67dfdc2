/**
 * Account changes require the person: the password, or a recent sign-in. Imports the system's rights, to make a
 * login older.
 */
import t from 'tap'
import { system } from '../../../../shared/access/project-context.ts'
import { oneTimeCode } from '../../../fixtures/accounts.ts'
import { scopedPerson } from '../../../fixtures/attacks/scoped.ts'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Client } from '../../../fixtures/client.ts'
import { anEmail, mailsTo } from '../../../fixtures/invites.ts'
import { aPerson, decodeJwtClaims, PASSWORD, type Person, pkce } from '../../../fixtures/people.ts'

const botica = await openBotica(t)
const { admin, services, project } = botica
const SIX_MINUTES_MS = 360_000

t.test('rejects an address change by a stolen token, and notifies the old address', async (t) => {
  const person = await aPerson(services, project)
  const client = await signIn(person)
  const email = anEmail()

  await age(client)
  const refused = await updateEmail(client, person, { email })
  t.match(refused, {
    status: 403,
    body: { issue: [{ details: { text: /password/ }, expression: ['password'] }] },
  })
  t.match(
    refused.headers.get('www-authenticate'),
    /insufficient_user_authentication.*max_age="300"/,
  )
  t.match(await updateEmail(client, person, { email, password: 'wrong' }), {
    status: 400,
    body: { issue: [{ details: { text: 'Incorrect password' }, expression: ['password'] }] },
  })
  t.same(await mailsTo(services, email), [])

  t.equal((await updateEmail(client, person, { email, password: PASSWORD })).status, 200)
  const [told] = await mailsTo(services, person.email)
  t.match(told, { kind: 'email-changed', subject: 'Botica Email Address Replaced' })
  t.notMatch(told?.text, email)
})

t.test('accepts a fresh sign-in without a password', async (t) => {
  const person = await aPerson(services, project)
  const client = await signIn(person)
  t.equal((await updateEmail(client, person, { email: anEmail() })).status, 200)
  t.equal((await mailsTo(services, person.email)).length, 1)
})

t.test('limits address changes by the owner to three an hour, with rejected ones', async (t) => {
  const [person, other] = [await aPerson(services, project), await aPerson(services, project)]
  const client = await signIn(person)
  const change = (email: string) => updateEmail(client, person, { email })
  t.equal((await change('nobody')).status, 400)
  t.equal((await change(other.email)).status, 409)
  t.equal((await change(anEmail())).status, 200)
  t.equal((await change(anEmail())).status, 200)
  const email = anEmail()
  const refused = await change(email)
  t.equal(refused.status, 429)
  t.ok(Number(refused.headers.get('retry-after')) > 0)
  t.same(await mailsTo(services, email), [])
  t.equal((await change(other.email)).status, 429, 'reveals no further addresses')
  t.equal((await updateEmail(botica.superAdmin, person, { email })).status, 200)
})

t.test('rejects changes of the own account by an administrator’s token', async (t) => {
  const details = { admin: true }
  const person = await aPerson(services, project, { isProjectScoped: true, details })
  const other = await aPerson(services, project, { isProjectScoped: true })
  const client = await signIn(person)
  await age(client)
  t.equal((await updateEmail(client, person, { email: anEmail() })).status, 403)
  t.equal((await updateEmail(client, other, { email: anEmail() })).status, 200)
  t.equal((await mailsTo(services, other.email)).length, 1)
})

t.test('notifies the old address of a change by a directory', async (t) => {
  const person = await aPerson(services, project, { isProjectScoped: true })
  const path = `/scim/v2/Users/${person.membership.id}`
  const { body } = await admin.get(path)
  const emails = [{ value: anEmail(), type: 'work', primary: true }]
  t.equal((await admin.put(path, { ...body, emails })).status, 200)
  t.match(await mailsTo(services, person.email), [{ kind: 'email-changed' }])
})

t.test('rejects enrollment, display and removal of a second factor by an old token', async (t) => {
  const person = await aPerson(services, project)
  const client = await signIn(person)
  const shown = await client.get<{ enrollUri: string }>('/auth/mfa/status')
  const secret = new URL(shown.body.enrollUri).searchParams.get('secret') ?? ''
  // A TOTP step counts once: one code is current, the other of the next 30 s.
  const post = (path: 'enroll' | 'disable', more: object = {}) => {
    const step = Math.floor(Date.now() / 30_000) + (path === 'enroll' ? 0 : 1)
    return client.post(`/auth/mfa/${path}`, { token: oneTimeCode(secret, step), ...more })
  }

  await age(client)
  t.same((await client.get('/auth/mfa/status')).body, { enrolled: false })
  t.equal((await post('enroll')).status, 403)
  t.match(await post('enroll', { password: 'wrong' }), { status: 400 })
  t.equal((await post('enroll', { password: PASSWORD })).status, 200)
  t.equal((await post('disable')).status, 403)
  t.equal((await post('disable', { password: PASSWORD })).status, 200)
  t.match(await told(person), [/second factor was added/, /second factor was removed/])
})

t.test('notifies the user of a second factor enrolled during sign-in', async (t) => {
  const person = await aPerson(services, project, { mfaRequired: true })
  const { verifier: _, asked } = pkce()
  const begin = { email: person.email, password: PASSWORD, projectId: project.id, ...asked }
  const { body } = await botica.anonymous.post<Record<string, string>>('/auth/login', begin)
  const secret = new URL(body.enrollUri ?? '').searchParams.get('secret') ?? ''
  const token = oneTimeCode(secret, Math.floor(Date.now() / 30_000))
  const enrolled = await botica.anonymous.post('/auth/mfa/login-enroll', {
    login: body.login,
    token,
  })
  t.equal(enrolled.status, 200, enrolled.text)
  t.match(await told(person), [/second factor was added/])
})

t.test('notifies the owner of a new password', async (t) => {
  const person = await aPerson(services, project)
  const client = await signIn(person)
  const change = (oldPassword: string) =>
    client.post('/auth/changepassword', { oldPassword, newPassword: 'another long one indeed' })
  t.equal((await change('wrong')).status, 400)
  t.same(await mailsTo(services, person.email), [])
  t.equal((await change(PASSWORD)).status, 200)
  t.match(await told(person), [/password was changed/])
})

t.test('verifies five of a burst of guesses', async (t) => {
  const person = await aPerson(services, project)
  const client = await signIn(person)
  await age(client)
  const guess = () => updateEmail(client, person, { email: anEmail(), password: 'wrong' })
  const answers = await Promise.all(Array.from({ length: 20 }, guess))
  t.equal(answers.filter(({ status }) => status === 400).length, 5)
  t.equal(answers.filter(({ status }) => status === 429).length, 15)
  const right = await updateEmail(client, person, { email: anEmail(), password: PASSWORD })
  t.equal(right.status, 429)
  t.ok(Number(right.headers.get('retry-after')) > 0)
})

async function told({ email }: Person): Promise<(string | undefined)[]> {
  const mails = await mailsTo(services, email)
  return mails.filter(({ kind }) => kind === 'account-changed').map(({ text }) => text)
}

function signIn(person: Person): Promise<Client> {
  return scopedPerson(botica, person, 'openid')
}

async function age(client: Client): Promise<void> {
  const id = String(decodeJwtClaims(client.token ?? '').login_id)
  const authTime = new Date(Date.now() - SIX_MINUTES_MS).toISOString()
  await services.repository.patch(system, { type: 'Login', id }, (login) => ({
    ...login,
    authTime,
  }))
  services.principals.forget(id)
}

function updateEmail(client: Client, { user }: Person, values: Readonly<Record<string, string>>) {
  const parameter = Object.entries(values).map(([name, valueString]) => ({ name, valueString }))
  return client.post(`User/${user.id}/$update-email`, { resourceType: 'Parameters', parameter })
}
