import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const botica = await openBotica(t)
const { admin } = botica

interface Expansion extends Resource {
  readonly expansion: {
    readonly total?: number
    readonly contains?: readonly { system: string; code: string; display?: string }[]
  }
}

const animals = 'https://example.org/animals'
const concept = (code: string, display: string, ...more: object[]) => ({
  code,
  display,
  ...(more.length === 0 ? {} : { concept: more }),
})

await admin.create({
  resourceType: 'CodeSystem',
  url: animals,
  version: '1',
  name: 'Animals',
  status: 'active',
  content: 'complete',
  caseSensitive: true,
  hierarchyMeaning: 'is-a',
  property: [
    { code: 'legs', type: 'integer' },
    { code: 'status', type: 'code' },
    { code: 'notSelectable', type: 'boolean' },
  ],
  concept: [
    {
      code: 'mammal',
      display: 'Mammal',
      definition: 'Gives milk',
      property: [{ code: 'notSelectable', valueBoolean: true }],
      concept: [
        concept('cat', 'House cat', concept('siam', 'Siamese cat')),
        {
          ...concept('dog', 'Dog'),
          designation: [{ language: 'de', value: 'Hund' }],
          property: [{ code: 'legs', valueInteger: 4 }],
        },
      ],
    },
    { ...concept('dodo', 'Dodo'), property: [{ code: 'status', valueCode: 'retired' }] },
    concept('duck', 'Mandarin duck'),
  ],
})

const valueSet = (compose: object, more: object = {}) => ({
  resourceType: 'ValueSet',
  status: 'active',
  compose,
  ...more,
})

async function expandCodes(compose: object, parameters: object[] = []): Promise<readonly string[]> {
  const answer = await admin.post<Expansion>('ValueSet/$expand', {
    resourceType: 'Parameters',
    parameter: [{ name: 'valueSet', resource: valueSet(compose) }, ...parameters],
  })
  t.equal(answer.status, 200, answer.text.slice(0, 300))
  return (answer.body.expansion.contains ?? []).map(({ code }) => code)
}

const ofAnimals = (property: string, op: string, value: string) => ({
  include: [{ system: animals, filter: [{ property, op, value }] }],
})

t.test('subtracts excludes from includes', async (t) => {
  const cases: [compose: object, codes: string[]][] = [
    [{ include: [{ system: animals }] }, ['mammal', 'cat', 'siam', 'dog', 'dodo', 'duck']],
    [ofAnimals('concept', 'is-a', 'cat'), ['cat', 'siam']],
    [ofAnimals('concept', 'descendent-of', 'mammal'), ['cat', 'siam', 'dog']],
    [ofAnimals('concept', 'is-not-a', 'mammal'), ['dodo', 'duck']],
    [ofAnimals('concept', 'generalizes', 'siam'), ['mammal', 'cat', 'siam']],
    [ofAnimals('legs', '=', '4'), ['dog']],
    [ofAnimals('parent', '=', 'mammal'), ['cat', 'dog']],
    [ofAnimals('code', 'in', 'cat,duck'), ['cat', 'duck']],
    [ofAnimals('code', 'not-in', 'cat,duck'), ['mammal', 'siam', 'dog', 'dodo']],
    [ofAnimals('code', 'regex', 'd.*o|cat'), ['cat', 'dodo']],
    [ofAnimals('legs', 'exists', 'true'), ['dog']],
    [{ include: [{ system: animals, concept: [{ code: 'dog' }, { code: 'x' }] }] }, ['dog']],
    [
      {
        include: [{ system: animals }],
        exclude: [ofAnimals('concept', 'is-a', 'mammal').include[0]],
      },
      ['dodo', 'duck'],
    ],
    [{ inactive: false, ...ofAnimals('code', 'in', 'dodo,duck') }, ['duck']],
  ]
  for (const [compose, codes] of cases) {
    t.same(await expandCodes(compose), codes, JSON.stringify(compose))
  }
})

