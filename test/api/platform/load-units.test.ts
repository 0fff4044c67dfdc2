import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Answer, Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Result } from '../../fixtures/graphql.ts'
import { aPatient } from '../../fixtures/resources.ts'

const botica = await openBotica(t, { env: { RATE_LIMIT_PER_MINUTE: '60000' } })
const { services, superAdmin } = botica

interface Answered extends Resource {
  readonly entry: readonly { readonly response: { readonly status: string } }[]
}

async function aProject(settings: Record<string, boolean | number>) {
  const tenant = await botica.createTenant()
  const systemSetting = Object.entries(settings).map(([name, value]) =>
    typeof value === 'number' ? { name, valueInteger: value } : { name, valueBoolean: value },
  )
  const path = `Project/${tenant.project.id}`
  const saved = await superAdmin.put(path, { ...tenant.project, systemSetting })
  if (saved.status !== 200) throw new Error(saved.text)
  services.principals.forget()
  return tenant
}

function remainingUnits({ headers }: Answer<unknown>): number | undefined {
  const found = /"fhirInteractions";r=(\d+);t=\d+/.exec(headers.get('ratelimit') ?? '')?.[1]
  return found === undefined ? undefined : Number(found)
}

/** Repeats `work` if a minute ended meanwhile, which resets the counters. */
async function inOneMinute<T>(work: () => Promise<T>): Promise<T> {
  for (;;) {
    const minute = Math.floor(Date.now() / 60_000)
    const result = await work()
    if (Math.floor(Date.now() / 60_000) === minute) return result
  }
}

const create = (client: Client) => client.post('Patient', aPatient())
const post = (count: number) =>
  Array.from({ length: count }, () => ({
    request: { method: 'POST', url: 'Patient' },
    resource: aPatient(),
  }))

t.test('counts no quota unless the Project enables it', async (t) => {
  const { admin } = await aProject({ enableFhirQuota: false, userFhirQuota: 1 })
  const answer = await admin.get('Patient')
  t.equal(answer.status, 200)
  t.match(answer.headers.get('ratelimit'), /^"requests";r=\d+;t=\d+$/)
})

t.test('charges each interaction its units', async (t) => {
  const left = await inOneMinute(async () => {
    const { admin } = await aProject({ enableFhirQuota: true })
    return [
      remainingUnits(await admin.get('Patient')),
      remainingUnits(await create(admin)),
      remainingUnits(await admin.get('Patient/_history')),
      remainingUnits(await admin.get('Patient?_count=1')),
      remainingUnits(await admin.get('Patient/$csv?_fields=id')),
      remainingUnits(await admin.get('metadata')),
    ]
  })
  t.same(left, [49_980, 49_880, 49_870, 49_850, 49_830, 49_830])
})

t.test('returns Retry-After to a member over its quota', async (t) => {
  const [first, refused] = await inOneMinute(async () => {
    const { admin } = await aProject({ enableFhirQuota: true, userFhirQuota: 150 })
    return [await create(admin), await create(admin)] as const
  })
  t.equal(first.status, 201)
  t.match(refused, {
    status: 429,
    body: { id: 'too-many-requests', issue: [{ code: 'throttled', diagnostics: /"limit":150/ }] },
  })
  const limits = /^"requests";r=\d+;t=\d+, "fhirInteractions";r=0;t=\d+$/
  t.match(refused.headers.get('ratelimit'), limits)
  t.ok(Number(refused.headers.get('retry-after')) > 0)
})

