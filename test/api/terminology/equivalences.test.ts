/** The equivalence of imported mappings. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const url = 'https://example.org/map'
const { id } = await admin.create({ resourceType: 'ConceptMap', url, status: 'active' })

const mapping = (code: string, more: object) => ({
  name: 'mapping',
  part: [
    { name: 'source', valueCoding: { system: 'urn:a', code } },
    { name: 'target', valueCoding: { system: 'urn:b', code: 'B' } },
    ...Object.entries(more).map(([name, valueCode]) => ({ name, valueCode })),
  ],
})

const send = (...parameter: object[]) =>
  admin.post<Raw>(`ConceptMap/${id}/$import`, { resourceType: 'Parameters', parameter })

async function translated(code: string): Promise<unknown> {
  const { body } = await admin.get<Raw>(
    `ConceptMap/$translate?url=${url}&system=urn:a&code=${code}`,
  )
  const match = body.parameter.find(({ name }: Raw) => name === 'match')
  return match?.part.find(({ name }: Raw) => name === 'equivalence').valueCode
}

t.test('stores relationships of R5 as equivalences of R4', async (t) => {
  for (const [relationship, expected] of [
    ['related-to', 'relatedto'],
    ['equivalent', 'equivalent'],
    ['source-is-narrower-than-target', 'wider'],
    ['source-is-broader-than-target', 'narrower'],
    ['not-related-to', 'disjoint'],
  ] as const) {
    t.equal((await send(mapping(relationship, { relationship }))).status, 200, relationship)
    t.equal(await translated(relationship), expected)
  }
  t.equal((await send(mapping('neither', {}))).status, 200)
  t.equal(await translated('neither'), 'equivalent')
})

t.test('accepts each equivalence of R4', async (t) => {
  const { body } = await admin.get<Raw>(
    'ValueSet/$expand?url=http://hl7.org/fhir/ValueSet/concept-map-equivalence',
  )
  const codes = body.expansion.contains.map(({ code }: Raw) => code)
  t.equal(codes.length, 10)
  for (const equivalence of codes) {
    t.equal((await send(mapping(equivalence, { equivalence }))).status, 200, equivalence)
    t.equal(await translated(equivalence), equivalence)
  }
})

t.test('returns 400 for other equivalences and stores nothing', async (t) => {
  for (const [more, path] of [
    [{ equivalence: 'related-to' }, 'mapping[1].equivalence'],
    [{ equivalence: 'same' }, 'mapping[1].equivalence'],
    [{ equivalence: 'constructor' }, 'mapping[1].equivalence'],
    [{ relationship: 'wider' }, 'mapping[1].relationship'],
    [{ relationship: 'constructor' }, 'mapping[1].relationship'],
    [{ equivalence: 'equal', relationship: 'equivalent' }, 'mapping[1].relationship'],
  ] as const) {
    const answer = await send(mapping('valid', { equivalence: 'equal' }), mapping('wrong', more))
    t.match(answer, { status: 400, body: { issue: [{ expression: [path] }] } }, path)
  }
  t.equal(await translated('valid'), undefined)
})
