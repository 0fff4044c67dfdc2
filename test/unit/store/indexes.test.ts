import { readFileSync } from 'node:fs'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { resourceTypes, searchParameters } from '../../../shared/fhir/definitions.ts'
import type { Resource } from '../../../shared/fhir/resource.ts'
import { compileExpression } from '../../../shared/fhirpath/extract.ts'
import { arrayLiteral } from '../../../shared/postgres/statement.ts'
import { getIndexPlan, keepsRows, keepsSideRows } from '../../../shared/store/index/index-plan.ts'
import { deriveIndexes, patientCompartments } from '../../../shared/store/index/indexes.ts'
import { Keys } from '../../../shared/store/index/keys.ts'

const PROJECT = 7
const keys = new Keys(Buffer.alloc(32, 5))
const examples = readExamples()

function readExamples(): Resource[] {
  const file = new URL('../../data/r4-examples/one-per-type.ndjson.gz', import.meta.url)
  const lines = gunzipSync(readFileSync(file)).toString().trim().split('\n')
  return lines.map((line) => JSON.parse(line))
}

function derive(resource: Resource) {
  return deriveIndexes(keys, PROJECT, { id: '1', ...resource })
}

/** The resource without each of its elements in turn. */
function variants(resource: Resource): readonly Resource[] {
  const names = Object.keys(resource).filter((name) => name !== 'resourceType' && name !== 'id')
  return names.map((name) => ({ ...resource, [name]: undefined }))
}

const p = (type: string, param: string) => keys.param(PROJECT, type, param)

t.test('compiles and runs every search expression on every official example', async (t) => {
  let compiled = 0
  for (const type of resourceTypes) {
    for (const { code, expression } of searchParameters(type).values()) {
      if (expression === undefined) continue
      const legs = compileExpression(type, expression)
      if (legs.length === 0) t.fail(`${type} ${code} compiles to nothing`)
      for (const leg of legs) {
        const walk = leg.bind<unknown[]>((value, found) => found.push(value))
        for (const example of examples) walk(example, [])
      }
      compiled++
    }
  }
  const unplanned = resourceTypes.filter((type) => getIndexPlan(type).parameters.length === 0)
  t.same(unplanned, [])
  t.ok(compiled > 1700, `${compiled} expressions`)
})

t.test('puts a self key first and no key twice on every official example', async (t) => {
  t.equal(examples.length, 140)
  for (const example of examples) {
    const rows = derive(example)
    const self = keys.self(PROJECT, example.resourceType, `${example.resourceType}/${example.id}`)
    t.equal(rows.keys[0], self, example.resourceType)
    t.equal(new Set(rows.keys).size, rows.keys.length)
    t.ok(rows.nref <= rows.keys.length)
    t.equal(rows.dateLow === undefined, rows.dateHigh === undefined)
  }
})

t.test('derives strings and ranges from the elements of a plan', (t) => {
  const sides = ({ strings, ranges }: ReturnType<typeof derive>) => ({ strings, ranges })
  for (const example of examples) {
    const { sides: elements } = getIndexPlan(example.resourceType)
    const kept = variants(example).filter((rest) => keepsSideRows(elements, example, rest))
    const all = sides(derive(example))
    t.same(
      kept.map((rest) => sides(derive(rest))),
      kept.map(() => all),
      example.resourceType,
    )
  }
  const listElements = (type: string) => getIndexPlan(type).sides
  const observation: Resource = { resourceType: 'Observation', id: '1', status: 'final' }
  const kept = (change: object) =>
    keepsSideRows(listElements('Observation'), observation, { ...observation, ...change })
  t.ok(kept({ status: 'amended', effectiveDateTime: '2026-01-01' }))
  t.notOk(kept({ valueQuantity: { value: 1 } }), 'a range')
  t.notOk(kept({ code: { text: 'x' } }), 'a part of a composite of the whole')
  t.end()
})

