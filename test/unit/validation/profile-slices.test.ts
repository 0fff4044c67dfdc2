import t from 'tap'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { compileProfile } from '../../../shared/validation/profiles/profiles.ts'
import type {
  ProfileElement,
  StructureDefinition,
} from '../../../shared/validation/profiles/tree.ts'
import { validate } from '../../../shared/validation/validate.ts'

const CORE = 'http://hl7.org/fhir/StructureDefinition'
const URL = 'http://example.org/profile'

function profile(
  type: string,
  element: readonly ProfileElement[],
  more: Partial<StructureDefinition> = {},
): StructureDefinition {
  return { url: URL, type, baseDefinition: `${CORE}/${type}`, differential: { element }, ...more }
}

/** `Type.path:slice` → an element at that path. */
function element(id: string, more: object = {}): ProfileElement {
  return { id, path: id.replace(/:[^.]+/g, ''), ...more }
}

function slicing(type: string, path: string, more: object = {}) {
  return { slicing: { discriminator: [{ type, path }], rules: 'open', ...more } }
}

/** Returns the issues of a resource as `path: text`. */
function issues(
  resource: Resource,
  definition: StructureDefinition,
  ...others: readonly StructureDefinition[]
): string[] {
  const found = new Map(others.map((other) => [other.url, other]))
  const profile = compileProfile(definition, found)
  const profiles = [{ profile, resource, root: resource, steps: [resource.resourceType] }]
  return validate(resource, { strict: true, profiles }).map(
    ({ details, expression }) => `${expression}: ${details.text}`,
  )
}

function wrongNumber(slice: string, range: string, found: number): string {
  return `Incorrect number of values provided for slice '${slice}': expected ${range}, but found ${found}`
}

function patient(more: Omit<Resource, 'resourceType'>): Resource {
  return { resourceType: 'Patient', ...more }
}

function observation(more: Omit<Resource, 'resourceType'>): Resource {
  return { resourceType: 'Observation', status: 'final', code: { text: 'x' }, ...more }
}

t.test('discriminates slices by existence', async (t) => {
  const ended = profile('Patient', [
    element('Patient.address', slicing('exists', 'period.end')),
    element('Patient.address:past', { max: '1' }),
    element('Patient.address:past.period.end', { min: 1 }),
    element('Patient.address:present', { min: 1 }),
    element('Patient.address:present.period.end', { max: '0' }),
  ])
  const past = { city: 'Ulm', period: { end: '2020' } }
  t.same(issues(patient({ address: [past, { city: 'Bonn' }] }), ended), [])
  t.same(issues(patient({ address: [past, past] }), ended), [
    `Patient.address: ${wrongNumber('past', '0..1', 2)}`,
    `Patient.address: ${wrongNumber('present', '1..*', 0)}`,
  ])
})

t.test('discriminates slices by the type of a choice', async (t) => {
  const typed = profile('Observation', [
    element('Observation.component', slicing('type', 'value')),
    element('Observation.component:measured', { min: 1, max: '1' }),
    element('Observation.component:measured.value[x]', { type: [{ code: 'Quantity' }] }),
  ])
  const code = { text: 'y' }
  const quantity = { code, valueQuantity: { value: 1 } }
  t.same(issues(observation({ component: [quantity, { code, valueString: 'a' }] }), typed), [])
  t.same(issues(observation({ component: [quantity, quantity] }), typed), [
    `Observation.component: ${wrongNumber('measured', '1..1', 2)}`,
  ])
})

t.test('discriminates slices by the type and profile of the target', async (t) => {
  const reference = (targetProfile: string) => ({
    type: [{ code: 'Reference', targetProfile: [targetProfile] }],
  })
  const active: StructureDefinition = profile('Group', [element('Group.quantity', { min: 1 })], {
    url: 'http://example.org/counted',
  })
  const byType = profile('Observation', [
    element('Observation.performer', slicing('type', 'resolve()')),
    element('Observation.performer:doctor', { min: 1, ...reference(`${CORE}/Practitioner`) }),
  ])
  const doctor = { reference: 'Practitioner/1' }
  const elsewhere = { reference: 'https://other.example/fhir/Practitioner/1' }
  t.same(issues(observation({ performer: [doctor] }), byType), [])
  t.same(issues(observation({ performer: [elsewhere] }), byType), [])
  t.same(
    issues(observation({ performer: [{ type: 'Practitioner', reference: 'urn:x:1' }] }), byType),
    [],
  )
  t.same(issues(observation({ performer: [{ reference: 'Patient/1' }] }), byType), [
    `Observation.performer: ${wrongNumber('doctor', '1..*', 0)}`,
  ])

  const byProfile = profile('Observation', [
    element('Observation.focus', slicing('profile', 'resolve()')),
    element('Observation.focus:counted', { min: 1, ...reference(active.url) }),
  ])
  const group = { resourceType: 'Group', id: 'g', type: 'person', actual: true }
  const focus = [{ reference: '#g' }]
  t.same(
    issues(observation({ contained: [{ ...group, quantity: 2 }], focus }), byProfile, active),
    [],
  )
  t.same(issues(observation({ contained: [group], focus }), byProfile, active), [
    `Observation.focus: ${wrongNumber('counted', '1..*', 0)}`,
  ])
  t.same(issues(observation({ focus: [{ reference: 'Group/1' }] }), byProfile, active), [])
})

