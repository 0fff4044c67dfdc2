/** Examples of the standard: https://hl7.org/fhir/R4/search.html */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin } = botica

const ask = async (path: string) => {
  const [type = '', query = ''] = path.split('?')
  return admin.get<Raw>(`${type}?${new URLSearchParams(query)}`)
}
async function ids(path: string): Promise<string[]> {
  const { status, text, body } = await ask(path)
  if (status !== 200) throw new Error(`${path}: ${text}`)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id)
}
const make = async (resource: Raw): Promise<string> =>
  (await admin.create(resource as Resource)).id ?? ''

const patient = await make({ resourceType: 'Patient', gender: 'male', name: [{ family: 'Low' }] })

t.test('treats _count=0 as _summary=count', async (t) => {
  for (const query of ['Patient?_count=0', 'Patient?_summary=count']) {
    const { body } = await ask(query)
    t.equal(body.total, 1, query)
    t.equal(body.entry, undefined, query)
  }
})

t.test('finds a quantity by its system alone', async (t) => {
  const of = (value: number, system?: string, code?: string) =>
    make({
      resourceType: 'Observation',
      status: 'final',
      code: { coding: [{ system: 'urn:c', code: 'c' }] },
      valueQuantity: { value, ...(code ? { system, code, unit: `${code}s` } : {}) },
    })
  const one = await of(5, 'urn:one', 'u')
  const two = await of(5, 'urn:two', 'u')
  const kg = await of(5, 'http://unitsofmeasure.org', 'kg')
  const bare = await of(5)
  const found: readonly (readonly [string, readonly string[]])[] = [
    ['5', [one, two, kg, bare]],
    ['5|urn:one|', [one]],
    ['5|urn:one', [one]],
    ['gt4|urn:two|', [two]],
    ['ne4|urn:two', [two]],
    ['5|http://unitsofmeasure.org|', [kg]],
    ['5|urn:three|', []],
    ['5|urn:one|u', [one]],
    ['5||us', [one, two]],
    ['4|urn:one|', []],
  ]
  for (const [value, wanted] of found) {
    const query = `Observation?value-quantity=${value}`
    t.same(new Set(await ids(query)), new Set(wanted), value)
    const composite = `Observation?code-value-quantity=urn:c|c$${value}`
    t.same(new Set(await ids(composite)), new Set(wanted), composite)
  }
  const criteria = 'Observation?value-quantity=5|urn:one|'
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'Observation', criteria }],
  })
  for (const id of [one, two, kg, bare]) {
    t.equal((await client.get(`Observation/${id}`)).status, id === one ? 200 : 404)
  }
})

t.test('reads the precision of a number with an exponent', async (t) => {
  const of = (probabilityDecimal: number) =>
    make({
      resourceType: 'RiskAssessment',
      status: 'final',
      subject: { reference: `Patient/${patient}` },
      prediction: [{ probabilityDecimal }],
    })
  const [low, near, small] = [await of(94), await of(97), await of(0.00541)]
  t.same(await ids('RiskAssessment?probability=1e2'), [near])
  t.same(await ids('RiskAssessment?probability=100'), [])
  t.same(await ids('RiskAssessment?probability=9.4e1'), [low])
  t.same(await ids('RiskAssessment?probability=5.41e-3'), [small])
  t.same(await ids('RiskAssessment?probability=5.40e-3'), [])
})

t.test('finds a definition by url and version', async (t) => {
  const url = 'http://example.org/ValueSet/found'
  const of = (version: string) => make({ resourceType: 'ValueSet', status: 'draft', url, version })
  const [first, second] = [await of('1.0'), await of('2.0')]
  t.same(new Set(await ids(`ValueSet?url=${url}`)), new Set([first, second]))
  t.same(await ids(`ValueSet?url=${url}|1.0`), [first])
  t.same(await ids(`ValueSet?url=${url}|3.0`), [])
  const criteria = `ValueSet?url=${url}|2.0`
  const { client } = await memberUnder(botica, {
    entries: [{ resourceType: 'ValueSet', criteria }],
  })
  t.equal((await client.get(`ValueSet/${second}`)).status, 200)
  t.equal((await client.get(`ValueSet/${first}`)).status, 404)
})