t.test('derives all rows from the elements of a plan', (t) => {
  for (const example of examples) {
    const { elements } = getIndexPlan(example.resourceType)
    const kept = variants(example).filter((rest) => keepsRows(elements, example, rest))
    const rows = [example, ...kept].map(derive).map(({ codes: _, ...rest }) => rest)
    t.same(
      rows,
      rows.map(() => rows[0]),
      example.resourceType,
    )
  }
  const { elements } = getIndexPlan('Observation')
  const observation: Resource = { resourceType: 'Observation', id: '1', status: 'final' }
  const kept = (change: object) => keepsRows(elements, observation, { ...observation, ...change })
  t.ok(kept({ language: 'en', meta: { versionId: '2', onBehalfOf: { reference: 'Bot/1' } } }))
  t.notOk(kept({ meta: { author: { reference: 'Bot/1' } } }), 'the author')
  t.notOk(kept({ status: 'amended' }), 'a key')
  t.notOk(kept({ effectiveDateTime: '2026-01-01' }), 'the main date')
  t.notOk(kept({ code: { text: 'x' } }), 'a part of a composite of the whole')
  t.notOk(kept({ meta: { tag: [{ code: 'x' }] } }), 'a key of the meta')
  t.notOk(kept({ meta: { accounts: [{ reference: 'Patient/1' }] } }), 'a compartment')
  t.end()
})

t.test('derives the same keys from UUIDs in either case', (t) => {
  const id = 'a0b1c2d3-0000-4000-8000-00000000000f'
  const observation = (patient: string): Resource => ({
    resourceType: 'Observation',
    subject: { reference: `Patient/${patient}` },
    meta: { author: { reference: `Practitioner/${patient}` } },
  })
  const list = (patient: string): Resource => ({
    resourceType: 'List',
    entry: [
      { item: { reference: `Patient/${id}` } },
      { item: { reference: `Patient/${patient}` }, deleted: true },
    ],
  })
  for (const resource of [observation, list]) {
    t.same(derive(resource(id.toUpperCase())), derive(resource(id)))
  }
  t.same(patientCompartments(observation(id.toUpperCase())), [`Patient/${id}`])
  t.end()
})

t.test('ignores malformed elements without throwing', async (t) => {
  const wrong = [null, 'text', 5, true, [], [null], {}, [[{}]], { coding: 'x' }, [{ value: {} }]]
  for (const example of examples) {
    for (const name of Object.keys(example)) {
      if (name === 'resourceType' || name === 'id') continue
      for (const value of wrong) derive({ ...example, [name]: value })
    }
  }
  t.pass('derived them all')
})

t.test('gives a coded token keys with and without system and a code row', async (t) => {
  const coding = { system: 'http://loinc.org', code: '1234-5', display: 'Something' }
  const rows = derive({ resourceType: 'Observation', code: { coding: [coding], text: 'Free' } })
  const code = p('Observation', 'code')
  t.ok(rows.keys.includes(keys.token(code, 'http://loinc.org', '1234-5')))
  t.ok(rows.keys.includes(keys.token(code, undefined, '1234-5')))
  t.ok(rows.keys.includes(keys.token(code, undefined, 'Free')))
  t.ok(rows.keys.includes(keys.present(code)))
  t.notOk(rows.keys.includes(keys.token(code, '', '1234-5')))
  t.notOk(rows.keys.includes(keys.present(p('Observation', 'category'))))
  t.match(rows.codes, [
    { p: code, system: 'http://loinc.org', code: '1234-5', display: 'Something' },
  ])
})

t.test('indexes an identifier by value, system and type', async (t) => {
  const type = { coding: [{ system: 't', code: 'MR' }] }
  const rows = derive({ resourceType: 'Patient', identifier: [{ system: 's', value: 'v', type }] })
  const identifier = p('Patient', 'identifier')
  t.ok(rows.keys.includes(keys.token(identifier, 's', 'v')))
  t.ok(rows.keys.includes(keys.token(identifier, undefined, 'v')))
  t.ok(rows.keys.includes(keys.system(identifier, 's')))
  t.ok(rows.keys.includes(keys.ofType(identifier, 't', 'MR', 'v')))
  t.same(
    rows.codes.map((row) => row.p),
    [p('Patient', 'deceased')],
  )
})

t.test('gives plain elements one key, and email in lower case', async (t) => {
  const rows = derive({
    resourceType: 'Patient',
    active: true,
    gender: 'male',
    deceasedDateTime: '2020-01-01',
    telecom: [{ system: 'email', value: 'Ann@Example.COM' }],
  })
  t.ok(rows.keys.includes(keys.token(p('Patient', 'active'), undefined, 'true')))
  t.ok(rows.keys.includes(keys.token(p('Patient', 'gender'), undefined, 'male')))
  t.ok(rows.keys.includes(keys.token(p('Patient', 'deceased'), undefined, 'true')))
  t.ok(rows.keys.includes(keys.token(p('Patient', 'email'), undefined, 'ann@example.com')))
  t.ok(rows.keys.includes(keys.token(p('Patient', 'telecom'), 'email', 'Ann@Example.COM')))
  t.notOk(rows.keys.includes(keys.present(p('Patient', 'phone'))))
})