t.test('reports a reference to another type as information', async (t) => {
  const one = profile('Observation', [
    element('Observation.subject', {
      type: [{ code: 'Reference', targetProfile: [`${CORE}/Patient`] }],
    }),
  ])
  t.same(issues(observation({ subject: { reference: 'Group/1' } }), one), [
    'Observation.subject.reference: Invalid reference: expected Patient, but found Group',
  ])
})

t.test('discriminates slices by an extension and a path through a choice', async (t) => {
  const url = 'http://example.org/fhir/kind.of'
  const byExtension = profile('Patient', [
    element('Patient.name', slicing('value', `extension('${url}').value`)),
    element('Patient.name:legal', { min: 1 }),
    element('Patient.name:legal.extension:kind', {}),
    element('Patient.name:legal.extension:kind.url', { fixedUri: url }),
    element('Patient.name:legal.extension:kind.value[x]', { fixedCode: 'legal' }),
  ])
  const name = (valueCode: string) => ({ family: 'x', extension: [{ url, valueCode }] })
  t.same(issues(patient({ name: [name('legal')] }), byExtension), [])
  t.same(issues(patient({ name: [name('pen')] }), byExtension), [
    `Patient.name: ${wrongNumber('legal', '1..*', 0)}`,
  ])

  const byUnit = profile('Observation', [
    element('Observation.component', slicing('value', 'value.ofType(Quantity).code')),
    element('Observation.component:mg', { min: 1 }),
    element('Observation.component:mg.value[x].code', { fixedCode: 'mg' }),
  ])
  const dose = (code: string) => ({
    code: { text: 'dose' },
    valueQuantity: { value: 1, system: 's', code },
  })
  t.same(issues(observation({ component: [dose('mg')] }), byUnit), [])
  t.same(issues(observation({ component: [dose('g')] }), byUnit), [
    `Observation.component: ${wrongNumber('mg', '1..*', 0)}`,
  ])
})

const ORDERED = [
  element('Patient.telecom:phone', { max: '1' }),
  element('Patient.telecom:phone.system', { fixedCode: 'phone' }),
  element('Patient.telecom:email', {}),
  element('Patient.telecom:email.system', { fixedCode: 'email' }),
]
const [phone, email, fax] = ['phone', 'email', 'fax'].map((system) => ({ system, value: '1' }))

t.test('enforces the order of slices and elements between them', async (t) => {
  const rules = (more: object) =>
    profile('Patient', [element('Patient.telecom', slicing('value', 'system', more)), ...ORDERED])
  const ordered = rules({ ordered: true })
  t.same(issues(patient({ telecom: [phone, fax, email] }), ordered), [])
  t.same(issues(patient({ telecom: [email, phone] }), ordered), [
    'Patient.telecom: Slices are not in order',
  ])
  const atEnd = rules({ rules: 'openAtEnd' })
  t.same(issues(patient({ telecom: [email, phone, fax] }), atEnd), [])
  t.same(issues(patient({ telecom: [phone, fax, email] }), atEnd), [
    'Patient.telecom: Values outside of the slices must come after them',
  ])
  t.same(issues(patient({ telecom: [fax] }), rules({ rules: 'closed' })), [
    'Patient.telecom[0]: Value is in none of the slices that are allowed',
  ])
})

t.test('validates nested slices', async (t) => {
  const again = profile('Patient', [
    element('Patient.telecom', slicing('value', 'system')),
    ...ORDERED,
    element('Patient.telecom:email', slicing('value', 'use')),
    element('Patient.telecom:email/work', { min: 1, max: '1' }),
    element('Patient.telecom:email/work.use', { fixedCode: 'work' }),
  ])
  t.same(issues(patient({ telecom: [phone, { ...email, use: 'work' }] }), again), [])
  t.same(issues(patient({ telecom: [{ ...phone, use: 'work' }, email] }), again), [
    `Patient.telecom: ${wrongNumber('work', '1..1', 0)}`,
  ])
})

t.test('slices an open slice of the base in a derived profile', async (t) => {
  const base = profile('Patient', [element('Patient.telecom', slicing('value', 'system'))], {
    url: 'http://example.org/base',
  })
  const derived = profile('Patient', [...ORDERED, element('Patient.gender', { min: 1 })], {
    baseDefinition: base.url,
  })
  t.same(issues(patient({ gender: 'male', telecom: [phone, phone] }), derived, base), [
    `Patient.telecom: ${wrongNumber('phone', '0..1', 2)}`,
  ])
  t.same(issues(patient({}), derived, base), ['Patient.gender: Missing required property'])
})

