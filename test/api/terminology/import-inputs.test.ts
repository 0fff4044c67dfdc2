/** Inputs of `$import` that would not be stored. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const { admin } = await openBotica(t)
const url = 'https://example.org/inputs'
const more = { url, status: 'active' }
await admin.create({ resourceType: 'CodeSystem', content: 'not-present', ...more })
await admin.create({ resourceType: 'ConceptMap', ...more })

const parameters = (...parameter: object[]) => ({ resourceType: 'Parameters', parameter })
const system = { name: 'system', valueUri: url }
const target = { name: 'url', valueUri: url }
const coding = { system: url, code: '1' }
const concept = { name: 'concept', valueCoding: coding }
const mapping = (...parts: object[]) => ({
  name: 'mapping',
  part: [
    { name: 'source', valueCoding: coding },
    { name: 'target', valueCoding: coding },
    ...parts,
  ],
})

t.test('returns 400 for unknown inputs, for rows of the other type and for none', async (t) => {
  const cases: readonly (readonly [type: string, body: object, text: RegExp, path: string])[] = [
    ['CodeSystem', parameters(system, mapping()), /"mapping" is an input of Concept/, 'mapping'],
    ['CodeSystem', parameters(system), /needs at least one concept or property/, 'concept'],
    [
      'CodeSystem',
      parameters(system, { ...concept, name: 'concepts' }),
      /Unknown parameter "concepts"/,
      'Parameters.parameter[1]',
    ],
    ['ConceptMap', parameters(target, concept), /"concept" is an input of Code/, 'concept'],
    ['ConceptMap', parameters(target), /needs at least one mapping/, 'mapping'],
    [
      'ConceptMap',
      parameters(target, mapping({ name: 'dependsOn', part: [] })),
      /Unknown parameter "dependsOn"/,
      'Parameters.parameter[1].part[2]',
    ],
  ]
  for (const [type, body, text, path] of cases) {
    t.match(
      await admin.post(`${type}/$import`, body),
      { status: 400, body: { issue: [{ details: { text }, expression: [path] }] } },
      `${text}`,
    )
  }
})

t.test('accepts the comments that clients of Medplum send with mappings', async (t) => {
  const body = parameters(target, mapping({ name: 'comment', valueString: 'Reviewed' }))
  t.equal((await admin.post('ConceptMap/$import', body)).status, 200)
})
