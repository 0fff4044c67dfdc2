import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)

const SUBSETTED = {
  system: 'http://terminology.hl7.org/CodeSystem/v3-ObservationValue',
  code: 'SUBSETTED',
}
const patient = await admin.create({
  resourceType: 'Patient',
  text: { status: 'generated', div: '<div xmlns="http://www.w3.org/1999/xhtml">Eve</div>' },
  active: true,
  name: [{ use: 'official', family: 'Everett', given: ['Eve'] }],
  contact: [{ name: { family: 'Adams' }, gender: 'male' }],
  birthDate: '1980-01-01',
  maritalStatus: { text: 'single' },
})
await admin.create({
  resourceType: 'Observation',
  status: 'final',
  code: { text: 'x' },
  subject: { reference: `Patient/${patient.id}` },
  method: { text: 'by hand' },
  valueQuantity: { value: 1.5, unit: 'g' },
  referenceRange: [{ text: 'normal' }],
  component: [
    {
      code: { text: 'part' },
      valueQuantity: { value: 2, unit: 'g' },
      interpretation: [{ text: 'high' }],
    },
  ],
})

const only = async (query: string): Promise<Raw> => {
  const { body } = await admin.get<Raw>(query)
  return body.entry?.[0]?.resource
}
const listNames = (resource: Raw) => Object.keys(resource).sort()

t.test('keeps the elements of the standard’s summary under _summary=true', async (t) => {
  t.same(listNames(await only('Patient?_summary=true')), [
    'active',
    'birthDate',
    'id',
    'meta',
    'name',
    'resourceType',
  ])
  const observation = await only('Observation?_summary=true')
  t.match(observation, { status: 'final', valueQuantity: { value: 1.5 }, component: Array })
  t.equal(observation.method, undefined)
  t.equal(observation.referenceRange, undefined)
})

t.test('keeps the narrative and mandatory elements under _summary=text', async (t) => {
  t.same(listNames(await only('Patient?_summary=text')), [
    'active',
    'id',
    'meta',
    'resourceType',
    'text',
  ])
  const observation = await only('Observation?_summary=text')
  t.same(listNames(observation), ['code', 'id', 'meta', 'resourceType', 'status'])
})

t.test('drops the narrative under _summary=data and nothing under false', async (t) => {
  const data = await only('Patient?_summary=data')
  t.equal(data.text, undefined)
  t.match(data, { contact: [{ gender: 'male' }], maritalStatus: { text: 'single' } })
  const whole = await only('Patient?_summary=false')
  t.strictSame(whole, patient)
})

t.test('tags only shortened resources', async (t) => {
  for (const view of ['_summary=true', '_summary=text', '_summary=data', '_elements=name']) {
    t.match((await only(`Patient?${view}`)).meta.tag, [SUBSETTED], view)
  }
  t.equal((await only('Patient')).meta.tag, undefined)
})

t.test('returns a total without entries under _summary=count', async (t) => {
  const { body } = await admin.get<Raw>('Patient?_summary=count')
  t.match(body, { total: 1, link: [{ relation: 'self' }] })
  t.equal(body.entry, undefined)
})