t.test('takes the system of code elements from their binding', async (t) => {
  const gender = 'http://hl7.org/fhir/administrative-gender'
  t.same(await ids(`Patient?gender=${gender}|`), [patient])
  t.same(await ids(`Patient?gender=${gender}|male`), [patient])
  t.same(await ids('Patient?gender=urn:other|'), [])
  t.same(await ids('Patient?gender=urn:other|male'), [])
  const document = await make({
    resourceType: 'DocumentReference',
    status: 'current',
    content: [{ attachment: { url: 'http://example.org/a' } }],
    relatesTo: [{ code: 'appends', target: { reference: 'DocumentReference/x' } }],
  })
  const system = 'http://hl7.org/fhir/document-relationship-type'
  const of = (code: string) => ids(`DocumentReference?relationship=DocumentReference/x$${code}`)
  t.same(await of('appends'), [document])
  t.same(await of(`${system}|appends`), [document])
  t.same(await of(`${system}|replaces`), [])
  t.same(await of('urn:other|appends'), [])
})

t.test('searches all types by common parameters', async (t) => {
  const tag = 'urn:tag|t'
  const tagged = { meta: { tag: [{ system: 'urn:tag', code: 't' }] } }
  const person = await make({ resourceType: 'Patient', ...tagged })
  const basic = await make({ resourceType: 'Basic', code: { text: 'b' }, ...tagged })
  t.same(new Set(await ids(`?_tag=${tag}`)), new Set([person, basic]))
  t.same(await ids(`?_id=${basic}`), [basic])
  t.same(await ids(`?_type:not=Patient&_tag=${tag}`), [basic])
  t.same(await ids(`?_type:not=Patient,Basic&_tag=${tag}`), [])
  const entries = [{ resourceType: 'Basic' }]
  const { client } = await memberUnder(botica, { entries })
  const seen = await client.get<Raw>(`?_tag=${encodeURIComponent(tag)}`)
  t.same(
    seen.body.entry.map((entry: Raw) => entry.resource.id),
    [basic],
  )
  for (const query of ['?', '?name=Low', '?_count=1', '?_type:not=Nothing']) {
    t.equal((await ask(query)).status, 400, query)
  }
  t.equal((await ask(`?_tag=${tag}&name=Low`)).status, 400)
})

t.test('limits :above and :below on versions to canonicals', async (t) => {
  for (const modifier of ['above', 'below']) {
    const refused = await ask(`Observation?subject:${modifier}=Patient/${patient}`)
    t.match(refused, { status: 400, body: { issue: [{ expression: ['subject'] }] } }, modifier)
    const { status } = await ask(`QuestionnaireResponse?questionnaire:${modifier}=urn:q|1`)
    t.equal(status, 200, modifier)
  }
})

t.test('includes a Provenance by its target', async (t) => {
  const { body } = await admin.get<Raw>('metadata')
  const described = body.rest[0].resource.find(({ type }: Raw) => type === 'MedicationRequest')
  t.ok(described.searchRevInclude.includes('Provenance:target'))
})

t.test('keeps the units of each Project apart', async (t) => {
  const kilograms = { value: 71.5, unit: 'kg', system: 'http://unitsofmeasure.org', code: 'kg' }
  const weight = { resourceType: 'Observation', status: 'final', code: { text: 'weight' } }
  for (const { admin: member } of [await botica.createTenant(), await botica.createTenant()]) {
    await member.create({ ...weight, valueQuantity: kilograms } as Resource)
    const query = new URLSearchParams({ 'value-quantity': 'gt71000|http://unitsofmeasure.org|g' })
    t.equal((await member.get<Raw>(`Observation?${query}`)).body.entry?.length, 1)
  }
})
