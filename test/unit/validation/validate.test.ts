import { readdirSync, readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { parseJson, withoutEmpty } from '../../../shared/fhir/json.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { requireValid, validate } from '../../../shared/validation/validate.ts'
import { r4Defects } from '../../fixtures/resources.ts'

const strict = { strict: true }

function unpack(path: string): string {
  return gunzipSync(readFileSync(new URL(`../../data/${path}`, import.meta.url))).toString()
}

t.test('every official example is valid, except for its known defects', async (t) => {
  const lines = unpack('r4-examples/one-per-type.ndjson.gz').split('\n').filter(Boolean)
  for (const line of lines) {
    const resource = parseJson(line) as Resource
    const issues = validate(resource, { strict: true, thorough: true })
    const faults = issues.filter(({ severity }) => severity === 'error')
    const found = faults.map(({ details, expression }) => `${details.text} at ${expression}`)
    t.same(found, r4Defects.get(resource.resourceType) ?? [], resource.resourceType)
  }
})

t.test('every synthetic patient record is valid', async (t) => {
  const files = readdirSync(new URL('../../data/synthea', import.meta.url))
  for (const file of files.filter((name) => name.endsWith('.json.gz'))) {
    const { entry } = parseJson(unpack(`synthea/${file}`)) as { entry: { resource: Resource }[] }
    const faults = entry.flatMap(({ resource }) => validate(resource, strict))
    t.same(faults.slice(0, 3), [], file)
  }
})

type Case = readonly [name: string, members: object, text: string, expression: string]

const cases: readonly Case[] = [
  ['an unknown property', { x: 1 }, 'Invalid additional property "x"', 'Patient.x'],
  [
    'a property of another type',
    { code: {} },
    'Invalid additional property "code"',
    'Patient.code',
  ],
  [
    'an unknown property of an element',
    { name: [{ text: 'a' }, { first: 'x' }] },
    'Invalid additional property "first"',
    'Patient.name[1].first',
  ],
  ['an own __proto__', JSON.parse('{"__proto__":{}}'), 'Invalid additional', 'Patient.__proto__'],
  ['a name of every object', { constructor: 'x' }, 'Invalid additional', 'Patient.constructor'],
  [
    'a missing required property',
    { communication: [{ preferred: true }] },
    'Missing required property',
    'Patient.communication[0].language',
  ],
  ['one value for an array', { name: {} }, 'Expected array of values for property', 'Patient.name'],
  ['an array for one value', { gender: ['male'] }, 'Expected single value', 'Patient.gender'],
  ['an empty array', { name: [] }, 'Invalid empty value', 'Patient.name'],
  ['an empty object', { name: [{}] }, 'Invalid empty non-primitive value', 'Patient.name[0]'],
  ['a blank string', { name: [{ text: ' ' }] }, 'String must contain', 'Patient.name[0].text'],
  ['null', { gender: null }, 'Invalid null value', 'Patient.gender'],
  ['null among objects', { name: [null] }, 'Invalid null value', 'Patient.name[0]'],
  [
    'null among primitives without a twin',
    { name: [{ given: ['a', null] }] },
    'Invalid null value',
    'Patient.name[0].given[1]',
  ],
  [
    'a number for a string',
    { name: [{ family: 1 }] },
    'Invalid JSON type: expected string, but got number',
    'Patient.name[0].family',
  ],
  ['a string for a boolean', { active: 'true' }, 'expected boolean, but got', 'Patient.active'],
  ['a string for an object', { name: ['x'] }, 'expected object, but got string', 'Patient.name[0]'],
  ['a number for an object', { name: [1.0] }, 'expected object, but got num', 'Patient.name[0]'],
  ['a malformed date', { birthDate: '1980-1-1' }, 'Invalid date format', 'Patient.birthDate'],
  ['a day that never was', { birthDate: '2021-02-29' }, 'Invalid date', 'Patient.birthDate'],
  ['a malformed id', { id: 'a b' }, 'Invalid id format', 'Patient.id'],
  ['a malformed code', { gender: ' male' }, 'Invalid code format', 'Patient.gender'],
  [
    'a fraction for an integer',
    { multipleBirthInteger: 1.5 },
    'Expected number to be an integer',
    'Patient.multipleBirthInteger',
  ],
  [
    'a negative rank',
    { telecom: [{ rank: -1 }] },
    'Expected number to be positive',
    'Patient.telecom[0].rank',
  ],
  [
    'a string above 1 MB',
    { name: [{ text: 'x'.repeat(1_048_577) }] },
    'String cannot be larger than 1 MB',
    'Patient.name[0].text',
  ],
  [
    'a contained resource of an unknown type',
    { contained: [{ resourceType: 'Nothing', id: 'a' }] },
    'Unknown resource type',
    'Patient.contained[0].resourceType',
  ],
  [
    'a contained resource in a contained one',
    { contained: [{ resourceType: 'Basic', code: { text: 'x' }, contained: [] }] },
    'Invalid empty value',
    'Patient.contained[0].contained',
  ],
]
for (const [name, members, text, expression] of cases) {
  t.test(`${name} is an error with its path`, async (t) => {
    const [first] = validate({ resourceType: 'Patient', ...members }, strict)
    t.match(first, { severity: 'error', code: 'structure', expression: [expression] })
    t.ok(first?.details.text.includes(text), first?.details.text ?? 'no issue')
  })
}

const fine: readonly [string, object][] = [
  ['null next to an extension', { name: [{ given: [null], _given: [{ id: 'a' }] }] }],
  ['extensions next to null', { name: [{ given: ['a', 'b'], _given: [null, { id: 'b' }] }] }],
  ['a leap day', { birthDate: '2020-02-29' }],
  ['a leap day of a century', { birthDate: '2000-02-29' }],
  ['a year alone', { birthDate: '0044' }],
  [
    'a reference to a contained resource',
    {
      contained: [{ resourceType: 'Organization', id: 'o', name: 'x' }],
      managingOrganization: { reference: '#o' },
    },
  ],
  ['an extension in place of a required value', { extension: [{ url: 'u', valueString: 'x' }] }],
  [
    'a decimal of any precision',
    parseJson('{"extension":[{"url":"u","valueDecimal":1.00}]}') as object,
  ],
]
for (const [name, members] of fine) {
  t.test(`${name} is valid`, async (t) => {
    t.same(validate({ resourceType: 'Patient', ...members }, strict), [])
  })
}

t.test('rejects two types of one choice in every Project', async (t) => {
  const two = { resourceType: 'Patient', deceasedBoolean: true, deceasedDateTime: '2020' }
  for (const isStrict of [true, false])
    t.match(validate(two, { strict: isStrict }), [
      {
        severity: 'error',
        details: {
          text: 'Conflicting choice of type properties: "deceasedBoolean", "deceasedDateTime"',
        },
      },
    ])
})

t.test('no more than 100 issues are listed', async (t) => {
  const name = Array.from({ length: 500 }, () => ({ x: 1 }))
  t.equal(validate({ resourceType: 'Patient', name }, strict).length, 100)
})

t.test('a hundred warnings do not hide an error behind them', async (t) => {
  const communication = Array.from({ length: 200 }, () => ({ preferred: true }))
  const resource = { resourceType: 'Patient', communication, x: 1 }
  const lenient = { strict: false }
  const issues = validate(resource, lenient)
  t.equal(issues.length, 100)
  t.match(issues[99], { severity: 'error', expression: ['Patient.x'] })
})

t.test('a code has single spaces between words and at most 1 MB', async (t) => {
  const isCode = (gender: string) =>
    validate({ resourceType: 'Patient', gender }, { ...strict, takesCodes: true }).filter(
      ({ severity }) => severity === 'error',
    )
  t.same(isCode('a b c'), [])
  for (const text of ['a  b', ' a', 'a ', 'a\n\tb']) {
    t.match(isCode(text), [{ details: { text: 'Invalid code format' } }], JSON.stringify(text))
  }
  t.same(isCode(`${'a '.repeat(500_000)}b`), [])
  t.match(isCode(`${'a '.repeat(5_000_000)}b`), [
    { details: { text: 'String cannot be larger than 1 MB' } },
  ])
})

t.test('all elements of a differential lie below the first one', async (t) => {
  const structure = (...paths: string[]) => ({
    resourceType: 'StructureDefinition',
    url: 'http://example.org/s',
    name: 'S',
    status: 'draft',
    kind: 'resource',
    abstract: true,
    type: 'Patient',
    differential: { element: paths.map((path) => ({ id: path, path })) },
  })
  const profileKeys = (...paths: string[]) =>
    validate(structure(...paths), strict).map(({ details }) => /sdf-\S+/.exec(details.text)?.[0])
  t.same(profileKeys('Patient', 'Patient.name', 'Patient.name.family'), [])
  t.same(profileKeys('Patient.name', 'Patient.name.family'), [])
  t.same(profileKeys('Patient', 'Person.name'), ['sdf-8a'])
  t.same(profileKeys('Person', 'Person.name'), ['sdf-8a'])
})

t.test('a project without strict mode drops empty elements', async (t) => {
  const sent = {
    resourceType: 'Patient',
    gender: '',
    name: [{ given: ['a', null], _given: [null, { id: 'b' }], family: null }, {}],
    telecom: [],
  }
  const resource = withoutEmpty(sent)
  t.same(resource, {
    resourceType: 'Patient',
    name: [{ given: ['a', null], _given: [null, { id: 'b' }] }],
  })
  t.same(requireValid(resource, { strict: false }), [])
})

t.test('rejects a wrong shape in a project without strict mode', async (t) => {
  const lenient = { strict: false }
  t.throws(() => requireValid({ resourceType: 'Patient', x: 1 }, lenient))
  t.throws(() => requireValid({ resourceType: 'Patient', active: 'yes' }, lenient))
  t.match(requireValid({ resourceType: 'Observation' }, lenient), [
    { severity: 'warning', expression: ['Observation.status'] },
    { severity: 'warning', expression: ['Observation.code'] },
  ])
})
