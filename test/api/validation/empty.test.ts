/** Imports the removal of empty members, to check that it copies no complete value. */
import t from 'tap'
import { withoutEmptyMembers } from '../../../shared/fhir/json.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { changedEveryWay } from '../../fixtures/http/write-paths.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const botica = await openBotica(t, { worker: true })
const { admin } = botica

const aPatient = (more: object = {}): Raw => ({ resourceType: 'Patient', active: true, ...more })

const EMPTY = {
  language: '',
  address: [],
  maritalStatus: {},
  contact: [{ name: { family: 'Orr', given: [], period: { start: '' } }, telecom: [] }],
}
const KEPT = { contact: [{ name: { family: 'Orr' } }] }
const content = ({ id: _id, meta: _meta, ...rest }: Raw) => rest

t.test('drops empty members', async (t) => {
  const made = await admin.create(aPatient(EMPTY))
  t.same(content((await admin.get<Raw>(`Patient/${made.id}`)).body), aPatient(KEPT))
  const other: Raw = await admin.create(aPatient({ language: 'de' }))
  const answers = await changedEveryWay(admin, other, EMPTY)
  for (const [way, status] of answers) t.equal(status, 200, way)
  t.same(content((await admin.get<Raw>(`Patient/${other.id}`)).body), aPatient(KEPT))
})

t.test('drops empty members in bundles and GraphQL mutations', async (t) => {
  const entry = [{ resource: aPatient(EMPTY), request: { method: 'POST', url: 'Patient' } }]
  for (const type of ['batch', 'transaction']) {
    const { body } = await admin.post<Raw>('', { resourceType: 'Bundle', type, entry })
    t.same(content(body.entry[0].resource), aPatient(KEPT), type)
  }
  const query = `mutation ($res: PatientCreate!) { PatientCreate(res: $res) { id } }`
  const { body } = await admin.post<Raw>('$graphql', { query, variables: { res: aPatient(EMPTY) } })
  const { id } = body.data.PatientCreate
  t.same(content((await admin.get<Raw>(`Patient/${id}`)).body), aPatient(KEPT))
})

t.test('removes an array emptied by a patch', async (t) => {
  const { id } = await admin.create(aPatient({ telecom: [{ system: 'phone', value: '1' }] }))
  const patch = [{ op: 'remove', path: '/telecom/0' }]
  const { status, body } = await admin.patch<Raw>(`Patient/${id}`, patch)
  t.equal(status, 200)
  t.same(content(body), aPatient())
})

t.test('drops empty members in writes of bots and imports', async (t) => {
  const bot = await admin.create({
    resourceType: 'Bot',
    name: 'b',
    runtimeVersion: 'vmcontext',
  } as Raw)
  const code = `exports.handler = (medplum, { input }) => medplum.createResource(input)`
  t.equal((await admin.post(`Bot/${bot.id}/$deploy`, { code })).status, 200)
  const ran = await admin.post<Raw>(`Bot/${bot.id}/$execute`, aPatient(EMPTY))
  t.equal(ran.status, 200, ran.text)
  t.same(content(ran.body), aPatient(KEPT))

  const line = JSON.stringify({ ...aPatient(EMPTY), id: 'empty-members' })
  const type = { 'Content-Type': 'application/fhir+ndjson' }
  const { body: binary } = await admin.post<Raw>('Binary', line, type)
  const part = [
    { name: 'type', valueCode: 'Patient' },
    { name: 'url', valueUrl: `Binary/${binary.id}` },
  ]
  const { status } = await admin.post('$import', {
    resourceType: 'Parameters',
    parameter: [{ name: 'input', part }],
  })
  t.equal(status, 202)
  await until(async () => (await admin.get('Patient/empty-members')).status === 200, 60_000)
  t.same(content((await admin.get<Raw>('Patient/empty-members')).body), aPatient(KEPT))
})

t.test('rejects empty array items and nulls', async (t) => {
  const name = (...items: unknown[]) => ({ name: items })
  for (const wrong of [
    name({}),
    name({ family: '' }),
    name(null),
    name({ given: [''] }),
    name({ given: ['a', ''] }),
    name({ given: [null] }),
    name({ given: ['a', null] }),
    name({ family: null }),
    { active: null },
    { contact: [{ name: {} }] },
  ]) {
    const resource = { resourceType: 'Patient', ...wrong }
    const said = JSON.stringify(wrong)
    t.equal((await admin.post('Patient', resource)).status, 400, said)
    t.equal((await admin.post('Patient/$validate', resource)).status, 400, said)
  }
  t.equal((await admin.post('Patient/$validate', aPatient(EMPTY))).status, 200)
})

t.test('does not copy a resource without empty members', async (t) => {
  const full: Resource = aPatient({ active: false, multipleBirthInteger: 0 })
  t.equal(withoutEmptyMembers(full), full)
})
