import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const { admin, createMember } = await openBotica(t)
await admin.create({ resourceType: 'Patient', name: [{ family: 'Plan' }], gender: 'male' })

t.test('returns the statement and plan of a search to project admins', async (t) => {
  for (const query of [
    'Patient?gender=male',
    'Patient?name=plan&_sort=name',
    'Patient?birthdate=ge1980&_sort=-birthdate',
    'Patient?_has:Observation:patient:code=x',
    'Observation?patient.name=plan',
  ]) {
    const { status, body } = await admin.get<Raw>(`${query}&_explain=true`)
    t.equal(status, 200, query)
    t.equal(body.entry.length, 1, query)
    const [{ resource, search }] = body.entry
    t.equal(search.mode, 'outcome')
    t.match(resource.issue, [{ severity: 'information', details: { text: /^Found by / } }])
    t.match(resource.issue[0].diagnostics, /select[\s\S]*from resource r[\s\S]*Execution Time/)
  }
})

t.test('treats _explain=false as a plain search and rejects other values', async (t) => {
  t.equal((await admin.get<Raw>('Patient?_explain=false')).body.entry[0].search.mode, 'match')
  const { status, body } = await admin.get<Raw>('Patient?_explain=yes')
  t.equal(status, 400)
  t.match(body.issue, [{ expression: ['_explain'] }])
  t.equal((await admin.get('?_type=Patient,Observation&_explain=true')).status, 400)
})

t.test('returns 403 from _explain for non-admins', async (t) => {
  const { client } = await createMember()
  t.equal((await client.get('Patient?name=plan')).status, 200)
  const { status, text } = await client.get('Patient?name=plan&_explain=true')
  t.equal(status, 403)
  t.notMatch(text, 'select')
})