t.test('keeps the secret of a login out of the code dictionary', async (t) => {
  const rows = derive({ resourceType: 'Login', code: 'secret', cookie: 'secret' })
  t.ok(rows.keys.includes(keys.token(p('Login', 'code'), undefined, 'secret')))
  t.same(rows.codes, [])
})

t.test('indexes a patient without deceased[x] as not deceased', async (t) => {
  const rows = derive({ resourceType: 'Patient' })
  t.ok(rows.keys.includes(keys.token(p('Patient', 'deceased'), undefined, 'false')))
})

t.test('relates a reference key to a self key by two constants', async (t) => {
  const rows = derive({
    resourceType: 'Observation',
    subject: { reference: 'Patient/9/_history/2', identifier: { system: 's', value: 'v' } },
  })
  const self = keys.self(PROJECT, 'Patient', 'Patient/9')
  const key = self ^ p('Patient', '_self') ^ p('Observation', 'patient')
  const references = rows.keys.slice(0, rows.nref)
  t.ok(references.includes(key))
  t.ok(
    references.includes(
      keys.reference(p('Observation', 'subject'), keys.target(PROJECT, 'Patient/9')),
    ),
  )
  t.ok(references.includes(keys.compartment(PROJECT, 'Patient/9')))
  t.equal(references.length, 4)
  t.ok(rows.keys.includes(keys.token(keys.logical(p('Observation', 'subject')), 's', 'v')))
})

t.test('creates no key for a contained reference', async (t) => {
  t.equal(derive({ resourceType: 'Observation', subject: { reference: '#p' } }).nref, 1)
})

t.test('indexes compartments with the patient and its referrers', async (t) => {
  const patient: Resource = { resourceType: 'Patient', id: '1' }
  t.same(patientCompartments(patient), ['Patient/1'])
  t.ok(derive(patient).keys.includes(keys.compartment(PROJECT, 'Patient/1')))
  const observation: Resource = {
    resourceType: 'Observation',
    subject: { reference: 'Patient/2' },
    performer: [{ reference: 'Patient/3' }, { reference: 'Practitioner/4' }],
    focus: [{ reference: 'Patient/5' }],
  }
  t.same(patientCompartments(observation), ['Patient/3', 'Patient/2'])
  const rows = derive(observation)
  t.ok(rows.keys.includes(keys.compartment(PROJECT, 'Practitioner/4')))
  t.notOk(rows.keys.includes(keys.compartment(PROJECT, 'Patient/5')))
})

t.test('indexes names as normalised strings and words', async (t) => {
  const rows = derive({
    resourceType: 'Patient',
    name: [{ family: 'van der Berg', given: ['Zoë'] }],
  })
  const name = p('Patient', 'name')
  const ofName = (wanted: bigint) =>
    rows.strings.filter((row) => row.p === wanted).map((row) => row.v)
  t.same(ofName(name), ['van der berg', 'zoe'])
  t.same(ofName(keys.words(name)), ['der', 'berg'])
  t.same(ofName(p('Patient', 'family')), ['van der berg'])
})

t.test('stores the main date in the row and other dates as ranges', async (t) => {
  const rows = derive({
    resourceType: 'Patient',
    birthDate: '1980-02',
    deceasedDateTime: '2020-01-01T10:00:00+02:00',
  })
  t.equal(rows.dateLow, '1980-02-01T00:00:00.000Z')
  t.equal(rows.dateHigh, '1980-03-01T00:00:00.000Z')
  t.same(rows.ranges, [
    {
      p: p('Patient', 'death-date'),
      lo: Date.parse('2020-01-01T08:00:00Z'),
      hi: Date.parse('2020-01-01T08:00:01Z'),
      u: 0n,
    },
  ])
  const open = derive({ resourceType: 'Encounter', period: { start: '2024-01-01' } })
  t.match(open, { dateLow: '2024-01-01T00:00:00.000Z', dateHigh: 'infinity' })
})

