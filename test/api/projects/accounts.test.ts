/** Accounts of members: the state of an invitation, and another link. */
import t from 'tap'
import { createAccounts } from '../../fixtures/accounts.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { anEmail, invite, mailsTo } from '../../fixtures/invites.ts'
import { aPerson, PASSWORD } from '../../fixtures/people.ts'

interface Account {
  readonly email?: string
  readonly scope: string
  readonly state: string
  readonly lastSignIn?: string
  readonly mail?: string
  readonly linkExpires?: string
}

interface Again {
  readonly link?: string
  readonly isMailed: boolean
}

const CHOSEN = 'a long new password of Grace'
const botica = await openBotica(t)
const { admin, anonymous, services, project } = botica
const members = `/admin/projects/${project.id}/members`
const readAccount = (id: unknown) => admin.get<Account>(`${members}/${id}/account`)
const inviteAgain = (id: unknown, body: object = {}) =>
  admin.post<Again>(`${members}/${id}/invitation`, body)

async function signIn(email: string, projectId: unknown): Promise<void> {
  const { logIn, openClientSession } = createAccounts(botica)
  const { body } = await logIn(email, PASSWORD, { projectId })
  await openClientSession(body.code)
}

t.test('an account of the project is invited until it has a password', async (t) => {
  const email = anEmail()
  const { body: member } = await invite(admin, project.id, { email, scope: 'project' })
  const { body: invited } = await readAccount(member.id)
  t.match(invited, { email, scope: 'project', state: 'invited', mail: 'waiting' })
  t.ok(Date.parse(invited.linkExpires ?? '') > Date.now())

  const again = await inviteAgain(member.id, { sendEmail: false })
  t.equal(again.status, 200, again.text)
  t.equal(again.body.isMailed, false)
  t.equal((await mailsTo(services, email)).length, 1)
  const link = new URL(again.body.link ?? '')
  t.equal(link.searchParams.get('project_id'), project.id)
  const [, id, secret] = /\/setpassword\/([^/]+)\/(\w+)$/.exec(link.pathname) ?? []
  const chosen = await anonymous.post('/auth/setpassword', { id, secret, password: CHOSEN })
  t.equal(chosen.status, 200, chosen.text)
  const { body: accepted } = await readAccount(member.id)
  t.equal(accepted.state, 'accepted')
  t.equal(accepted.linkExpires, undefined)
  t.equal((await inviteAgain(member.id)).status, 409)
})

t.test('another mail is sent on request', async (t) => {
  const email = anEmail()
  const { body: member } = await invite(admin, project.id, { email, scope: 'project' })
  t.match(await inviteAgain(member.id), { status: 200, body: { isMailed: true } })
  const links = (await mailsTo(services, email)).map(({ text = '' }) => /setpassword\S+/.exec(text))
  t.equal(new Set(links.map(String)).size, 2)
})

t.test('a link for an account of the whole service is only mailed', async (t) => {
  const email = anEmail()
  const { body: member } = await invite(admin, project.id, { email })
  const { body: account } = await readAccount(member.id)
  t.match(account, { email, scope: 'server', state: 'invited' })
  t.equal(account.linkExpires, undefined)
  const again = await inviteAgain(member.id)
  t.equal(again.status, 200, again.text)
  t.equal(again.body.link, undefined)
  t.equal((await mailsTo(services, email)).length, 2)
  t.match(await inviteAgain(member.id, { sendEmail: false }), { status: 400 })
})

t.test('does not reveal sign-ins to other projects', async (t) => {
  const other = await botica.createTenant()
  const away = await aPerson(services, other.project)
  const { membership } = await aPerson(services, project, { user: away.user })
  await signIn(away.email, other.project.id)
  t.match((await readAccount(membership.id)).body, { state: 'invited', scope: 'server' })
  await signIn(away.email, project.id)
  const { body: account } = await readAccount(membership.id)
  t.equal(account.state, 'accepted')
  t.ok(Date.parse(account.lastSignIn ?? '') > 0)
})

t.test('only administrators of the project see accounts of its people', async (t) => {
  const { membership } = await aPerson(services, project)
  const other = await botica.createTenant()
  const plain = await botica.createMember()
  for (const { client } of [plain, { client: other.admin }]) {
    t.equal((await client.get(`${members}/${membership.id}/account`)).status, 403)
    t.equal((await client.post(`${members}/${membership.id}/invitation`, {})).status, 403)
  }
  const theirs = `/admin/projects/${other.project.id}/members/${membership.id}`
  t.equal((await other.admin.get(`${theirs}/account`)).status, 403)
  t.equal((await other.admin.post(`${theirs}/invitation`, {})).status, 403)
  t.equal((await readAccount('nobody')).status, 404)
  const { body } = await admin.get<{ entry: { resource: { id: string } }[] }>(
    `ProjectMembership?profile=ClientApplication/${plain.id}`,
  )
  const client = body.entry[0]?.resource.id
  t.equal((await readAccount(client)).status, 404)
  t.equal((await inviteAgain(client)).status, 404)
})
