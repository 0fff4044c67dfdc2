/** Second factors that a project requires, and their reset by its administrators. */
import t from 'tap'
import { oneTimeCode } from '../../fixtures/accounts.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { createClient } from '../../fixtures/client.ts'
import { mailsTo } from '../../fixtures/invites.ts'
import { aPerson, PASSWORD, type Person, pkce, redeemCode } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { admin, anonymous, services, baseUrl, project, superAdmin } = botica
const json = { 'Content-Type': 'application/json' }

interface Result {
  readonly login: string
  readonly code?: string
  readonly mfaRequired?: boolean
  readonly mfaEnrollRequired?: boolean
  readonly enrollUri: string
  readonly memberships?: readonly { readonly id: string; readonly project: { reference: string } }[]
}

const { verifier, asked } = pkce()
const post = (path: string, body: unknown, client = anonymous) =>
  client.post<Result>(`/auth/${path}`, body)
const logIn = async (email: string, fields: object = {}) =>
  (await post('login', { email, password: PASSWORD, ...asked, ...fields })).body

async function createClientFor(code: string | undefined) {
  const answer = await redeemCode(baseUrl, code, verifier)
  if (answer.status !== 200) throw new Error(answer.text)
  return createClient(baseUrl, answer.body.access_token)
}

const tokenFor = (enrollUri: string, step = 0) => {
  const secret = new URL(enrollUri).searchParams.get('secret') ?? ''
  return oneTimeCode(secret, Math.floor(Date.now() / 30_000) + step)
}
const requireFactor = (tenant: { admin: typeof admin; project: { id?: string } }, is: boolean) =>
  tenant.admin.post(
    `/admin/projects/${tenant.project.id}/settings`,
    [{ name: 'mfaRequired', valueBoolean: is }],
    json,
  )
const memberPath = ({ membership }: Person, end: string, projectId = project.id) =>
  `/admin/projects/${projectId}/members/${membership.id}/${end}`

t.test('a project can require a second factor for every sign-in with a password', async (t) => {
  const strict = await botica.createTenant()
  const person = await aPerson(services, strict.project)
  t.ok((await logIn(person.email)).code)

  t.equal((await requireFactor(strict, true)).status, 200)
  const begun = await logIn(person.email)
  t.match(begun, { mfaEnrollRequired: true, enrollUri: /^otpauth:/ })
  t.equal(begun.code, undefined)
  const resumed = await anonymous.get<Result>(`/auth/login/${begun.login}`)
  t.equal(resumed.body.code, undefined)
  const enrolled = await post('mfa/login-enroll', {
    login: begun.login,
    token: tokenFor(begun.enrollUri),
  })
  const client = await createClientFor(enrolled.body.code)
  const disabled = await post('mfa/disable', { token: tokenFor(begun.enrollUri, 1) }, client)
  t.match(disabled, {
    status: 400,
    body: { issue: [{ details: { text: 'A second factor is required' } }] },
  })
  t.match(await logIn(person.email), { mfaRequired: true })
})

t.test('a sign-in needs the factor once it is for the project that requires one', async (t) => {
  const strict = await botica.createTenant()
  t.equal((await requireFactor(strict, true)).status, 200)
  const person = await aPerson(services, project)
  const { membership } = await aPerson(services, strict.project, {
    user: person.user,
    email: person.email,
  })
  const lenient = await logIn(person.email)
  t.equal(lenient.memberships?.length, 2)
  const chosen = await post('profile', { login: lenient.login, profile: person.membership.id })
  t.ok(chosen.body.code, 'the other project does not require it')

  const begun = await logIn(person.email)
  const refused = await post('profile', { login: begun.login, profile: membership.id })
  t.match(refused.body, { mfaEnrollRequired: true })
  t.equal(refused.body.code, undefined)
  const direct = await logIn(person.email, { projectId: strict.project.id })
  t.match(direct, { mfaEnrollRequired: true })
})

t.test('an administrator removes the second factor of an account of the project', async (t) => {
  const own = await aPerson(services, project, { isProjectScoped: true, mfaRequired: true })
  const begun = await logIn(own.email, { projectId: project.id })
  const token = tokenFor(begun.enrollUri)
  const done = await post('mfa/login-enroll', { login: begun.login, token })
  const client = await createClientFor(done.body.code)

  const other = await botica.createTenant()
  const path = memberPath(own, 'mfa/reset')
  t.equal((await other.admin.post(path, {}, json)).status, 403)
  t.equal((await client.post(path, {}, json)).status, 403, 'not by a member')
  const foreign = memberPath(own, 'mfa/reset', other.project.id)
  t.equal((await other.admin.post(foreign, {}, json)).status, 403)
  t.match(await admin.post(path, { method: 'email' }, json), {
    status: 400,
    body: { issue: [{ expression: ['method'] }] },
  })
  t.equal((await admin.post(path, {}, json)).status, 200)
  t.equal((await client.get('/auth/me')).status, 401, 'its sessions have ended')
  const again = await logIn(own.email, { projectId: project.id })
  t.match(again, { mfaEnrollRequired: true })
  t.not(again.enrollUri, begun.enrollUri, 'the old authenticator is of no use')
  const mails = await mailsTo(services, own.email)
  t.ok(mails.some(({ text }) => String(text).includes('the second factor was removed')))
  t.equal((await admin.post(path, {}, json)).status, 400, 'there is none')
  const audits = await admin.get<{ total: number }>(
    `AuditEvent?entity=ProjectMembership/${own.membership.id}&_total=accurate`,
  )
  t.equal(audits.body.total, 1)
})

t.test('an account of the whole service keeps its second factor', async (t) => {
  const person = await aPerson(services, project, { mfaRequired: true })
  const begun = await logIn(person.email)
  await post('mfa/login-enroll', { login: begun.login, token: tokenFor(begun.enrollUri) })
  const path = memberPath(person, 'mfa/reset')
  t.equal((await admin.post(path, {}, json)).status, 403)
  t.match(await logIn(person.email), { mfaRequired: true })
  t.equal((await superAdmin.post(path, {}, json)).status, 200)
})

t.test('an administrator mails a member a link to set another password', async (t) => {
  const person = await aPerson(services, project)
  const path = memberPath(person, 'resetpassword')
  const other = await botica.createTenant()
  t.equal((await other.admin.post(path, {}, json)).status, 403)
  const made = await admin.post(path, {}, json)
  t.equal(made.status, 200, made.text)
  t.notMatch(made.text, /setpassword/, 'the administrator does not get the link')
  const [mail] = await mailsTo(services, person.email)
  t.match(mail?.text, /setpassword\/[0-9a-f-]{36}\/[0-9a-f]{32}/)
  t.ok((await logIn(person.email)).code, 'the present password stays good')
  t.equal((await admin.post(path, { password: 'x' }, json)).status, 400)
  const statuses = []
  for (let i = 0; i < 3; i++) statuses.push((await admin.post(path, {}, json)).status)
  t.same(statuses, [200, 200, 429])
  const client = await admin.get<{ entry: { resource: { id: string } }[] }>(
    'ProjectMembership?profile-type=ClientApplication',
  )
  const { id } = client.body.entry[0]?.resource ?? {}
  const program = `/admin/projects/${project.id}/members/${id}/resetpassword`
  t.equal((await admin.post(program, {}, json)).status, 404, 'programs have no password')
})