t.test('enforces type and profile of Bundle entries', async (t) => {
  const named = profile('Patient', [element('Patient.name', { min: 1 })], {
    url: 'http://example.org/named',
  })
  const bundle = profile('Bundle', [
    element('Bundle.entry', slicing('type', 'resource')),
    element('Bundle.entry:patient', { min: 1, max: '1' }),
    element('Bundle.entry:patient.resource', { type: [{ code: 'Patient', profile: [named.url] }] }),
    element('Bundle.entry:patient.resource.gender', { min: 1 }),
  ])
  const of = (...resources: Resource[]): Resource => ({
    resourceType: 'Bundle',
    type: 'collection',
    entry: resources.map((resource, i) => ({ fullUrl: `urn:x:${i}`, resource })),
  })
  const good = patient({ name: [{ family: 'x' }], gender: 'male' })
  t.same(issues(of(observation({}), good), bundle, named), [])
  t.same(issues(of(observation({}), patient({})), bundle, named), [
    'Bundle.entry[1].resource.gender: Missing required property',
    'Bundle.entry[1].resource.name: Missing required property',
  ])
  t.same(issues(of(observation({})), bundle, named), [
    `Bundle.entry: ${wrongNumber('patient', '1..1', 0)}`,
  ])
  const only = profile('Bundle', [
    element('Bundle.entry.resource', { type: [{ code: 'Patient' }] }),
  ])
  t.same(issues(of(observation({})), only), [
    'Bundle.entry[0].resource: Incorrect resource type: expected Patient, but found Observation',
  ])
})

t.test('requires a match of one of several type profiles', async (t) => {
  const part = (url: string, path: string) =>
    profile('HumanName', [element(`HumanName.${path}`, { min: 1 })], { url })
  const family = part('http://example.org/family', 'family')
  const text = part('http://example.org/text', 'text')
  const either = profile('Patient', [
    element('Patient.name', { type: [{ code: 'HumanName', profile: [family.url, text.url] }] }),
  ])
  t.same(issues(patient({ name: [{ family: 'x' }, { text: 'y' }] }), either, family, text), [])
  t.same(issues(patient({ name: [{ given: ['z'] }] }), either, family, text), [
    `Patient.name[0]: Value fits none of the profiles ${family.url}, ${text.url}`,
  ])
})

const limits: readonly (readonly [string, object, object, string | undefined])[] = [
  ['multipleBirth[x]', { maxValueInteger: 9 }, { multipleBirthInteger: 9 }, undefined],
  ['multipleBirth[x]', { maxValueInteger: 9 }, { multipleBirthInteger: 10 }, 'above the maximum 9'],
  ['birthDate', { minValueDate: '2000-06' }, { birthDate: '2000' }, undefined],
  [
    'birthDate',
    { minValueDate: '2000-06' },
    { birthDate: '2000-05-31' },
    'below the minimum 2000-06',
  ],
  ['language', { maxLength: 2 }, { language: 'de-DE' }, 'longer than 2 characters'],
  ['language', { maxLength: 2 }, { language: 'de' }, undefined],
]
for (const [path, limit, content, expected] of limits) {
  const name = `${JSON.stringify(limit)}: ${JSON.stringify(content)} is ${expected ?? 'within'}`
  t.test(name, async (t) => {
    const limited = profile('Patient', [element(`Patient.${path}`, limit)])
    const [place] = Object.keys(content)
    const text = expected === undefined ? [] : [`Patient.${place}: Value is ${expected}`]
    t.same(issues(patient({ ...content }), limited), text)
  })
}

t.test('compares quantities in commensurable units', async (t) => {
  const unit = { system: 'http://unitsofmeasure.org', code: 'kg' }
  const most = { maxValueQuantity: { value: 300, ...unit } }
  const heavy = profile('Observation', [element('Observation.value[x]', most)])
  const weight = (value: number, code: string) =>
    issues(observation({ valueQuantity: { value, ...unit, code } }), heavy)
  t.same(weight(300, 'kg'), [])
  t.same(weight(4000, 'g'), [])
  t.same(weight(400, 'm'), [])
  t.same(weight(301_000, 'g'), ['Observation.valueQuantity: Value is above the maximum 300 kg'])
  t.same(weight(301, 'kg'), ['Observation.valueQuantity: Value is above the maximum 300 kg'])
})

t.test('compiles a path through nested choices down to their values', async (t) => {
  const id = `Patient${'.extension.value[x]'.repeat(20)}`
  const deep = profile('Patient', [element(id, { min: 1 })])
  t.same(issues(patient({}), deep), [])
})

t.test('ends a check that takes too long', async (t) => {
  const coding = Array.from({ length: 4_000 }, (_, i) => ({ system: 's', code: `c${i}` }))
  const pattern = {
    patternCodeableConcept: { coding: coding.map(({ code }) => ({ code: `x${code}` })) },
  }
  const costly = profile('Observation', [element('Observation.category', pattern)])
  const category = Array.from({ length: 100 }, () => ({ coding: coding.map((c) => ({ ...c })) }))
  const all = { patternCodeableConcept: { coding: coding.toReversed() } }
  const worst = profile('Observation', [element('Observation.category', all)])
  t.equal(issues(observation({ category: category.slice(0, 1) }), costly).length, 1)
  t.throws(() => issues(observation({ category }), worst), { message: /too long to/ })
})