t.test('resolves imported value sets', async (t) => {
  const cats = 'https://example.org/vs/cats'
  await admin.create(valueSet(ofAnimals('concept', 'is-a', 'cat'), { url: cats }))
  t.same(await expandCodes({ include: [{ valueSet: [cats] }] }), ['cat', 'siam'])
  t.same(await expandCodes({ include: [{ system: animals, valueSet: [cats] }] }), ['cat', 'siam'])
  t.same(await expandCodes({ include: [{ system: animals }], exclude: [{ valueSet: [cats] }] }), [
    'mammal',
    'dog',
    'dodo',
    'duck',
  ])
})

t.test('a value set that is stored as an expansion is its list', async (t) => {
  const url = 'https://example.org/vs/expanded'
  const contains = [{ system: animals, code: 'cat', contains: [{ system: animals, code: 'dog' }] }]
  await admin.create({
    resourceType: 'ValueSet',
    url,
    status: 'active',
    expansion: { timestamp: '2026-01-02T03:04:05Z', contains },
  })
  const { body } = await admin.get<Expansion>(`ValueSet/$expand?url=${url}`)
  t.match(body.expansion, { total: 2, contains: [{ code: 'cat' }, { code: 'dog' }] })
  t.same(
    Object.keys(body.meta ?? {}),
    ['versionId', 'lastUpdated'],
    'without properties of the platform',
  )
  const valid = await admin.get(`ValueSet/$validate-code?url=${url}&code=dog`)
  t.match(valid.body, { parameter: [{ valueBoolean: true }, { valueString: 'Dog' }] })
})

t.test('finds words by their beginnings, best matches first', async (t) => {
  const filter = (text: string) => [{ name: 'filter', valueString: text }]
  const all = { include: [{ system: animals }] }
  t.same(await expandCodes(all, filter('CAT')), ['cat', 'siam'])
  t.same(await expandCodes(all, filter('house ca')), ['cat'])
  t.same(await expandCodes(all, filter('ma')), ['mammal', 'duck'])
  t.same(await expandCodes(all, filter('ouse')), [])
})

t.test('pages an expansion and returns the total of its codes', async (t) => {
  const url = 'http://hl7.org/fhir/ValueSet/administrative-gender'
  const whole = await admin.get<Expansion>(`ValueSet/$expand?url=${url}`)
  t.match(whole.body, { resourceType: 'ValueSet', url, expansion: { total: 4, offset: 0 } })
  const page = await admin.get<Expansion>(`ValueSet/$expand?url=${url}&offset=1&count=2`)
  t.match(page.body.expansion, { total: 4, contains: [{ code: 'female' }, { code: 'other' }] })
  const none = await admin.get<Expansion>(`ValueSet/$expand?url=${url}&count=0`)
  t.match(none.body.expansion, { total: 4, contains: undefined })
})

t.test(
  'inactive and abstract codes are left out when asked, displays are translated',
  async (t) => {
    const all = { include: [{ system: animals }] }
    const active = await expandCodes(all, [{ name: 'activeOnly', valueBoolean: true }])
    t.notOk(active.includes('dodo'))
    const forUi = await expandCodes(all, [{ name: 'excludeNotForUI', valueBoolean: true }])
    t.notOk(forUi.includes('mammal'))
    const german = await admin.post<Expansion>('ValueSet/$expand?displayLanguage=de', {
      ...valueSet(ofAnimals('code', '=', 'dog')),
    })
    t.match(german.body.expansion.contains, [{ system: animals, code: 'dog', display: 'Hund' }])
  },
)

