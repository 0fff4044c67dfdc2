/** Elements, search parameters and features that Medplum's definitions have since 5.0.10. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t)
const { admin, superAdmin, project } = botica

interface Found {
  readonly entry?: readonly { readonly resource: { readonly id: string } }[]
}

async function found(query: string, client: Client = admin): Promise<readonly string[]> {
  const { status, body, text } = await client.get<Found>(query)
  if (status !== 200) throw new Error(`${query} answered ${status}: ${text}`)
  return (body.entry ?? []).map(({ resource }) => resource.id)
}

t.test('finds clinical resources by the parameters of Medplum', async (t) => {
  const patient = await admin.create(aPatient())
  const code = { coding: [{ system: 'urn:codes', code: 'walk' }] }
  const activity = await admin.create({ resourceType: 'ActivityDefinition', status: 'draft', code })
  t.same(await found('ActivityDefinition?code=urn:codes|walk'), [activity.id])
  t.same(await found('ActivityDefinition?code=run'), [])

  const send = (priority: string) =>
    admin.create({ resourceType: 'Communication', status: 'completed', priority })
  const routine = await send('routine')
  const stat = await send('stat')
  const urgent = await send('urgent')
  t.same(await found('Communication?priority=stat'), [stat.id])
  t.same(await found('Communication?_sort=-priority-order'), [stat.id, urgent.id, routine.id])

  const origin = await admin.create({
    resourceType: 'Provenance',
    target: [{ reference: `Patient/${patient.id}` }],
    recorded: '2026-01-01T00:00:00Z',
    activity: code,
    agent: [{ who: { reference: `Patient/${patient.id}` } }],
  })
  t.same(await found('Provenance?activity=walk'), [origin.id])

  const parent = await admin.create({ resourceType: 'HealthcareService', name: 'Clinic' })
  const service = await admin.create({
    resourceType: 'HealthcareService',
    offeredIn: [{ reference: `HealthcareService/${parent.id}` }],
  })
  t.same(await found(`HealthcareService?offered-in=HealthcareService/${parent.id}`), [service.id])
})

t.test('finds projects by feature and link, and memberships by their flags', async (t) => {
  const other = await botica.createTenant()
  const path = `Project/${project.id}`
  const { body: stored } = await superAdmin.get<object>(path)
  const features = ['bots', 'scheduling', 'log-streaming', 'async-batch', 'range-search']
  const link = [{ project: { reference: `Project/${other.project.id}` } }]
  const updated = await superAdmin.put(path, { ...stored, features, link })
  t.equal(updated.status, 200, updated.text)
  t.ok((await found('Project?features=range-search', superAdmin)).includes(project.id ?? ''))
  t.same(await found(`Project?link=Project/${other.project.id}`, superAdmin), [project.id])

  const member = await botica.createMember()
  const [id = ''] = await found(`ProjectMembership?profile=ClientApplication/${member.id}`)
  t.notOk((await found('ProjectMembership?admin=true')).includes(id))
  const { body } = await admin.get<object>(`ProjectMembership/${id}`)
  const changed = { ...body, admin: true, active: false }
  t.equal((await admin.put(`ProjectMembership/${id}`, changed)).status, 200)
  t.ok((await found('ProjectMembership?admin=true')).includes(id))
  t.same(await found('ProjectMembership?active=false'), [id])
})

t.test('never shows or searches the codes of a login', async (t) => {
  const login = await superAdmin.create({
    resourceType: 'Login',
    user: { reference: `User/${project.id}` },
    authMethod: 'pre-authorized',
    authTime: '2026-01-01T00:00:00Z',
    preAuthorizedCodeHash: 'planted-hash',
    emailMfa: { codeHash: 'planted-code', expiresAt: '2026-01-01T00:00:00Z' },
  })
  for (const path of [`Login/${login.id}`, `Login/${login.id}/_history`, `Login?_id=${login.id}`]) {
    const { status, text } = await superAdmin.get(path)
    t.equal(status, 200)
    t.match(text, login.id, path)
    t.notMatch(text, /planted|codeHash|CodeHash/, path)
  }
  const guess = await superAdmin.get('Login?pre-authorized-code-hash=planted-hash')
  t.notMatch(guess.text, login.id)
})

t.test('stores new elements of clients, and rejects those without an effect', async (t) => {
  const launchIdentifierSystems = [{ resourceType: 'Patient', system: 'urn:mrn' }]
  const client = { resourceType: 'ClientApplication', name: 'App' }
  const stored = await admin.post('ClientApplication', { ...client, launchIdentifierSystems })
  t.match(stored, { status: 201, body: { launchIdentifierSystems } })

  const provider = {
    authorizeUrl: 'https://id.example/authorize',
    tokenUrl: 'https://id.example/token',
    userInfoUrl: 'https://id.example/user',
    clientId: 'a',
    clientSecret: 'b',
  }
  const rejected: readonly (readonly [string, object])[] = [
    ['ClientApplication.grantType', { ...client, grantType: ['client_credentials'] }],
    ['ClientApplication.responseType', { ...client, responseType: ['code'] }],
    ['ClientApplication.certificateTrustStore', { ...client, certificateTrustStore: 'PEM' }],
    [
      'ClientApplication.identityProvider.identitySource',
      { ...client, identityProvider: { ...provider, identitySource: 'subject' } },
    ],
    [
      'DomainConfiguration.identityProvider.userInfoApiKey',
      {
        resourceType: 'DomainConfiguration',
        domain: 'a.example',
        identityProvider: { ...provider, userInfoApiKey: 'key' },
      },
    ],
  ]
  for (const [expression, resource] of rejected) {
    const { resourceType: type } = resource as { resourceType: string }
    const answer = await superAdmin.post(type, resource)
    const issue = [{ code: 'not-supported', expression: [expression] }]
    t.match(answer, { status: 400, body: { issue } }, expression)
  }
})
