/** A member tries to control reads, writes and calls of others with its own definitions. */
import t from 'tap'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { aBot, execute, handler } from '../../../fixtures/bots/bots.ts'
import type { Client } from '../../../fixtures/client.ts'
import { changedEveryWay } from '../../../fixtures/http/write-paths.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'
import { memberUnder } from '../../../fixtures/policy/policy.ts'
import { aSearchParameter } from '../../../fixtures/resources.ts'

const botica = await openBotica(t, { worker: true })
const { admin, project } = botica
const free = await botica.createMember()
const starred = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
const plain = [free.client, starred.client]
const DEFINING = ['OperationDefinition', 'StructureDefinition', 'ValueSet', 'CodeSystem']
const named = await memberUnder(botica, {
  entries: [...DEFINING, 'ConceptMap', 'SearchParameter', 'GraphDefinition', '*'].map(
    (resourceType) => ({ resourceType }),
  ),
})
const JSON_TYPE = { 'Content-Type': 'application/json' }

const IMPLEMENTATION =
  'https://medplum.com/fhir/StructureDefinition/operationDefinition-implementation'
const anOperation = (code: string, bot: string | undefined, more: object = {}) => ({
  resourceType: 'OperationDefinition',
  ...(bot === undefined
    ? {}
    : { extension: [{ url: IMPLEMENTATION, valueReference: { reference: `Bot/${bot}` } }] }),
  name: code,
  status: 'active',
  kind: 'operation',
  code,
  system: true,
  type: false,
  instance: false,
  ...more,
})
const called = async (client: Client, code: string) =>
  (await client.post(`$${code}`, '{"card":"4711"}', JSON_TYPE)).body

t.test(
  'rejects creation, changes and deletion of implemented operations by plain members',
  async (t) => {
    const bot = await aBot(botica, handler('return { by: "the clinic" }'))
    const thief = await aBot(botica, handler('return { by: "a thief", stolen: event.input }'))
    const operation = await admin.create(anOperation('charge', bot))
    const other = await admin.create(anOperation('refund', bot))
    for (const client of plain) {
      const added = await client.post<Raw>('OperationDefinition', anOperation('charge', thief))
      t.match(added, {
        status: 403,
        body: { issue: [{ expression: ['OperationDefinition.extension'] }] },
      })
      for (const changes of [
        { extension: anOperation('charge', thief).extension },
        { extension: [] },
        { code: 'charge', description: 'moved' },
        { status: 'retired' },
      ]) {
        const { body } = await client.get<Raw>(`OperationDefinition/${other.id}`)
        const ways = await changedEveryWay(client, body, changes)
        for (const [way, status] of ways) {
          t.ok(status === 403 || (status === 400 && 'extension' in changes), `${way} ${status}`)
        }
      }
      t.equal((await client.del(`OperationDefinition/${operation.id}`)).status, 403)
      const described = anOperation('my-own', undefined)
      const own = await client.post<Raw>('OperationDefinition', described)
      t.equal(own.status, 201, 'accepts one without an implementation')
      t.equal((await client.del(`OperationDefinition/${own.body.id}`)).status, 200)
    }
    t.same(await called(admin, 'charge'), { by: 'the clinic' })
  },
)

t.test('calls the oldest matching definition of any number', async (t) => {
  const bot = await aBot(botica, handler('return { by: "the first" }'))
  const second = await aBot(botica, handler('return { by: "the second" }'))
  for (let i = 0; i < 22; i++) {
    await free.client.create(anOperation('lookup-card', undefined))
    await admin.create(anOperation('lookup-card', bot, { system: false, type: true }))
  }
  const first = await admin.create(anOperation('lookup-card', bot))
  await named.client.create(anOperation('lookup-card', second))
  for (let i = 0; i < 22; i++) await free.client.create(anOperation('lookup-card', undefined))
  t.same(await called(admin, 'lookup-card'), { by: 'the first' })
  const { body } = await admin.get<Raw>(`OperationDefinition/${first.id}`)
  await admin.put(`OperationDefinition/${first.id}`, { ...body, description: 'changed later' })
  t.same(await called(free.client, 'lookup-card'), { by: 'the first' })
})