t.test('returns 400 or 404 for value sets that cannot be expanded', async (t) => {
  const a = 'https://example.org/vs/a'
  const b = 'https://example.org/vs/b'
  await admin.create(valueSet({ include: [{ valueSet: [b] }] }, { url: a }))
  await admin.create(valueSet({ include: [{ valueSet: [a] }] }, { url: b }))
  t.match(await admin.get(`ValueSet/$expand?url=${a}`), { status: 400 }, 'a circle')
  for (const [path, text] of [
    ['ValueSet/$expand?url=', 'ValueSet https://example.org/none is not known'],
    ['CodeSystem/$lookup?code=x&system=', 'CodeSystem https://example.org/none is not known'],
    ['ConceptMap/$translate?code=x&url=', 'ConceptMap https://example.org/none is not known'],
  ]) {
    const { status, text: found } = await admin.get(`${path}https://example.org/none`)
    t.equal(status, 404)
    t.match(found, text)
  }
  const missing = await admin.get(`CodeSystem/$lookup?code=unicorn&system=${animals}`)
  t.match(missing, { status: 404, text: `Code unicorn of ${animals} is not known` })
  t.equal((await admin.get('ValueSet/$expand')).status, 400)
  t.equal((await admin.get(`ValueSet/$expand?url=${a}&count=x`)).status, 400)
  t.equal((await admin.get(`ValueSet/$expand?url=${a}&offset=-1`)).status, 400)
  const wrong: object[] = [
    ofAnimals('code', 'regex', '(a*'),
    ofAnimals('code', 'like', 'x'),
    { include: [{ system: 'http://loinc.org' }] },
    { include: [{ valueSet: ['https://example.org/none'] }] },
    { include: { system: animals } },
    { include: [{ system: animals, filter: 'x' }] },
    { include: Array.from({ length: 3000 }, () => ({ system: animals })) },
    {
      include: [{ system: animals }],
      exclude: Array.from({ length: 3000 }, () => ({ system: animals, concept: [{ code: 'x' }] })),
    },
  ]
  for (const compose of wrong) {
    const answer = await admin.post('ValueSet/$expand', valueSet(compose))
    t.equal(answer.status, 400, `${JSON.stringify(compose).slice(0, 100)} ${answer.text}`)
  }
  const evil = await expandCodes(ofAnimals('display', 'regex', '(a+)+$|(.*)*(.*)*(.*)*x'))
  t.same(evil, [])
  t.equal((await admin.post('ValueSet/$expand', { resourceType: 'Patient' })).status, 400)
})

t.test('codes are looked up, with where they stand', async (t) => {
  const dog = await admin.get(`CodeSystem/$lookup?system=${animals}&code=dog`)
  t.match(dog.body, { parameter: [{ name: 'name', valueString: 'Animals' }] })
  t.match(dog.text, '"valueCode":"mammal"')
  t.match(dog.text, '"valueInteger":4')
  t.match(dog.text, '"valueString":"Hund"')
  const coding = await admin.post('CodeSystem/$lookup', {
    resourceType: 'Parameters',
    parameter: [
      {
        name: 'coding',
        valueCoding: { system: 'http://hl7.org/fhir/observation-status', code: 'final' },
      },
      { name: 'property', valueCode: 'definition' },
    ],
  })
  t.match(coding.text, '"name":"display","valueString":"Final"')
  t.equal((await admin.get(`CodeSystem/$lookup?system=${animals}&code=yeti`)).status, 404)
  t.equal((await admin.get('CodeSystem/$lookup?system=urn:none&code=x')).status, 404)
  t.equal((await admin.get('CodeSystem/$lookup?code=x')).status, 400)
  t.equal((await admin.get(`CodeSystem/$lookup?system=${animals}`)).status, 400)
})