t.test(
  'charges a GraphQL query for reads, searches and writes, and fails it without units left',
  async (t) => {
    const [costs, refused] = await inOneMinute(async () => {
      const { admin } = await aProject({ enableFhirQuota: true, userFhirQuota: 360 })
      const { id } = await admin.create(aPatient())
      await admin.create(aPatient())
      const query = (text: string) => admin.post<Result>('$graphql', { query: text })
      return [
        [
          remainingUnits(await query('{ __typename }')),
          remainingUnits(await query(`{ Patient(id: "${id}") { id } }`)),
          remainingUnits(
            await query('{ PatientList { EncounterList(_reference: patient) { id } } }'),
          ),
        ],
        await query(`{ Patient(id: "${id}") { id } PatientList { EncounterList(_reference: patient)
        { id } } two: PatientList(_count: 1) { id } three: PatientList(_count: 2) { id } }`),
      ] as const
    })
    t.same(costs, [160, 159, 99])
    t.equal(refused.status, 200)
    t.match(refused.body.errors?.[0], { message: 'Too Many Requests', extensions: { status: 429 } })
    t.match(refused.body.data, { Patient: { id: String }, two: [{ id: String }] })
  },
)

t.test('supports a quota and a menu per member', async (t) => {
  const { project, admin } = await aProject({ enableFhirQuota: true, userFhirQuota: 5000 })
  const menu = [{ title: 'Ward', link: [{ name: 'Patients', target: '/Patient' }] }]
  const configuration = await admin.create({
    resourceType: 'UserConfiguration',
    option: [{ id: 'fhirQuota', valueInteger: 120 }],
  })
  const reference = `UserConfiguration/${configuration.id}`
  const aMember = async () => {
    const { id, client } = await botica.createMember({}, project.id)
    const found = await admin.get<{ entry: { resource: { id: string } }[] }>(
      `ProjectMembership?profile=ClientApplication/${id}`,
    )
    const path = `/admin/projects/${project.id}/members/${found.body.entry[0]?.resource.id}`
    const changed = await admin.patch(path, [
      { op: 'add', path: '/userConfiguration', value: { reference } },
    ])
    t.equal(changed.status, 200, changed.text)
    services.principals.forget()
    return client
  }
  const [client, statuses] = await inOneMinute(async () => {
    const client = await aMember()
    return [client, [await create(client), await create(client), await create(admin)]] as const
  })
  t.same(
    statuses.map(({ status }) => status),
    [201, 429, 201],
  )
  const readConfig = async () => (await client.get<{ config: object }>('/auth/me')).body.config
  t.match(await readConfig(), { id: configuration.id, menu: [{ title: 'Favorites' }] })
  const saved = await admin.put(reference, { ...configuration, menu })
  t.equal(saved.status, 200, saved.text)
  services.principals.forget()
  t.match(await readConfig(), { id: configuration.id, menu })
  t.match((await admin.get('/auth/me')).body, { config: { id: undefined } })
})

t.test(
  'shares the quota of a Project among its members, and disables a limit with -1',
  async (t) => {
    const statuses = await inOneMinute(async () => {
      const settings = { enableFhirQuota: true, userFhirQuota: -1, totalFhirQuota: 250 }
      const { project, admin } = await aProject(settings)
      const other = await botica.createMember({}, project.id)
      return [await create(admin), await create(other.client), await create(admin)]
    })
    t.same(
      statuses.map(({ status }) => status),
      [201, 201, 429],
    )
  },
)

t.test('rejects the batch entry that reaches the limit and all later ones', async (t) => {
  const { status, body } = await inOneMinute(async () => {
    const { admin } = await aProject({ enableFhirQuota: true, userFhirQuota: 350 })
    const read = { request: { method: 'GET', url: 'Patient/unknown' } }
    const entry = [read, ...post(5)]
    return admin.post<Answered>('', { resourceType: 'Bundle', type: 'batch', entry })
  })
  t.equal(status, 200)
  t.same(
    body.entry.map(({ response }) => response.status),
    ['429', '201', '201', '201', '429', '429'],
  )
})

t.test('admits a transaction while any units are left, and charges it fully', async (t) => {
  const statuses = await inOneMinute(async () => {
    const { admin } = await aProject({ enableFhirQuota: true, userFhirQuota: 150 })
    const bundle = { resourceType: 'Bundle', type: 'transaction', entry: post(20) }
    return [await admin.post('', bundle), await admin.post('', bundle), await admin.get('Patient')]
  })
  t.same(
    statuses.map(({ status }) => status),
    [200, 429, 429],
  )
})
