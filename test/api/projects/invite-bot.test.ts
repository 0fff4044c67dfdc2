import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import { aBot, execute, handler, type Untyped } from '../../fixtures/bots/bots.ts'
import { anEmail } from '../../fixtures/invites.ts'

const botica = await openBotica(t, { worker: true })
const { admin, project } = botica

/** Returns the result of the invite, or the error text. */
const code = handler(`
  return await medplum.invite(event.input.project, event.input.body)
    .catch((error) => ({ refused: error.outcome?.issue[0].details.text ?? error.message }))`)
const bot = await aBot(botica, code)
const invite = async (body: object, target = project.id) =>
  (await execute(admin, bot, { project: target, body })).body
const names = { resourceType: 'Practitioner', firstName: 'Ada', lastName: 'Lovelace' }
const readMembership = async () => {
  const { body } = await admin.get<Untyped>(`ProjectMembership?profile=Bot/${bot}`)
  return body.entry[0].resource
}

t.test('rejects invites by bots without admin rights', async (t) => {
  t.same(await invite({ ...names, email: anEmail() }), { refused: 'Forbidden' })
})

t.test('a bot of an administrator invites to its own Project', async (t) => {
  const membership = await readMembership()
  const path = `/admin/projects/${project.id}/members/${membership.id}`
  t.equal((await admin.post(path, { ...membership, admin: true })).status, 200)
  const email = anEmail()
  const invitation = { ...names, email, sendEmail: false }
  // The worker may cache the bot's earlier rights for some seconds.
  let made: Untyped
  await until(async () => {
    made = await invite(invitation)
    return made.refused !== 'Forbidden'
  }, 60_000)
  t.match(made, { resourceType: 'ProjectMembership', user: { display: email } })
  t.match(await invite(invitation), { refused: 'User is already a member of this project' })
  t.match(await invite({ ...invitation, firstName: '' }), { refused: 'First name is required' })
  const other = await botica.createTenant()
  t.same(await invite({ ...names, email: anEmail() }, other.project.id), { refused: 'Forbidden' })
  t.same(await invite({ ...names, email: anEmail() }, randomUUID()), { refused: 'Forbidden' })
})