t.test('codes are validated against systems and value sets', async (t) => {
  const gender = 'ValueSet/$validate-code?url=http://hl7.org/fhir/ValueSet/administrative-gender'
  const system = 'system=http://hl7.org/fhir/administrative-gender'
  const cases: [path: string, result: boolean][] = [
    [`CodeSystem/$validate-code?url=${animals}&code=cat`, true],
    [`CodeSystem/$validate-code?url=${animals}&code=cat&display=house%20CAT`, true],
    [`CodeSystem/$validate-code?url=${animals}&code=cat&display=Dog`, false],
    [`CodeSystem/$validate-code?url=${animals}&code=CAT`, false],
    [`${gender}&${system}&code=male`, true],
    [`${gender}&code=male`, true],
    [`${gender}&${system}&code=man`, false],
    [`${gender}&system=urn:other&code=male`, false],
  ]
  for (const [path, result] of cases) {
    const { status, body } = await admin.get(path)
    t.equal(status, 200, path)
    t.match(body, { parameter: [{ name: 'result', valueBoolean: result }] }, path)
  }
  const concept = await admin.post('ValueSet/$validate-code', {
    resourceType: 'Parameters',
    parameter: [
      { name: 'url', valueUri: 'http://hl7.org/fhir/ValueSet/observation-status' },
      {
        name: 'codeableConcept',
        valueCodeableConcept: {
          coding: [
            { system: 'urn:x', code: 'y' },
            { system: 'http://hl7.org/fhir/observation-status', code: 'final' },
          ],
        },
      },
    ],
  })
  t.match(concept.body, { parameter: [{ valueBoolean: true }, { valueString: 'Final' }] })
  t.equal((await admin.get(gender)).status, 400)
  t.equal((await admin.get('ValueSet/$validate-code?url=urn:none&code=x')).status, 404)
})

t.test('one code may subsume another', async (t) => {
  const cases: [a: string, b: string, outcome: string][] = [
    ['mammal', 'siam', 'subsumes'],
    ['siam', 'cat', 'subsumed-by'],
    ['cat', 'cat', 'equivalent'],
    ['cat', 'dog', 'not-subsumed'],
  ]
  for (const [a, b, outcome] of cases) {
    const path = `CodeSystem/$subsumes?system=${animals}&codeA=${a}&codeB=${b}`
    const { body } = await admin.get(path)
    t.match(body, { parameter: [{ name: 'outcome', valueCode: outcome }] }, path)
  }
  const wrong = await admin.get(`CodeSystem/$subsumes?system=${animals}&codeA=cat&codeB=x`)
  t.equal(wrong.status, 400)
})

t.test('rejects a call that names its code or value set twice', async (t) => {
  const url = { name: 'url', valueUri: 'http://hl7.org/fhir/ValueSet/observation-status' }
  const system = { name: 'system', valueUri: animals }
  const coding = (name: string) => ({ name, valueCoding: { system: animals, code: 'dog' } })
  const sent = { name: 'valueSet', resource: valueSet(ofAnimals('concept', 'is-a', 'dog')) }
  const { id } = await admin.create(valueSet(ofAnimals('concept', 'is-a', 'dog')))
  const code = (name: string) => ({ name, valueCode: 'cat' })
  const cases: readonly (readonly [path: string, parameter: readonly object[], place: string])[] = [
    ['ValueSet/$validate-code', [url, system, code('code'), coding('coding')], 'coding'],
    ['CodeSystem/$lookup', [system, code('code'), coding('coding')], 'coding'],
    ['ConceptMap/$translate', [system, code('code'), coding('coding')], 'coding'],
    ['CodeSystem/$subsumes', [code('codeA'), coding('codingA'), coding('codingB')], 'codingA'],
    ['ValueSet/$expand', [url, sent], 'url'],
    [`ValueSet/${id}/$expand`, [url], 'url'],
    [`ValueSet/${id}/$expand`, [sent], 'valueSet'],
  ]
  for (const [path, parameter, place] of cases) {
    const answer = await admin.post(path, { resourceType: 'Parameters', parameter })
    const issue = [{ expression: [place] }]
    t.match(answer, { status: 400, body: { issue } }, `${path} ${place}`)
  }
})

t.test('hides terminology from other projects unless linked', async (t) => {
  const other = await botica.createTenant()
  const path = `CodeSystem/$lookup?system=${animals}&code=cat`
  t.equal((await other.admin.get(path)).status, 404)
  const { body: project } = await botica.superAdmin.get(`Project/${other.project.id}`)
  const link = [{ project: { reference: `Project/${botica.project.id}` } }]
  const linked = await botica.superAdmin.put(`Project/${other.project.id}`, { ...project, link })
  t.equal(linked.status, 200)
  botica.services.principals.forget()
  t.equal((await other.admin.get(path)).status, 200)
})
