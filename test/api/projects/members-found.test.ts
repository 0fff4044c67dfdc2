import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPerson } from '../../fixtures/people.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services, project } = botica

interface Found extends Resource {
  readonly entry?: readonly { readonly resource: Resource }[]
}

async function findIds(client: Client, path: string): Promise<unknown[]> {
  const { status, body, text } = await client.get<Found>(path)
  if (status !== 200) throw new Error(text)
  return (body.entry ?? []).map(({ resource }) => resource.id)
}

t.test('members are found by the address and the scope of their users', async (t) => {
  const other = await botica.createTenant()
  const [server, scoped, foreign] = [
    await aPerson(services, project),
    await aPerson(services, project, { isProjectScoped: true }),
    await aPerson(services, other.project),
  ]
  // A User of the same address, elsewhere.
  await aPerson(services, other.project, { user: server.user })
  const byEmail = (email: string) => `ProjectMembership?user:User.email=${email}`
  for (const { email, membership } of [server, scoped]) {
    t.same(await findIds(admin, byEmail(email)), [membership.id])
  }
  t.same(await findIds(admin, byEmail(foreign.email)), [])
  t.same(await findIds(admin, `ProjectMembership?user:User.project=Project/${project.id}`), [
    scoped.membership.id,
  ])
  t.equal((await findIds(superAdmin, byEmail(server.email))).length, 2)
  t.same(await findIds(admin, `User?email=${server.email}`), [], 'the user itself is not theirs')
  const { client } = await botica.createMember()
  t.equal((await client.get(byEmail(server.email))).status, 403)
})

t.test('reports deletions by search like those by id', async (t) => {
  const events = async () => {
    const { body } = await admin.get<Found>('AuditEvent?_count=1000&_sort=-_lastUpdated')
    return JSON.stringify(body.entry ?? [])
  }
  const { membership: alone } = await aPerson(services, project)
  const path = `ProjectMembership/${alone.id}`
  const deleted = await admin.del(`ProjectMembership?_id=${alone.id}`)
  t.equal(deleted.status, 200, deleted.text)
  t.equal((await admin.get(path)).status, 410)
  t.match(await events(), new RegExp(`"delete".*${path}|${path}.*"delete"`))

  const pair = [await aPerson(services, project), await aPerson(services, project)]
  const ids = pair.map(({ membership }) => membership.id)
  const url = `ProjectMembership?_id=${ids.join(',')}&_count=2`
  const bundle = {
    resourceType: 'Bundle',
    type: 'transaction',
    entry: [{ request: { method: 'DELETE', url } }],
  }
  const answer = await admin.post('', bundle)
  t.equal(answer.status, 200, answer.text)
  const told = await events()
  for (const id of ids) t.match(told, `ProjectMembership/${id}`)
})

t.test('warns of the ended login when a profile is deleted by search', async (t) => {
  const { membership, profile } = await aPerson(services, project)
  const { body } = await admin.del(`Practitioner?_id=${profile.id}`)
  t.match(body, { id: 'ok', issue: [{}, { severity: 'warning', code: 'business-rule' }] })
  t.match(JSON.stringify(body), `ProjectMembership/${membership.id}`)
})
