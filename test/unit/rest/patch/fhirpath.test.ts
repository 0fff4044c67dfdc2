import { readFileSync } from 'node:fs'
import t from 'tap'
import type { Resource } from '../../../../shared/fhir/resource.ts'
import { compilePatch } from '../../../../shared/rest/patch/fhirpath.ts'
import {
  elementsIn,
  elementsNamed,
  parseXml,
  resourceFromXml,
  type XmlElement,
} from '../../fhir-xml.ts'

const published = parseXml(
  readFileSync(new URL('../../../data/fhir-patch-tests.xml', import.meta.url), 'utf8'),
)
const findPart = (element: XmlElement, name: string) => {
  const [part] = elementsNamed(element, name).flatMap(elementsIn)
  return part && resourceFromXml(part)
}
for (const element of elementsNamed(published, 'case')) {
  t.test(`passes the published case "${element.attributes.name}"`, async (t) => {
    const input = findPart(element, 'input')
    const change = compilePatch(findPart(element, 'diff'))
    if (input === undefined) return t.fail('the case has no input')
    if (elementsNamed(element, 'error').length > 0) return t.throws(() => change(input))
    t.same(change(input), findPart(element, 'output'))
  })
}

const patient: Resource = {
  resourceType: 'Patient',
  id: 'p',
  birthDate: '1970-01-01',
  _birthDate: { extension: [{ url: 'http://example.org/time', valueString: 'noon' }] },
  deceasedBoolean: false,
  name: [{ given: ['A', 'B', 'C'], _given: [null, { id: 'b' }] }, { family: 'F' }],
  contained: [{ resourceType: 'Organization', id: 'o', name: 'O' }],
}

/** Builds parts from `{ type: 'add', path: …, valueString: … }`. */
function operation(fields: Record<string, unknown>) {
  const texts = ['type', 'path', 'name']
  const numbers = ['index', 'source', 'destination']
  const part = Object.entries(fields).map(([name, value]) => {
    if (texts.includes(name)) return { name, valueString: value }
    return numbers.includes(name) ? { name, valueInteger: value } : { name: 'value', [name]: value }
  })
  return { name: 'operation', part }
}
const parameters = (...operations: Record<string, unknown>[]) => ({
  resourceType: 'Parameters',
  parameter: operations.map(operation),
})
const patched = (...operations: Record<string, unknown>[]) =>
  compilePatch(parameters(...operations))(patient)