const aProfile = (url: string, more: object = {}) => ({
  resourceType: 'StructureDefinition',
  url,
  name: 'Claimed',
  status: 'active',
  kind: 'resource',
  abstract: false,
  type: 'Patient',
  baseDefinition: 'http://hl7.org/fhir/StructureDefinition/Patient',
  derivation: 'constraint',
  differential: {
    element: [
      { id: 'Patient', path: 'Patient' },
      { id: 'Patient.birthDate', path: 'Patient.birthDate', min: 1 },
    ],
  },
  ...more,
})
const differing = (name: string) => ({
  element: [
    { id: 'Patient', path: 'Patient' },
    { id: `Patient.${name}`, path: `Patient.${name}`, min: 1 },
  ],
})
const claiming = (profile: string, more: object = {}) => ({
  resourceType: 'Patient',
  meta: { profile: [profile] },
  ...more,
})

t.test('rejects a higher version of a profile url by plain members', async (t) => {
  const url = 'https://example.org/StructureDefinition/born'
  const { id } = await admin.create(aProfile(url, { version: '1.0.0' }))
  for (const client of plain) {
    const higher = aProfile(url, { version: '99.0.0', differential: differing('deceased[x]') })
    const added = await client.post<Raw>('StructureDefinition', higher)
    t.match(added, {
      status: 403,
      body: { issue: [{ expression: ['StructureDefinition.url'] }] },
    })
    const own = await client.create(aProfile(`https://example.org/own/${client === free.client}`))
    const moved = [{ op: 'replace', path: '/url', value: url }]
    t.equal((await client.patch(`StructureDefinition/${own.id}`, moved)).status, 403)
    const { body } = await client.get<Raw>(`StructureDefinition/${id}`)
    const ways = await changedEveryWay(client, body, { differential: differing('photo') })
    for (const [way, status] of ways) t.equal(status, 403, way)
    t.equal((await client.del(`StructureDefinition/${id}`)).status, 403)
  }
  t.equal((await admin.post('Patient', claiming(url))).status, 400)
  t.equal((await admin.post('Patient', claiming(url, { birthDate: '1985-01-01' }))).status, 201)
})

t.test('resolves versions of trusted authors to the newest or the named one', async (t) => {
  const url = 'https://example.org/StructureDefinition/versions'
  await admin.create(aProfile(url, { version: '1.0.0' }))
  await named.client.create(
    aProfile(url, { version: '2.0.0', differential: differing('identifier') }),
  )
  const born = { birthDate: '1985-01-01' }
  t.equal((await free.client.post('Patient', claiming(url, born))).status, 400)
  t.equal((await free.client.post('Patient', claiming(`${url}|1.0.0`, born))).status, 201)
  const identified = { identifier: [{ value: '1' }] }
  t.equal((await free.client.post('Patient', claiming(url, identified))).status, 201)
})

t.test("applies a plain member's profile until an administrator publishes its url", async (t) => {
  const url = 'https://example.org/StructureDefinition/squatted'
  const own = await free.client.create(aProfile(url, { version: '99.0.0' }))
  t.equal((await free.client.post('Patient', claiming(url))).status, 400, 'applies the profile')
  const { body } = await free.client.get<Raw>(`StructureDefinition/${own.id}`)
  const saved = await free.client.put(`StructureDefinition/${own.id}`, { ...body, title: 'Mine' })
  t.equal(saved.status, 200)
  t.equal((await starred.client.post('StructureDefinition', aProfile(url))).status, 403)
  t.equal((await starred.client.del(`StructureDefinition/${own.id}`)).status, 403)

  await admin.create(aProfile(url, { version: '1.0.0', differential: differing('identifier') }))
  const identified = { identifier: [{ value: '1' }] }
  t.equal((await admin.post('Patient', claiming(url, identified))).status, 201)
  t.equal((await admin.post('Patient', claiming(url, { birthDate: '1985-01-01' }))).status, 400)
  t.equal((await free.client.del(`StructureDefinition/${own.id}`)).status, 200)
})

