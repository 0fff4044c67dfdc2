/** Validation of documents: long ones yield to the event loop, too costly ones are rejected. */
import t from 'tap'
import { resourceTypes } from '../../../shared/fhir/definitions.ts'
import { loadEngine } from '../../../shared/fhirpath/engine.ts'
import { prepareDocument } from '../../../shared/graphql/document/document.ts'
import { scan } from '../../../shared/graphql/document/literals.ts'
import { schemaFor } from '../../../shared/graphql/schema/schema.ts'
import { countEventLoopTurns } from '../../fixtures/graphql.ts'

const schema = schemaFor({ isSuperAdmin: false, instance: undefined })
const MAX_FIELDS = 20_000

const prepare = (query: string) => prepareDocument(schema, 'test', query, scan(query))

async function validateQuery(query: string): Promise<readonly string[]> {
  const prepared = await prepare(query)
  return 'errors' in prepared ? prepared.errors.map(({ message }) => message) : []
}

const target = (fields: string) => `{ ObservationList { subject { resource { ${fields} } } } }`

t.test('rejects cyclic fragments and unknown names', async (t) => {
  for (const query of [
    '{ PatientList { ...a } } fragment a on Patient { id extension { ...b } ...a } fragment b on Extension { extension { ...b } }',
    '{ NothingList { id { id } } PatientList { nothing { a b } ...none ... on Nothing { id } } }',
    'subscription { PatientList { id } }',
    '{ PatientList { a: id a: gender } }',
    target('...one ...two') +
      ' fragment one on Patient { a: id } fragment two on Patient { a: gender }',
  ]) {
    t.ok((await validateQuery(query)).length > 0, query)
  }
})

t.test('counts fields through fragments up to a limit', async (t) => {
  const bomb = Array.from(
    { length: 20 },
    (_, i) =>
      `fragment f${i} on Extension { a: extension { ...f${i + 1} } b: extension { ...f${i + 1} } }`,
  )
  const query = `{ PatientList { extension { ...f0 } } } ${bomb.join(' ')} fragment f20 on Extension { url }`
  t.same(await validateQuery(query), [
    `A document may ask for ${MAX_FIELDS} fields, those of fragments included`,
  ])
})

t.test('compares fields of one name up to a limit', async (t) => {
  const copies = (count: number) =>
    target('... on Patient { name { family given } } '.repeat(count))
  t.same(await validateQuery(copies(150)), [])
  t.same(await validateQuery(copies(450)), [
    'A document may have 50000 pairs of fields of one name',
  ])
})

t.test('shares a plan between documents that differ in strings only', async (t) => {
  const list = (family: string) => `{ PatientList(family: ${family}) { id } }`
  const same = await prepare(list('"a"'))
  t.equal(await prepare(list('"other"')), same)
  t.not(await prepare(list('["a"]')), same)
  t.not(await prepare(list('"escaped \\"quotes\\""')), same)
  t.not(await prepare(list('"""block"""')), same)
  const two = (one: string, other: string) =>
    `{ PatientList { name(use: "${one}") { family } name(use: "${other}") { given } } }`
  t.same(await validateQuery(two('usual', 'usual')), [])
  t.equal((await validateQuery(two('usual', 'official'))).length, 1)
  const defaults = (text: string) =>
    `query ($a: String = "${text}") { PatientList(family: [$a]) { id } }`
  t.not(await prepare(defaults('a')), await prepare(defaults('b')))
  const write = (text: string) =>
    `mutation { BasicCreate(res: { code: { text: "${text}" } }) { id } }`
  t.not(await prepare(write('a')), await prepare(write('b')))
  t.equal(await prepare(write('a')), await prepare(write('a')))
})

t.test('yields during documents with every type or hundreds of fragments', async (t) => {
  const every = resourceTypes.map((type) => `... on ${type} { id meta { versionId } }`)
  const known = every.filter((text) => !/Login|JsonWebKey|DomainConfiguration/.test(text))
  const long = [
    target(known.join(' ')),
    `{ PatientList { ${'... { name { family given } } '.repeat(150)} } }`,
  ]
  for (const query of long) {
    const { turns, result } = await countEventLoopTurns(() => prepare(query))
    t.notOk('errors' in result)
    t.ok(turns > 20)
  }
})

t.test('loads FHIRPath once, in parts', async (t) => {
  t.ok((await countEventLoopTurns(loadEngine)).turns > 10)
  t.ok((await countEventLoopTurns(loadEngine)).turns < 10)
})