const changes: [string, Record<string, unknown>, Record<string, unknown>][] = [
  [
    'an item of a list of primitives goes with its twin',
    { type: 'delete', path: 'Patient.name[0].given[1]' },
    { name: [{ given: ['A', 'C'] }, { family: 'F' }] },
  ],
  [
    'an item that moves takes its twin along',
    { type: 'move', path: 'Patient.name.first().given', source: 1, destination: 2 },
    { name: [{ given: ['A', 'C', 'B'], _given: [null, null, { id: 'b' }] }, { family: 'F' }] },
  ],
  [
    'an insertion moves the twins',
    { type: 'insert', path: 'Patient.name[0].given', index: 0, valueString: 'Z' },
    {
      name: [
        { given: ['Z', 'A', 'B', 'C'], _given: [null, null, { id: 'b' }, null] },
        { family: 'F' },
      ],
    },
  ],
  [
    'a filter selects',
    { type: 'replace', path: "Patient.name.where(family = 'F').family", valueString: 'G' },
    { name: [patient.name?.[0 as never], { family: 'G' }] },
  ],
  [
    'a choice changes its type',
    { type: 'replace', path: 'Patient.deceased', valueDateTime: '2020-01-01' },
    { deceasedBoolean: undefined, deceasedDateTime: '2020-01-01' },
  ],
  [
    'a choice is added by its short name',
    { type: 'add', path: 'Patient', name: 'multipleBirth', valueInteger: 2 },
    { multipleBirthInteger: 2 },
  ],
  [
    'an extension of a primitive is changed',
    { type: 'replace', path: 'Patient.birthDate.extension.value', valueString: 'dawn' },
    { _birthDate: { extension: [{ url: 'http://example.org/time', valueString: 'dawn' }] } },
  ],
  [
    'the last extension of a primitive takes the twin along',
    { type: 'delete', path: "Patient.birthDate.extension('http://example.org/time')" },
    { _birthDate: undefined },
  ],
  [
    'an extension is added to a primitive without one',
    {
      type: 'add',
      path: 'Patient.name[1].family',
      name: 'extension',
      valueExtension: { url: 'http://example.org/x', valueCode: 'y' },
    },
    {
      name: [
        patient.name?.[0 as never],
        { family: 'F', _family: { extension: [{ url: 'http://example.org/x', valueCode: 'y' }] } },
      ],
    },
  ],
  [
    'removes emptied elements',
    { type: 'delete', path: 'Patient.name[1].family' },
    { name: [patient.name?.[0 as never]] },
  ],
  [
    'a contained resource is changed',
    { type: 'replace', path: 'Patient.contained.name', valueString: 'P' },
    { contained: [{ resourceType: 'Organization', id: 'o', name: 'P' }] },
  ],
  ['nothing is deleted where nothing is', { type: 'delete', path: 'Patient.photo' }, {}],
]
for (const [what, fields, expected] of changes) {
  t.test(what, async (t) => {
    const before = JSON.stringify(patient)
    const wanted = JSON.parse(JSON.stringify({ ...patient, ...expected }))
    t.same(JSON.parse(JSON.stringify(patched(fields))), wanted)
    t.equal(JSON.stringify(patient), before)
  })
}

const refused: [string, Record<string, unknown>, RegExp][] = [
  [
    'a path to nothing',
    { type: 'replace', path: 'Patient.gender', valueCode: 'male' },
    /0 \(Patient.gender\) selects nothing/,
  ],
  ['a path to many', { type: 'delete', path: 'Patient.name' }, /more than one/],
  [
    'a computed value',
    { type: 'delete', path: "'x' & 'y'" },
    /not select an element of the resource/,
  ],
  [
    'another resource',
    { type: 'delete', path: "'Patient/1'.resolve().id" },
    /not select an element/,
  ],
  ['the resource itself', { type: 'delete', path: 'Patient' }, /whole resource/],
  [
    'an index beyond the list',
    { type: 'insert', path: 'Patient.name', index: 3, valueHumanName: {} },
    /no index 3/,
  ],
  [
    'a negative index',
    { type: 'move', path: 'Patient.name', source: -1, destination: 0 },
    /no index -1/,
  ],
  [
    'an insertion into no list',
    { type: 'insert', path: 'Patient.birthDate', index: 0, valueDate: '2020' },
    /not a list/,
  ],
  [
    'a second value',
    { type: 'add', path: 'Patient', name: 'birthDate', valueDate: '2020' },
    /already/,
  ],
  [
    'a second value of a choice',
    { type: 'add', path: 'Patient', name: 'deceased', valueDateTime: '2020' },
    /already/,
  ],
  [
    'an unknown element',
    { type: 'add', path: 'Patient', name: 'weight', valueInteger: 1 },
    /no element "weight"/,
  ],
  [
    'an inherited name',
    { type: 'add', path: 'Patient', name: '__proto__', valueInteger: 1 },
    /no element/,
  ],
  ['an unknown type', { type: 'copy', path: 'Patient.name' }, /unknown type/],
  ['no path', { type: 'delete' }, /needs a path/],
  ['no value', { type: 'replace', path: 'Patient.birthDate' }, /needs a value/],
  ['no index', { type: 'insert', path: 'Patient.name', valueHumanName: {} }, /needs a index/],
  ['a broken path', { type: 'delete', path: 'Patient.' }, /is invalid/],
  ['another id', { type: 'replace', path: 'Patient.id', valueId: 'q' }, /^Incorrect ID$/],
  ['an endless path', { type: 'delete', path: '1.repeat($this + 1)' }, /too/],
]
for (const [what, fields, message] of refused) {
  t.test(`rejects a patch with ${what}`, async (t) => {
    t.throws(() => patched(fields), { status: 400, message })
  })
}