t.test('reserves urls of the standard, of linked Projects and of default profiles', async (t) => {
  const shared = await botica.createTenant()
  const url = 'https://example.org/StructureDefinition/shared'
  const ours = 'https://example.org/StructureDefinition/default'
  await shared.admin.create(aProfile(url))
  const squatted = 'https://example.org/StructureDefinition/squatted-before-the-link'
  await free.client.create(aProfile(squatted, { version: '99', differential: differing('photo') }))
  t.equal((await admin.post('Patient', claiming(squatted))).status, 400)
  await shared.admin.create(aProfile(squatted))
  const { body } = await botica.superAdmin.get<Raw>(`Project/${project.id}`)
  const linked = await botica.superAdmin.put(`Project/${project.id}`, {
    ...body,
    link: [{ project: { reference: `Project/${shared.project.id}` } }],
    defaultProfile: [{ resourceType: 'Basic', profile: [ours] }],
  })
  t.equal(linked.status, 200)
  botica.services.principals.forget()
  t.equal((await admin.post('Patient', claiming(squatted))).status, 400)
  const born = claiming(squatted, { birthDate: '1985-01-01' })
  t.equal((await admin.post('Patient', born)).status, 201, 'applies the linked one')
  const standard = 'http://hl7.org/fhir/StructureDefinition/Patient'
  const vital = 'http://hl7.org/fhir/StructureDefinition/vitalsigns'
  for (const client of plain) {
    for (const used of [url, ours, standard, vital]) {
      t.equal((await client.post('StructureDefinition', aProfile(used))).status, 403, used)
    }
  }
  const { client } = named
  t.equal((await client.post('StructureDefinition', aProfile(url))).status, 201)
})

t.test(
  'rejects changes and shadowing of terminology of other authors by plain members',
  async (t) => {
    const at = (name: string) => `https://example.org/${name}`
    const concept = [{ code: 'a' }]
    const include = [{ system: at('CodeSystem'), concept }]
    const group = [{ element: [{ code: 'a', target: [{ code: 'A', equivalence: 'equal' }] }] }]
    const common = { status: 'active', version: '1' }
    const resources: readonly Raw[] = [
      { resourceType: 'CodeSystem', url: at('CodeSystem'), content: 'complete', concept },
      { resourceType: 'ValueSet', url: at('ValueSet'), compose: { include } },
      { resourceType: 'ConceptMap', url: at('ConceptMap'), group },
    ].map((resource) => ({ ...resource, ...common }))
    for (const resource of resources) {
      const { resourceType: type } = resource
      const { id } = await admin.create(resource)
      for (const client of plain) {
        t.equal((await client.post(type, { ...resource, version: '99' })).status, 403, type)
        const { body } = await client.get<Raw>(`${type}/${id}`)
        const ways = await changedEveryWay(client, body, { version: '99' })
        for (const [way, status] of ways) t.equal(status, 403, `${type} by ${way}`)
        t.equal((await client.del(`${type}/${id}`)).status, 403, type)
        const own = { ...resource, url: `${resource.url}/${client === free.client}` }
        const made = await client.post<Raw>(type, own)
        t.equal(made.status, 201, type)
        const { url: _, ...nameless } = own
        t.equal((await client.post(type, nameless)).status, 201, 'without a url')
        t.equal((await client.del(`${type}/${made.body.id}`)).status, 200)
      }
      t.equal((await named.client.post(type, { ...resource, version: '2' })).status, 201, type)
    }
    const standard = 'http://hl7.org/fhir/ValueSet/administrative-gender'
    const broken = { resourceType: 'ValueSet', url: standard, ...common, compose: { include } }
    t.equal((await free.client.post('ValueSet', broken)).status, 403)
  },
)

t.test('finds the concept map between two value sets among many others', async (t) => {
  const element = [{ code: 'a', target: [{ code: 'A', equivalence: 'equal' }] }]
  const ends = { sourceUri: 'https://example.org/from', targetCanonical: 'https://example.org/to' }
  const aMap = { resourceType: 'ConceptMap', status: 'active' }
  const entry = Array.from({ length: 110 }, () => ({
    resource: aMap,
    request: { method: 'POST', url: 'ConceptMap' },
  }))
  const bundle = { resourceType: 'Bundle', type: 'transaction', entry }
  t.equal((await free.client.post('', bundle)).status, 200)
  await admin.create({ ...aMap, ...ends, group: [{ element }] })
  t.equal((await free.client.post('', bundle)).status, 200)
  for (const query of [`source=${ends.sourceUri}`, `target=${ends.targetCanonical}`]) {
    const { body } = await admin.get<Raw>(`ConceptMap/$translate?code=a&${query}`)
    t.match(body.parameter, [{ name: 'result', valueBoolean: true }], query)
  }
})