t.test('ignores unknown elements, and rejects them under strict handling', async (t) => {
  const { id } = patient
  const strict = { Prefer: 'handling=strict' }
  const wrong = ['birthdate', 'name.famly', 'contact.birthDate', 'valueQuantity', 'Patient.name']
  for (const name of wrong) {
    const refusal = {
      status: 400,
      body: {
        issue: [{ details: { text: `There is no element ${name}` }, expression: ['_elements'] }],
      },
    }
    const asked = `_elements=active,${name}`
    t.match(await admin.get(`Patient?${asked}`, strict), refusal)
    t.match(await admin.get(`?_type=Patient,Encounter&${asked}`, strict), refusal)
    t.match(await admin.get(`Patient/${id}?${asked}`, strict), refusal)
    t.match(await admin.get(`Patient/${id}/_history/1?${asked}`, strict), refusal)
    t.equal((await admin.get(`Patient?${asked}`)).status, 200)
    t.equal((await admin.get(`Patient/${id}?${asked}`)).status, 200)
  }
  const right = [
    'id',
    'extension',
    'name.extension',
    'deceasedBoolean',
    'deceased[x]',
    'contact.name.family',
    'link.other.reference',
  ]
  t.equal((await admin.get(`Patient?_elements=${right.join()}`, strict)).status, 200)
  t.equal(
    (await admin.get('Observation?_elements=component.value.unit,component.code', strict)).status,
    200,
  )
  t.equal(
    (await admin.get('?_type=Patient,Encounter&_elements=status,birthDate', strict)).status,
    200,
  )
  t.equal((await admin.get('Patient?_fields=address-city')).status, 200)
})

t.test('accepts elements, choices and paths in _elements', async (t) => {
  t.same(listNames(await only('Patient?_elements=birthDate,contact')), [
    'active',
    'birthDate',
    'contact',
    'id',
    'meta',
    'resourceType',
  ])
  const nested = await only('Patient?_elements=name.family,contact.name')
  t.same(nested.name, [{ use: 'official', family: 'Everett' }])
  t.same(nested.contact, [{ name: { family: 'Adams' } }])
  const both = await only('Patient?_elements=name.family,name')
  t.same(both.name, patient.name)
  for (const list of ['value', 'value[x]', 'valueQuantity']) {
    t.match(await only(`Observation?_elements=${list}`), { valueQuantity: { value: 1.5 } }, list)
  }
  const part = await only('Observation?_elements=component.value')
  t.same(part.component, [{ code: { text: 'part' }, valueQuantity: { value: 2, unit: 'g' } }])
  t.equal((await only('Patient?_fields=birthDate')).name, undefined)
})

t.test('bounds the number of named elements, without strict handling', async (t) => {
  const { id } = patient
  const paths = [
    'Patient',
    `Patient/${id}`,
    `Patient/${id}/_history`,
    `Patient/${id}/_history/1`,
    '',
  ]
  const names = Array.from({ length: 201 }, (_, i) => `x${i}`)
  for (const path of paths) {
    const type = path === '' ? '_type=Patient&' : ''
    const ask = (list: readonly string[], name = '_elements') =>
      admin.get(`${path}?${type}${name}=${list.join()}`)
    const refusal = {
      status: 400,
      body: {
        issue: [{ code: 'too-costly', details: { text: '_elements may name 200 elements' } }],
      },
    }
    t.match(await ask(names), refusal, path)
    t.match(await ask(names, '_fields'), refusal, path)
    t.equal((await ask(names.slice(1))).status, 200, path)
    t.equal((await ask(Array(1000).fill('name'))).status, 200, 'counts a name once')
  }
})

t.test('bounds _count and returns no entries for 0', async (t) => {
  for (const count of ['1000', '1001', '99999999999999999999']) {
    t.equal((await admin.get<Raw>(`Patient?_count=${count}`)).body.entry.length, 1, count)
  }
  const { body } = await admin.get<Raw>('Patient?_count=0&_total=accurate')
  t.equal(body.total, 1)
  t.equal(body.entry, undefined)
  t.equal((await admin.get<Raw>('Patient?_count=0')).body.total, 1)
})

t.test('returns a total only on request, exact for small results', async (t) => {
  t.equal((await admin.get<Raw>('Patient')).body.total, undefined)
  t.equal((await admin.get<Raw>('Patient?_total=none')).body.total, undefined)
  t.equal((await admin.get<Raw>('Patient?_total=estimate')).body.total, 1)
  t.equal((await admin.get<Raw>('Patient?name=nobody&_total=estimate')).body.total, 0)
  t.equal((await admin.get<Raw>('Patient?name=eve&_total=accurate')).body.total, 1)
})
