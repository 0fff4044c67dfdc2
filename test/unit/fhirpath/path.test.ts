import t from 'tap'
import { parseJson } from '../../../shared/fhir/json.ts'
import { compile, holds } from '../../../shared/fhirpath/path.ts'

const observation = parseJson(`{
  "resourceType": "Observation",
  "contained": [{ "resourceType": "Group", "id": "g" }],
  "subject": { "reference": "Patient/3" },
  "focus": [{ "reference": "#g" }, { "reference": "https://other.example/fhir/Device/7/_history/2" }],
  "valueQuantity": { "value": 1.50, "unit": "mg" },
  "component": [{ "valueString": "x" }, { "valueInteger": 2 }]
}`) as Record<string, unknown>

const answers: [string, unknown[]][] = [
  ['value.value > 1.4', [true]],
  ['value.value', [1.5]],
  ['component.value.as(string)', ['x']],
  ['(component.value as integer) + 1', [3]],
  ["'kept as text'", ['kept as text']],
  ['subject.resolve() is Patient', [true]],
  ['focus.resolve().id', ['g', '7']],
  ['focus.resolve().ofType(Device).exists()', [true]],
  ["'http://evil.example/x'.resolve()", []],
  ['%sct', ['http://snomed.info/sct']],
  ['%`vs-languages`', ['http://hl7.org/fhir/ValueSet/languages']],
  ['%`ext-birthPlace`', ['http://hl7.org/fhir/StructureDefinition/birthPlace']],
  ['%resource.subject.reference', ['Patient/3']],
  ['%previous.empty()', [true]],
  ["'a.b'.matches('^[^\\\\s]{1,64}(\\\\.[^\\\\s]+)*$')", [true]],
  ["'line\\nbreak'.matches('line.break')", [true]],
  ["'A1'.matches('a\\\\d', 'i')", [true]],
  ["'abc'.matchesFull('b')", [false]],
  ["'aXb'.replaceMatches('X', '<$&>')", ['a<X>b']],
  ["'a.b'.replace('.', '$&')", ['a$&b']],
  ["component.value.ofType(string).trace('seen')", ['x']],
  ['@2020-02-28 + 1 day', ['2020-02-29']],
  ['constructor', []],
]
for (const [expression, expected] of answers) {
  t.test(`${expression} answers ${JSON.stringify(expected)}`, async (t) => {
    t.same(compile(expression)(observation, { previous: [] }), expected)
  })
}

const faults: [string, RegExp][] = [
  ['name.', /^FHIRPath expression is invalid: line: 1/],
  ['name.foo()', /could not be evaluated: Not implemented: foo/],
  ["code.memberOf('x')", /could not be evaluated/],
  ['component.value & 1', /could not be evaluated/],
  ["'a'.matches('(?=a)')", /could not be evaluated/],
]
for (const [expression, message] of faults) {
  t.test(`${expression} is a fault of the caller`, async (t) => {
    t.throws(() => compile(expression)(observation), { status: 400, message })
  })
}

t.test('an error does not quote the data', async (t) => {
  t.throws(() => compile('component + subject')(observation), { message: /^[^{]*$/ })
})

t.test(
  'a selected element is that of the resource, and its decimals keep their text',
  async (t) => {
    const [quantity] = compile('value')(observation)
    t.equal(quantity, observation.valueQuantity)
    t.match(JSON.stringify(quantity), /1\.50/)
  },
)

t.test('evaluation leaves the resource as it is', async (t) => {
  const before = Reflect.ownKeys(observation)
  const frozen = Object.freeze({ resourceType: 'Patient', name: Object.freeze([{ family: 'A' }]) })
  t.same(compile('name')(frozen), [{ family: 'A' }])
  t.same(Reflect.ownKeys(observation), before)
})

t.test('an expression on an element knows the type by its base', async (t) => {
  const range = compile('low.exists() implies $this is Range', 'Range')
  t.same(range({ low: { value: 1 } }), [true])
  const contact = compile('name.exists() or telecom.exists()', 'Patient.contact')
  t.same(contact({ name: { family: 'A' } }), [true])
  t.same(compile('$this.length() > 1', 'Patient.gender')('male'), [true])
})

t.test('%context has the type of the element that an expression begins at', async (t) => {
  const name = { family: 'A' }
  for (const context of [undefined, name]) {
    const variables = context && { context }
    t.same(compile('%context.type().name', 'HumanName')(name, variables), ['HumanName'])
    t.same(compile('family.select(%context.type().name)', 'HumanName')(name, variables), [
      'HumanName',
    ])
  }
  t.same(compile('%context.family', 'HumanName')(name, { context: { family: 'B' } }), ['B'])
  t.same(compile('%context.type().name')(observation, { context: observation }), ['Observation'])
})

t.test('treats an invariant with an empty result as violated', async (t) => {
  t.equal(holds(compile('name.given.first()'), observation), false)
  t.equal(holds(compile('subject.exists()'), observation), true)
  t.equal(holds(compile('subject.empty()'), observation), false)
})

t.test('the engine keeps the data off the console', async (t) => {
  const warnings = t.capture(console, 'warn')
  const logs = t.capture(console, 'log')
  t.same(compile("@2020-01-01 + 1.5 days | name.trace('x')")(observation), ['2020-01-02'])
  t.same(compile("'abc'.startsWith()")(observation), [])
  t.same([...warnings(), ...logs()], [])
})
