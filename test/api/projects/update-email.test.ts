import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEmail, findInvitedUsers, invite, mailsTo } from '../../fixtures/invites.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services } = botica
const projectId = botica.project.id

const update = (client: typeof admin, user: string, values: Record<string, string | boolean>) =>
  client.post(`${user}/$update-email`, {
    resourceType: 'Parameters',
    parameter: Object.entries(values).map(([name, value]) =>
      typeof value === 'string' ? { name, valueString: value } : { name, valueBoolean: value },
    ),
  })

async function aUser(scope: 'project' | 'server') {
  const email = anEmail()
  const { body } = await invite(admin, projectId, { email, scope, sendEmail: false })
  return { email, user: body.user.reference, profile: body.profile.reference }
}

t.test('a project admin changes the address of a user, which the user confirms', async (t) => {
  const { email, user, profile } = await aUser('project')
  const later = anEmail('Later')
  const changed = await update(admin, user, { email: later, updateProfileTelecom: true })
  const address = later.toLowerCase()
  t.match(changed, { status: 200, body: { email: address, emailVerified: false } })
  t.match((await admin.get<Resource>(profile)).body.telecom, [
    { value: email, use: 'old' },
    { value: address, use: 'work' },
  ])
  const [mail] = await mailsTo(services, address)
  t.match(mail, { kind: 'verify-email', subject: 'Botica Email Address Updated' })
  t.match(mail?.text, /verifyemail\/[0-9a-f-]{36}\/[0-9a-f]{32}\n/)
  t.same(await findInvitedUsers(services, email), [])
})

t.test('the confirmation may be left out', async (t) => {
  const { user } = await aUser('project')
  const email = anEmail()
  t.equal((await update(admin, user, { email, skipEmailVerification: true })).status, 200)
  t.same(await mailsTo(services, email), [])
})

t.test('rejects an invalid change and changes nothing', async (t) => {
  const [own, other, server] = [
    await aUser('project'),
    await aUser('project'),
    await aUser('server'),
  ]
  t.equal((await update(admin, own.user, { email: other.email })).status, 409)
  t.equal((await update(admin, own.user, { email: 'nobody' })).status, 400)
  t.equal((await update(admin, own.user, {})).status, 400)
  t.match(await update(superAdmin, server.user, { email: anEmail(), updateProfileTelecom: true }), {
    status: 400,
    body: { issue: [{ details: { text: 'Cannot update profile of server-scoped User' } }] },
  })
  t.equal((await findInvitedUsers(services, own.email)).length, 1)
})

t.test('rejects changes by strangers', async (t) => {
  const [own, server] = [await aUser('project'), await aUser('server')]
  const email = anEmail()
  const foreign = await botica.createTenant()
  const { client } = await botica.createMember()
  t.equal((await update(admin, server.user, { email })).status, 403)
  t.equal((await update(foreign.admin, own.user, { email })).status, 403)
  t.equal((await update(client, own.user, { email })).status, 403)
  t.equal((await update(admin, 'User/00000000-0000-4000-8000-000000000000', { email })).status, 403)
  t.equal((await update(superAdmin, server.user, { email })).status, 200)
})
