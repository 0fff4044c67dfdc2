/** Imports the change of users, to store a damaged password hash. */
import { createHook } from 'node:async_hooks'
import t from 'tap'
import { patchUser } from '../../../shared/projects/users.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { aPerson, PASSWORD } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { anonymous, services, project } = botica

/** Number of password hashes started in this process, including the service's. */
let hashes = 0
const hook = createHook({
  init: (_id, type) => {
    if (type === 'SCRYPTREQUEST') hashes += 1
  },
})
hook.enable()
t.teardown(() => hook.disable())

/** The work of a sign-in, counted instead of timed: times depend on the machine. */
async function measureWork(email: string, password: string) {
  const before = hashes
  const answer = await anonymous.post('/auth/login', { email, password })
  const { text } = answer
  return {
    status: answer.status,
    // Request ids differ.
    text: text.replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g, 'id'),
    hashes: hashes - before,
  }
}

t.test('answers an unknown user and a wrong password with equal work and content', async (t) => {
  const known = await aPerson(services, project)
  const elsewhere = await aPerson(services, project, { isProjectScoped: true })
  const invited = await aPerson(services, project)
  await patchUser(services.repository, invited.user.id, { passwordHash: undefined })
  const odd = await aPerson(services, project)
  await patchUser(services.repository, odd.user.id, { passwordHash: 'no hash of ours' })

  const wrong = await measureWork(known.email, 'not the password')
  t.match(wrong, { status: 400, text: /Email or password is invalid/, hashes: 1 })
  t.same(await measureWork('nobody@example.org', PASSWORD), wrong, 'unknown')
  t.same(await measureWork(elsewhere.email, PASSWORD), wrong, 'of a Project that was not named')
  t.same(await measureWork(invited.email, PASSWORD), wrong, 'without a password')
  t.same(await measureWork(odd.email, PASSWORD), wrong, 'with a hash that cannot be read')
  const right = await measureWork(known.email, PASSWORD)
  t.match(right, { status: 200, hashes: 1 })
})

t.test('computes no password hash for a client with a wrong secret', async (t) => {
  const before = hashes
  const { id } = await botica.createMember()
  const form = { grant_type: 'client_credentials', client_id: id, client_secret: 'wrong' }
  await fetch(`${botica.baseUrl}oauth2/token`, { method: 'POST', body: new URLSearchParams(form) })
  t.equal(hashes, before)
})
