/** Documents before they are carried out: fields that cannot be merged, and long ones, which take turns. */
import { OverlappingFieldsCanBeMergedRule, parse, validate } from 'graphql'
import t from 'tap'
import { resourceTypes } from '../../shared/fhir/definitions.ts'
import { loadEngine } from '../../shared/fhirpath/engine.ts'
import { prepareDocument } from '../../shared/graphql/document/document.ts'
import { overlapErrors } from '../../shared/graphql/document/overlaps.ts'
import { schemaFor } from '../../shared/graphql/schema/schema.ts'
import { turnsOf } from '../fixtures/graphql.ts'

const schema = schemaFor({ isSuperAdmin: false, instance: undefined })
const MAX_FIELDS = 20_000

function overlapsIn(query: string, maxFields = MAX_FIELDS): readonly string[] {
  const walk = overlapErrors(schema, parse(query), maxFields)
  for (;;) {
    const { done, value } = walk.next()
    if (done) return value.map(({ message }) => message)
  }
}

/** Fields of some resource, behind a reference. */
const target = (fields: string) => `{ ObservationList { subject { resource { ${fields} } } } }`

const documents: readonly string[] = [
  '{ PatientList { id id name { family } name { given } } }',
  '{ PatientList { a: id a: gender } }',
  '{ PatientList { name { a: family } name { a: given } } }',
  '{ PatientList { name(use: "usual") { family } name { family } } }',
  '{ PatientList { name(use: "usual", _count: 1) { family } name(_count: 1, use: "usual") { given } } }',
  '{ PatientList { name(use: "usual") { family } name(use: "nickname") { family } } }',
  'query ($a: String, $b: String) { PatientList { name(use: $a) { use } name(use: $b) { use } } }',
  'query ($a: String) { PatientList { name(use: $a) { use } name(use: $a) { family } } }',
  '{ a: PatientList { id } a: PatientConnection { count } }',
  '{ PatientList { a: name { family } a: birthDate } }',
  target('... on Patient { name { family } } ... on Group { name }'),
  target('... on Patient { name { family } } ... on Practitioner { name { given } }'),
  target('... on Patient { a: birthDate } ... on Group { a: name }'),
  target('... on Patient { a: birthDate } ... on Group { a: active }'),
  target(
    '... on Patient { a: name { b: family } } ... on Group { a: code { b: coding { code } } }',
  ),
  target('... on Patient { name(use: "usual") { use } } ... on Practitioner { name { use } }'),
  target('... on Patient { a: id } a: __typename'),
  target('... on Patient { a: __typename } a: __typename'),
  target('...one ...two') +
    ' fragment one on Patient { a: id } fragment two on Patient { a: gender }',
  `${target('...one ...two')} fragment one on Patient { a: id } fragment two on Group { a: name }`,
  target('...one') +
    ' fragment one on Patient { ...two name { use } } fragment two on Patient { name { a: use ...n } } fragment n on HumanName { a: family }',
  '{ PatientList { ...f } } fragment f on Patient { contact { name { a: use } } ... { contact { name { a: text } } } }',
  'mutation { a: PatientDelete(id: "1") { id } a: PatientDelete(id: "2") { id } }',
  '{ __schema { types { name } } __schema { types { name: kind } } }',
  'query one { PatientList { id } } query two { PatientList { a: id a: gender } }',
]

for (const query of documents) {
  t.test(`fields are merged where graphql-js merges them: ${query.slice(0, 90)}`, async (t) => {
    const theirs = validate(schema, parse(query), [OverlappingFieldsCanBeMergedRule])
    const ours = overlapsIn(query)
    t.equal(ours.length > 0, theirs.length > 0)
    if (ours.length > 0) t.match(ours[0], /^Fields "\w+" conflict because .* different aliases/)
  })
}

t.test(
  'fragments that hold themselves and what is not there end, and are told by others',
  async (t) => {
    for (const query of [
      '{ PatientList { ...a } } fragment a on Patient { id extension { ...b } ...a } fragment b on Extension { extension { ...b } }',
      '{ NothingList { id { id } } PatientList { nothing { a b } ...none ... on Nothing { id } } }',
      'subscription { PatientList { id } }',
    ]) {
      t.same(overlapsIn(query), [])
      const { errors } = await prepareDocument(schema, 'test', query)
      t.ok(errors.length > 0)
    }
  },
)

t.test('fields are counted wherever fragments put them, up to a limit', async (t) => {
  const bomb = Array.from(
    { length: 20 },
    (_, i) =>
      `fragment f${i} on Extension { a: extension { ...f${i + 1} } b: extension { ...f${i + 1} } }`,
  )
  const query = `{ PatientList { extension { ...f0 } } } ${bomb.join(' ')} fragment f20 on Extension { url }`
  t.same(overlapsIn(query), [
    `A document may ask for ${MAX_FIELDS} fields, those of fragments included`,
  ])
  const three = '{ PatientList { id gender } }'
  t.same(overlapsIn(three, 3), [])
  t.equal(overlapsIn(three, 2).length, 1)
})

t.test('a document that names every type, or has hundreds of fragments, takes turns', async (t) => {
  const every = resourceTypes.map((type) => `... on ${type} { id meta { versionId } }`)
  const known = every.filter((text) => !/Login|JsonWebKey|DomainConfiguration/.test(text))
  const long = [
    target(known.join(' ')),
    `{ PatientList { ${'... { name { family given } } '.repeat(450)} } }`,
  ]
  for (const query of long) {
    const { turns, result } = await turnsOf(() => prepareDocument(schema, 'test', query))
    t.same(result.errors, [])
    t.ok(turns > 20)
  }
})

t.test('FHIRPath is loaded part by part, once', async (t) => {
  t.ok((await turnsOf(loadEngine)).turns > 10)
  t.ok((await turnsOf(loadEngine)).turns < 10)
})
