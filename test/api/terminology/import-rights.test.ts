import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { changeMembership, memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin, superAdmin, project } = botica
const shared = await botica.createTenant()
await superAdmin.patch(`Project/${project.id}`, [
  { op: 'add', path: '/link', value: [{ project: { reference: `Project/${shared.project.id}` } }] },
])
botica.services.principals.forget()

const parameters = (...parameter: object[]) => ({ resourceType: 'Parameters', parameter })
const concept = { name: 'concept', valueCoding: { code: 'new', display: 'New' } }
const mapping = {
  name: 'mapping',
  part: [
    { name: 'source', valueCoding: { system: 'urn:a', code: 'new' } },
    { name: 'target', valueCoding: { system: 'urn:b', code: 'B' } },
  ],
}

const aCodeSystem = (url: string, more: object = {}) => ({
  resourceType: 'CodeSystem',
  url,
  status: 'active',
  content: 'not-present',
  ...more,
})

async function isValid(client: Client, url: string): Promise<boolean> {
  const { body } = await client.get<Raw>(`CodeSystem/$validate-code?url=${url}&code=new`)
  return body.parameter[0].valueBoolean
}

t.test('returns 403 for imports into resources of a linked Project', async (t) => {
  const url = 'https://example.org/shared'
  const codeSystem = await shared.admin.create(aCodeSystem(url))
  const conceptMap = await shared.admin.create({
    resourceType: 'ConceptMap',
    url: `${url}/map`,
    status: 'active',
  })
  t.equal((await admin.get(`CodeSystem/${codeSystem.id}`)).status, 200, 'it is readable')

  const concepts = await admin.post(`CodeSystem/${codeSystem.id}/$import`, parameters(concept))
  t.equal(concepts.status, 403)
  const mappings = await admin.post(`ConceptMap/${conceptMap.id}/$import`, parameters(mapping))
  t.equal(mappings.status, 403)
  t.equal(await isValid(shared.admin, url), false)
  const translate = `ConceptMap/$translate?url=${url}/map&system=urn:a&code=new`
  const { body } = await shared.admin.get<Raw>(translate)
  t.match(body.parameter, [{ name: 'result', valueBoolean: false }])

  const own = await shared.admin.post(`CodeSystem/${codeSystem.id}/$import`, parameters(concept))
  t.equal(own.status, 200)
  t.equal(await isValid(admin, url), true)
})

t.test('imports only into code systems that the criteria for update cover', async (t) => {
  const reading = ['read', 'search']
  const entries = [
    { resourceType: 'CodeSystem', criteria: 'CodeSystem?status=draft' },
    { resourceType: 'CodeSystem', interaction: reading },
    { resourceType: 'ConceptMap', interaction: reading },
  ]
  const { id, client } = await memberUnder(botica, { entries })
  await changeMembership(botica, `ClientApplication/${id}`, { admin: true })
  for (const [status, expected] of [
    ['draft', 200],
    ['active', 403],
  ] as const) {
    const url = `https://example.org/${status}`
    const codeSystem = await admin.create(aCodeSystem(url, { status }))
    const system = { name: 'system', valueUri: url }
    const byUrl = await client.post('CodeSystem/$import', parameters(system, concept))
    t.equal(byUrl.status, expected, `${status} by its url`)
    t.equal(await isValid(admin, url), expected === 200, status)
    const byId = await client.post(`CodeSystem/${codeSystem.id}/$import`, parameters(concept))
    t.equal(byId.status, expected, `${status} by its id`)
    t.equal(await isValid(admin, url), expected === 200, status)
  }
})