t.test('builds a backbone element from a value in parts', async (t) => {
  const part = (name: string, fields: Record<string, unknown>) => ({ name, ...fields })
  const value = part('value', {
    part: [
      part('relationship', { valueCodeableConcept: { text: 'aunt' } }),
      part('name', { valueHumanName: { family: 'X' } }),
      part('telecom', { valueContactPoint: { value: '1' } }),
      part('telecom', { valueContactPoint: { value: '2' } }),
      part('gender', { valueCode: 'female', _valueCode: { id: 'g' } }),
    ],
  })
  const add = operation({ type: 'add', path: 'Patient', name: 'contact' })
  const body = { resourceType: 'Parameters', parameter: [{ ...add, part: [...add.part, value] }] }
  t.match(compilePatch(body)(patient), {
    contact: [
      {
        relationship: [{ text: 'aunt' }],
        name: { family: 'X' },
        telecom: [{ value: '1' }, { value: '2' }],
        gender: 'female',
        _gender: { id: 'g' },
      },
    ],
  })
})

t.test('rejects an insertion into the lists of two elements', async (t) => {
  const add = { type: 'add', path: 'Patient.name[1]', name: 'given', valueString: 'D' }
  const insert = { type: 'insert', path: 'Patient.name.given', index: 0, valueString: 'X' }
  t.throws(() => patched(add, insert), { status: 400, message: /more than one list/ })
  t.throws(
    () => patched(add, { type: 'move', path: 'Patient.name.given', source: 0, destination: 1 }),
    {
      message: /more than one list/,
    },
  )
  t.match(patched(insert), { name: [{ given: ['X', 'A', 'B', 'C'] }] })
})

t.test('applies no operation if one fails', async (t) => {
  const good = { type: 'replace', path: 'Patient.birthDate', valueDate: '2000-01-01' }
  t.throws(() => patched(good, { type: 'replace', path: 'Patient.photo', valueString: 'x' }), {
    message: /operation 1 /,
  })
})

t.test('limits the number of operations and the length of paths', async (t) => {
  const one = { type: 'delete', path: 'Patient.photo' }
  t.ok(patched(...Array(200).fill(one)))
  t.throws(() => patched(...Array(201).fill(one)), { message: /More than 200/ })
  const long = { type: 'delete', path: `Patient.photo.where(title = '${'x'.repeat(1_900)}')` }
  t.throws(() => patched(long, long, long), { message: /too long/ })
})

t.test('reads Parameters with the part "op" as JSON Patch', async (t) => {
  const json = (op: string, path: string, value?: string) => ({
    name: 'operation',
    part: [
      { name: 'op', valueCode: op },
      { name: 'path', valueString: path },
      ...(value === undefined ? [] : [{ name: 'value', valueString: value }]),
    ],
  })
  const change = (...parameter: unknown[]) =>
    compilePatch({ resourceType: 'Parameters', parameter })(patient)
  t.match(change(json('replace', '/birthDate', '"2000-01-01"')), { birthDate: '2000-01-01' })
  t.match(change(json('add', '/name/-', '{"family":"H"}')), { name: [{}, {}, { family: 'H' }] })
  t.throws(() => change(json('add', '/gender', 'male')), { message: /must be JSON/ })
  t.throws(() => change(json('test', '/gender', '"male"')), { message: /test failed/ })
})

t.test('rejects bodies without operations', async (t) => {
  const broken = [{}, [null], [{ name: 'other', part: [] }], [{ name: 'operation', part: [{}] }]]
  for (const parameter of broken) {
    t.throws(() => compilePatch({ resourceType: 'Parameters', parameter }), {
      status: 400,
      message: /./,
    })
  }
})