t.test('indexes a quantity as a range with unit, also in composites', async (t) => {
  const ucum = 'http://unitsofmeasure.org'
  const rows = derive({
    resourceType: 'Observation',
    code: { coding: [{ system: 'l', code: 'c' }] },
    valueQuantity: { value: 5, unit: 'mg', system: ucum, code: 'mg', comparator: '<' },
  })
  const u = keys.unit(ucum, 'mg')
  const composite = p('Observation', 'code-value-quantity')
  const first = keys.token(composite, 'l', 'c')
  t.match(
    rows.ranges.filter((row) => row.p === p('Observation', 'value-quantity')),
    [{ lo: -Infinity, hi: 5, u }],
  )
  t.match(
    rows.ranges.filter((row) => row.p === keys.composite(first, 1)),
    [{ lo: -Infinity, hi: 5, u }],
  )
  t.equal(rows.ranges.length, 2)
})

t.test('joins two tokens of one element into a composite key', async (t) => {
  const rows = derive({
    resourceType: 'Observation',
    component: [
      { code: { coding: [{ code: 'a' }] }, valueCodeableConcept: { coding: [{ code: 'x' }] } },
      { code: { coding: [{ code: 'b' }] }, valueCodeableConcept: { coding: [{ code: 'y' }] } },
    ],
  })
  const composite = p('Observation', 'component-code-value-concept')
  const pair = (a: string, b: string) =>
    keys.composite(keys.token(composite, undefined, a), 1, keys.token(composite, undefined, b))
  t.ok(rows.keys.includes(pair('a', 'x')))
  t.ok(rows.keys.includes(pair('b', 'y')))
  t.notOk(rows.keys.includes(pair('a', 'y')))
})

t.test('indexes platform parameters and meta', async (t) => {
  const rows = derive({
    resourceType: 'ProjectMembership',
    profile: { reference: 'Practitioner/1' },
    meta: { tag: [{ system: 's', code: 'c' }], profile: ['http://p|1'], source: 'urn:x' },
  })
  t.ok(
    rows.keys.includes(
      keys.token(p('ProjectMembership', 'profile-type'), undefined, 'Practitioner'),
    ),
  )
  t.ok(rows.keys.includes(keys.token(p('ProjectMembership', '_tag'), 's', 'c')))
  t.ok(rows.keys.includes(keys.uri(p('ProjectMembership', '_profile'), 'http://p|1')))
  t.ok(rows.keys.includes(keys.uri(p('ProjectMembership', '_profile'), 'http://p')))
  t.ok(rows.keys.includes(keys.uri(p('ProjectMembership', '_source'), 'urn:x')))
  const task = derive({ resourceType: 'Task', priority: 'urgent' })
  t.match(task.ranges, [{ p: p('Task', 'priority-order'), lo: 30, hi: 30 }])
})

t.test('varies keys by salt, project, type and parameter', async (t) => {
  const all = [
    p('Patient', 'name'),
    p('Patient', 'family'),
    p('Person', 'name'),
    keys.param(PROJECT + 1, 'Patient', 'name'),
    new Keys(Buffer.alloc(32, 6)).param(PROJECT, 'Patient', 'name'),
  ]
  t.equal(new Set(all).size, all.length)
  t.not(keys.token(1n, 'ab', 'c'), keys.token(1n, 'a', 'bc'))
  t.not(keys.token(1n, undefined, 'c'.repeat(5000)), keys.token(1n, undefined, 'c'.repeat(5001)))
  t.equal(arrayLiteral([-1n, 2n]), '{-1,2}')
})

t.test('takes a UUID as row id or derives a stable one', async (t) => {
  const uuid = '0190A5B6-1234-7abc-8def-0123456789AB'
  t.equal(keys.rowId('Patient', uuid), uuid.toLowerCase())
  const made = keys.rowId('Patient', 'example')
  t.match(made, /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
  t.equal(keys.rowId('Patient', 'example'), made)
  t.not(keys.rowId('Group', 'example'), made)
})

t.test('rejects more references than a row can hold', async (t) => {
  const member = Array.from({ length: 33_000 }, (_, i) => ({
    entity: { reference: `Device/${i}` },
  }))
  t.throws(() => derive({ resourceType: 'Group', member }), /32767 references/)
})
