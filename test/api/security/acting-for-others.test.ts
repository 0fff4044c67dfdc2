/** Acting for another member gives no rights that the caller lacks. */
import t from 'tap'
import { scopedClient } from '../../fixtures/attacks/scoped.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { type Client, signIn } from '../../fixtures/client.ts'

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

async function limitedTo(resourceType: string): Promise<Client & Credentials> {
  const resource = [{ resourceType, interaction: ['read', 'search'] }]
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
