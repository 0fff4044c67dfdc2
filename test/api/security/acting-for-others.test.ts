/** Acting for another member gives no rights that the caller lacks. */
import t from 'tap'
import { scopedClient } from '../../fixtures/attacks/scoped.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { type Client, signIn } from '../../fixtures/client.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { baseUrl, services, superAdmin } = botica
const { superAdminClientId = '', superAdminClientSecret = '' } = services.config
const { body: me } = await superAdmin.get<{ project: { id: string } }>('/auth/me')
const CLIENTS = `/admin/projects/${me.project.id}/client`
const whole = actingFor(superAdminClientId)

interface Credentials {
  readonly id: string
  readonly secret: string
}

function actingFor(id: string) {
  return { 'X-Medplum-On-Behalf-Of': `ClientApplication/${id}` }
}

async function limitedTo(...types: readonly string[]): Promise<Client & Credentials> {
  const resource = types.map((resourceType) => ({
    resourceType,
    interaction: ['read', 'search'],
  }))
  const policy = await superAdmin.create({ resourceType: 'AccessPolicy', resource })
  const accessPolicy = { reference: `AccessPolicy/${policy.id}` }
  const { body } = await superAdmin.post<Credentials>(CLIENTS, { name: 'Limited', accessPolicy })
  return { ...(await signIn(baseUrl, body.id, body.secret)), ...body }
}

t.test('keeps the policy of a super admin acting for a member without one', async (t) => {
  const limited = await limitedTo('Patient')
  t.equal((await limited.get('Patient')).status, 200)
  t.equal((await limited.get('Observation')).status, 403)
  for (const path of ['Observation', 'Login', 'Patient', '/admin/super/queues']) {
    t.equal((await limited.get(path, whole)).status, 403, path)
  }
  const project = { resourceType: 'Project', name: 'Theirs' }
  t.equal((await limited.post('/admin/Project', project, whole)).status, 403)
  const other = await limitedTo('Observation')
  t.equal((await limited.get('Observation', actingFor(other.id))).status, 403)
})

t.test('lets a super admin without a policy act for any member, within the scope', async (t) => {
  const limited = await limitedTo('Patient')
  t.equal((await superAdmin.get('Patient', actingFor(limited.id))).status, 200)
  t.equal((await superAdmin.get('Observation', actingFor(limited.id))).status, 403)
  const credentials = { id: superAdminClientId, secret: superAdminClientSecret }
  const app = await scopedClient(botica, credentials, 'system/Patient.rs __admin')
  t.equal((await app.get('Patient', whole)).status, 200)
  t.equal((await app.get('Observation', whole)).status, 403)
})

t.test('explains no access to data that the caller may not read', async (t) => {
  const { client, id } = await botica.createMember()
  await botica.admin.create(aPatient({ name: [{ family: 'Guessed' }] }))
  t.match((await client.get('Patient?name=Guessed&_total=accurate')).body, { total: 1 })
  const found = await superAdmin.get<{ entry: { resource: { id: string } }[] }>(
    `ProjectMembership?profile=ClientApplication/${id}`,
  )
  const membership = `ProjectMembership/${found.body.entry[0]?.resource.id}`
  const explain = (as: Client, search = 'Patient?name=Guessed') =>
    as.post('AccessPolicy/$explain', {
      resourceType: 'Parameters',
      parameter: [
        { name: 'membership', valueString: membership },
        { name: 'search', valueString: search },
      ],
    })
  const counted = [{}, { valueBoolean: true }, {}, { name: 'total', valueInteger: 1 }]
  for (const as of [botica.admin, superAdmin]) {
    t.match(await explain(as), { status: 200, body: { parameter: counted } })
  }
  const limited = await limitedTo('Project', 'ProjectMembership', 'User', 'AccessPolicy')
  t.equal((await limited.get(membership)).status, 200)
  t.equal((await explain(limited)).status, 403)

  const credentials = { id: superAdminClientId, secret: superAdminClientSecret }
  const app = await scopedClient(botica, credentials, '__admin user/ProjectMembership.rs')
  const { adminCredentials } = botica
  const own = await scopedClient(botica, adminCredentials, '__admin user/ProjectMembership.rs')
  const hidden = [{}, { valueBoolean: false }]
  for (const as of [app, own]) {
    t.match(await explain(as), { status: 200, body: { parameter: hidden } })
  }
})
