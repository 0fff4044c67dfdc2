import { randomUUID } from 'node:crypto'
import t from 'tap'
import { openBotica, statementsAsked } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { aPerson } from '../../fixtures/people.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin, superAdmin, services, project } = botica

const people = [await aPerson(services, project), await aPerson(services, project)] as const
const [ann, bob] = people.map(({ membership, email }) => ({
  id: membership.id ?? '',
  email,
  profile: String((membership.profile as Raw).reference),
}))
if (ann === undefined || bob === undefined) throw new Error('There are two')
const [type] = ann.profile.split('/')
const toId = (reference: string) => reference.replace(/.*\//, '')
for (const [person, family] of [
  [ann, 'Registra'],
  [bob, 'Nobody'],
] as const) {
  const { body } = await admin.get<Raw>(person.profile)
  await admin.put(person.profile, { ...body, name: [{ family }] })
}
const unknown = await admin.create({ resourceType: `${type}`, name: [{ family: 'Registra' }] })
const client = await botica.createMember({ name: 'Joined client' })
const event = await client.client.create({
  resourceType: 'AuditEvent',
  type: { code: 'rest' },
  recorded: '2026-01-01T00:00:00Z',
  agent: [{ who: { reference: `ClientApplication/${client.id}` }, requestor: true }],
  source: { observer: { reference: `ClientApplication/${client.id}` } },
  entity: [{ what: { reference: `ProjectMembership/${ann.id}` } }],
})

const found = async (query: string, asker: Client = admin): Promise<string[]> => {
  const { status, body, text } = await asker.get<Raw>(query)
  if (status !== 200) throw new Error(`${query} answered ${status}: ${text}`)
  return (body.entry ?? []).map(({ resource }: Raw) => resource.id).sort()
}
const { body: memberships } = await admin.get<Raw>(
  `ProjectMembership?profile=ClientApplication/${client.id}`,
)
const ofClient: string = memberships.entry[0].resource.id

const CASES: readonly (readonly [query: string, ...expected: string[]])[] = [
  [`ProjectMembership?profile:${type}.name=registra`, ann.id],
  ['ProjectMembership?profile.name=registra', ann.id],
  [`ProjectMembership?profile:${type}.name=registra,nobody`, ann.id, bob.id],
  [`ProjectMembership?profile:${type}.family:not=registra&profile-type=${type}`, bob.id],
  ['ProjectMembership?profile:ClientApplication.name=joined', ofClient],
  ['ProjectMembership?profile.name=unheard of'],
  [`ProjectMembership?profile:${type}._id=${toId(ann.profile)}`, ann.id],
  [`ProjectMembership?_filter=profile:${type}.family eq Registra`, ann.id],
  [
    `ProjectMembership?_filter=profile:${type}.family eq Registra or profile:${type}.family eq Nobody`,
    ann.id,
    bob.id,
  ],
  [`${type}?_has:ProjectMembership:profile:user:User.email=${ann.email}`, toId(ann.profile)],
  [`${type}?family=registra&_has:ProjectMembership:profile:_lastUpdated=gt2020`, toId(ann.profile)],
  [`ClientApplication?_has:ProjectMembership:profile:_id=${ofClient}`, client.id],
  [`ClientApplication?_has:ProjectMembership:profile:_id=${ann.id}`],
  [`AuditEvent?entity:ProjectMembership.profile=${ann.profile}`, event.id],
  [`AuditEvent?entity:ProjectMembership.profile:${type}.name=registra`, event.id],
  [`AuditEvent?entity:ProjectMembership.profile:${type}.name=nobody`],
  ['AuditEvent?agent:ClientApplication.name=joined&type=rest', event.id],
  [`ProjectMembership?_has:AuditEvent:entity:agent:ClientApplication.name=joined`, ann.id],
]

t.test('joins from the registry into a Project and back', async (t) => {
  for (const [query, ...expected] of CASES) {
    t.same(await found(query), expected.toSorted(), query)
    const { body } = await admin.get<Raw>(`${query}&_summary=count`)
    t.equal(body.total, expected.length, `total of ${query}`)
  }
  t.ok((await found(`${type}?family=registra`)).includes(unknown.id))
})

t.test('joins them in GraphQL and conditional writes', async (t) => {
  const query = `{ ProjectMembershipList(_filter: "profile:${type}.family eq Registra") { id } }`
  const { body } = await admin.post<Raw>('$graphql', { query })
  t.same(body, { data: { ProjectMembershipList: [{ id: ann.id }] } })
  const url = `${type}?_has:ProjectMembership:profile:_id=${ann.id}`
  const patch = [{ op: 'add', path: '/active', value: true }]
  t.match((await admin.patch(url, patch)).body, { id: toId(ann.profile), active: true })
})

t.test('runs one extra statement for each such join only', async (t) => {
  const count = (query: string) => statementsAsked(services, admin, () => admin.get(query))
  t.equal(await count(`ProjectMembership?profile:${type}.name=registra`), 2)
  t.equal(await count(`ProjectMembership?profile:${type}._id=x`), 1)
  t.equal(await count('ProjectMembership?user:User.email=x'), 1)
})

t.test('joins only through resources that the caller may search', async (t) => {
  const other = await botica.createTenant()
  t.same(await found('ProjectMembership?profile.name=registra', other.admin), [])
  const { client: member } = await memberUnder(botica, {
    entries: [{ resourceType: `${type}` }, { resourceType: 'AuditEvent' }],
  })
  t.same(await found(`${type}?_has:ProjectMembership:profile:_id=${ann.id}`, member), [])
  t.same(await found(`AuditEvent?entity:ProjectMembership.profile=${ann.profile}`, member), [])
  t.equal((await member.get('ProjectMembership?profile.name=registra')).status, 403)
  const { client: blind } = await memberUnder(botica, {
    entries: [{ resourceType: `${type}`, hiddenFields: ['name'] }],
    more: { name: randomUUID() },
  })
  t.equal((await blind.get(`${type}?name=registra`)).status, 403)
})

t.test('joins the Project that a super admin names', async (t) => {
  const query = `ProjectMembership?_project=${project.id}&profile:${type}.name=registra`
  t.same(await found(query, superAdmin), [ann.id])
})

t.test('rejects unsupported joins by name', async (t) => {
  for (const [name, text] of [
    ['_project:Project.name', 'Search parameter _project cannot be chained'],
    ['_compartment.name', 'Search parameter _compartment cannot be chained'],
    ['name.family', 'Search parameter name is not a reference and cannot be chained'],
  ] as const) {
    const { status, body } = await admin.get(`${type}?${name}=x`)
    t.equal(status, 400, name)
    t.match(body, { issue: [{ details: { text }, expression: [name] }] }, name)
  }
})