t.test('limits a plain member to 20 definitions of one url', async (t) => {
  const set = { resourceType: 'ValueSet', url: 'https://example.org/many', status: 'active' }
  for (let version = 1; version <= 20; version++) {
    await free.client.create({ ...set, version: String(version) })
  }
  t.equal((await free.client.post('ValueSet', { ...set, version: '21' })).status, 422)
})

t.test('rejects a search parameter of plain members that would widen a policy', async (t) => {
  const parameter = aSearchParameter({
    code: 'ward',
    expression: "Patient.identifier.where(system = 'urn:ward')",
  })
  const { id } = await admin.create(parameter)
  await until(async () => (await admin.get('Patient?ward=7')).status === 200, 90_000)
  const guest = await memberUnder(botica, {
    entries: [{ resourceType: 'Patient', criteria: 'Patient?ward=7' }],
  })
  const hidden = await admin.create({
    resourceType: 'Patient',
    identifier: [
      { system: 'urn:ward', value: '1' },
      { system: 'urn:other', value: '7' },
    ],
  })
  const widened = [{ op: 'replace', path: '/expression', value: 'Patient.identifier' }]
  for (const client of plain) {
    t.equal((await client.patch(`SearchParameter/${id}`, widened)).status, 403)
    t.equal((await client.post('SearchParameter', { ...parameter, code: 'mine' })).status, 403)
    t.equal((await client.del(`SearchParameter/${id}`)).status, 403)
    const { body } = await client.get<Raw>(`SearchParameter/${id}`)
    const ways = await changedEveryWay(client, body, { expression: 'Patient.identifier' })
    for (const [way, status] of ways) t.equal(status, 403, way)
  }
  t.not((await guest.client.get(`Patient/${hidden.id}`)).status, 200)
  const changed = [{ op: 'replace', path: '/description', value: 'Wards' }]
  t.equal((await named.client.patch(`SearchParameter/${id}`, changed)).status, 200)
})

t.test('uses the first of several graphs with the same name', async (t) => {
  const aGraph = (start: string, link: readonly object[]) => ({
    resourceType: 'GraphDefinition',
    name: 'record',
    status: 'active',
    start,
    link,
  })
  const patient = await admin.create({ resourceType: 'Patient' })
  const subject = { reference: `Patient/${patient.id}` }
  const code = { text: 'seen' }
  await admin.create({ resourceType: 'Observation', status: 'final', code, subject })
  const target = [{ type: 'Observation', params: 'subject={ref}' }]
  await admin.create(aGraph('Patient', [{ target }]))
  await free.client.create(aGraph('Observation', []))
  await free.client.create(aGraph('Patient', []))
  const { body } = await admin.get<Raw>(`Patient/${patient.id}/$graph?graph=record`)
  t.equal(body.entry?.length, 2)
})

t.test('rejects deletion of a limiting UserConfiguration by plain members', async (t) => {
  const option = [{ id: 'fhirQuota', valueInteger: 10 }]
  const { id } = await admin.create({ resourceType: 'UserConfiguration', option })
  for (const client of plain) {
    t.equal((await client.del(`UserConfiguration/${id}`)).status, 403)
    const own = await client.create({ resourceType: 'UserConfiguration', name: 'Mine' })
    t.equal((await client.del(`UserConfiguration/${own.id}`)).status, 200)
  }
})

t.test('rejects publication through a bot by a plain member', async (t) => {
  const url = 'https://example.org/StructureDefinition/by-bot'
  await admin.create(aProfile(url))
  const bot = await aBot(
    botica,
    handler(`try { await medplum.createResource(event.input) } catch (error) { return error.outcome.id }
      return 'written'`),
  )
  const answer = await execute(free.client, bot, aProfile(url, { version: '99' }))
  t.equal(answer.body, 'forbidden')
})
