import t from 'tap'
import {
  compartmentParams,
  isPlatformType,
  isResourceType,
  mainDate,
  publishedProfile,
  resourceTypes,
  searchParameter,
  searchParameters,
  storedParameters,
  typeDefinition,
  typeElements,
  typeName,
  typeNumber,
  valueSet,
} from '../../../shared/fhir/definitions.ts'

t.test('every resource type has a unique number that maps back to it', async (t) => {
  const numbers = resourceTypes.map(typeNumber)
  t.equal(new Set(numbers).size, resourceTypes.length)
  for (const type of resourceTypes) t.equal(typeName(typeNumber(type)), type)
  t.throws(() => typeNumber('Nope'), /No resource type/)
  t.throws(() => typeName(-1), /No resource type/)
})

t.test('numbers that rows already carry never change', async (t) => {
  t.equal(typeNumber('AccessPolicy'), 1)
  t.equal(typeNumber('Patient'), 112)
  t.equal(typeNumber('VisionPrescription'), 162)
})

t.test('lists the types of R4 and the platform, without abstract and data types', async (t) => {
  for (const type of ['Patient', 'Project', 'ProjectMembership', 'Bot', 'AsyncJob', 'Login']) {
    t.ok(isResourceType(type), type)
  }
  for (const type of ['Resource', 'DomainResource', 'HumanName', 'toString', '__proto__', '']) {
    t.notOk(isResourceType(type), type)
    t.equal(searchParameters(type).size, 0, type)
  }
  t.ok(isPlatformType('Bot'))
  t.notOk(isPlatformType('Patient'))
})

t.test('elements have the properties that a validator needs', async (t) => {
  const elements = new Map(typeElements('Observation').map((element) => [element.path, element]))
  t.match(elements.get('status'), {
    min: 1,
    types: [{ code: 'code' }],
    binding: 'http://hl7.org/fhir/ValueSet/observation-status',
    modifier: true,
    summary: true,
  })
  t.equal(elements.get('value')?.choice, true)
  t.equal(elements.get('value')?.types.length, 11)
  t.equal(elements.get('component')?.max, '*')
  t.equal(elements.get('component.referenceRange')?.content, 'Observation.referenceRange')
  t.same(elements.get('specimen')?.types, [{ code: 'Reference', targets: ['Specimen'] }])
  t.match(
    typeDefinition('Observation')?.constraints?.map(({ key }) => key),
    ['dom-2', 'dom-4', 'dom-5', 'dom-6', 'obs-6', 'obs-7'],
  )
})

t.test('an element of a profiled data type has the invariants of that profile', async (t) => {
  const low = typeElements('Observation').find(({ path }) => path === 'referenceRange.low')
  t.match(low?.constraints, [{ key: 'sqty-1', severity: 'error' }])
})

t.test('the profiles of the standard are found by their url', async (t) => {
  const weight = publishedProfile('http://hl7.org/fhir/StructureDefinition/bodyweight')
  t.equal(weight?.type, 'Observation')
  t.ok(weight?.differential.element.length)
  t.equal(publishedProfile('http://example.org/none'), undefined)
})

t.test('a required value set lists its codes by system', async (t) => {
  const gender = valueSet('http://hl7.org/fhir/ValueSet/administrative-gender')
  t.same(gender?.systems, {
    'http://hl7.org/fhir/administrative-gender': ['female', 'male', 'other', 'unknown'],
  })
  t.equal(valueSet('http://hl7.org/fhir/ValueSet/mimetypes'), undefined)
})

t.test(
  'search parameters join those of all resources, the standard and the platform',
  async (t) => {
    for (const code of [
      '_id',
      '_lastUpdated',
      '_tag',
      '_security',
      '_profile',
      '_source',
      'name',
    ]) {
      t.ok(searchParameter('Patient', code), code)
    }
    t.equal(searchParameter('Patient', 'telecom')?.expression, 'Patient.telecom')
    t.equal(searchParameter('ProjectMembership', 'profile-type')?.type, 'token')
    t.equal(searchParameter('AsyncJob', 'status')?.type, 'token')
    t.equal(searchParameter('Patient', 'constructor'), undefined)
    t.same(storedParameters('Observation', 'combo-code'), ['code', 'component-code'])
    t.same(storedParameters('Observation', 'code'), ['code'])
  },
)

t.test('compartments name the parameters that lead into them', async (t) => {
  t.same(compartmentParams('Patient', 'Observation'), ['performer', 'subject'])
  t.same(compartmentParams('Encounter', 'Encounter'), ['{def}'])
  t.same(compartmentParams('Patient', 'Organization'), [])
})

t.test('the main date is a date that occurs once', async (t) => {
  t.equal(mainDate('Observation'), 'date')
  t.equal(mainDate('Condition'), 'onset-date')
  t.equal(mainDate('ServiceRequest'), 'authored')
  t.equal(mainDate('Organization'), undefined)
})
