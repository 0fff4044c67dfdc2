/** Bots that send a Project's mails, triggered by invites and resets. */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const PATIENCE_MS = 90_000
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), WORKER_QUEUES: 'bots-sync,change' },
})
const { admin, anonymous, project } = botica

const found = async (query: string): Promise<Untyped[]> => {
  const { body } = await admin.get<Untyped>(query)
  return (body.entry ?? []).map(({ resource }: Untyped) => resource)
}

/** Bot code that reads the data of the mail. */
const bot = await aBot(
  botica,
  handler(`
    const { id, secret, type, redirectUri, user } = await medplum.readResource('UserSecurityRequest', event.input.id)
    const [{ profile }] = await medplum.searchResources('ProjectMembership', { user: user.reference })
    const link = 'https://app.example/setpassword/' + id + '/' + secret
    const mail = { id, secret, type, redirectUri, link, to: profile.display, trace: event.headers['x-trace-id'],
      change: event.headers['x-medplum-interaction'] }
    await medplum.createResource({ resourceType: 'Basic', code: { text: JSON.stringify(mail) } })`),
)
const [membership] = await found(`ProjectMembership?profile=Bot/${bot}`)
await admin.put(`ProjectMembership/${membership.id}`, { ...membership, admin: true })
await admin.create(
  aSubscription('UserSecurityRequest', `Bot/${bot}`, {
    extension: [
      {
        url: 'https://medplum.com/fhir/StructureDefinition/subscription-supported-interaction',
        valueCode: 'create',
      },
    ],
  }) as Resource,
)

const mails = async (count: number): Promise<Untyped[]> => {
  let kept: Untyped[] = []
  await until(async () => {
    kept = (await found('Basic?_sort=_lastUpdated')).map(({ code }) => JSON.parse(code.text))
    return kept.length >= count
  }, PATIENCE_MS)
  return kept
}

const json = { 'Content-Type': 'application/json' }
const email = anEmail('patient')

t.test(
  'an invite and a reset of a project scoped user reach the bot, with their secret',
  async (t) => {
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    const details = { resourceType: 'Patient', email, sendEmail: false }
    t.equal((await invite(admin, project.id, details, { traceparent })).status, 200)
    const [invited] = await mails(1)
    t.match(invited, {
      type: 'invite',
      change: 'create',
      to: 'George Washington',
      trace: '0af7651916cd43dd8448eb211c80319c',
    })

    const redirectUri = 'https://app.example/'
    const asked = { email, projectId: project.id, sendEmail: false, redirectUri }
    t.equal((await anonymous.post('/auth/resetpassword', asked, json)).status, 200)
    const [, reset] = await mails(2)
    t.match(reset, { type: 'reset', redirectUri })

    const { id, secret } = invited
    const password = 'correct horse 9 battery'
    const set = await anonymous.post('/auth/setpassword', { id, secret, password }, json)
    t.equal(set.status, 200)
    const used = (await admin.get<Untyped>(`UserSecurityRequest/${id}`)).body
    t.match(used, { used: true, secret: undefined })
  },
)

t.test('starts no bot for server-scoped users', async (t) => {
  const other = anEmail()
  t.equal((await invite(admin, project.id, { email: other, sendEmail: false })).status, 200)
  // Once this one is handled, all earlier ones are too.
  const details = { resourceType: 'Patient', email: anEmail('later'), sendEmail: false }
  t.equal((await invite(admin, project.id, details)).status, 200)
  const all = await mails(3)
  t.equal(all.length, 3)
  t.same((await found(`UserSecurityRequest?_count=100`)).length, 3)
})
