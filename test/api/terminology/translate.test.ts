/** `ConceptMap/$translate`: conditions and products of a mapping, and the choice of maps. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin } = botica
const OWN = 'http://example.org'
const LOCAL = `${OWN}/CodeSystem/local`
const LAB = `${OWN}/CodeSystem/lab`
const SEX = 'http://hl7.org/fhir/StructureDefinition/Patient#gender'
const SITE = `${OWN}/body-site`
const GENDER = 'http://hl7.org/fhir/administrative-gender'

const make = (name: string, resource: Raw, client = admin) =>
  client.create({
    resourceType: 'ConceptMap',
    status: 'active',
    url: `${OWN}/ConceptMap/${name}`,
    ...resource,
  } as Resource)
const to = (code: string, more: object = {}) => ({ code, equivalence: 'equivalent', ...more })
const of = (property: string, value: string, system?: string) => [
  { property, value, ...(system === undefined ? {} : { system }) },
]

await make('main', {
  sourceUri: `${OWN}/ValueSet/local`,
  targetCanonical: `${OWN}/ValueSet/lab`,
  group: [
    {
      source: LOCAL,
      target: LAB,
      element: [
        {
          code: 'hb',
          display: 'Haemoglobin',
          target: [
            to('hb-m', { dependsOn: of(SEX, 'male', GENDER) }),
            to('hb-f', {
              dependsOn: of(SEX, 'female', GENDER),
              product: of(SITE, 'arm', `${OWN}/sites`),
            }),
          ],
        },
        { code: 'na', target: [to('sodium', { display: 'Sodium' })] },
      ],
    },
  ],
})
await make('other', {
  sourceCanonical: `${OWN}/ValueSet/other|2`,
  group: [
    {
      source: LOCAL,
      sourceVersion: '2',
      target: `${OWN}/CodeSystem/other`,
      targetVersion: '7',
      element: [{ code: 'na', target: [to('S')] }],
    },
  ],
})
await make('fixed', {
  sourceCanonical: `${OWN}/ValueSet/more`,
  group: [
    {
      source: `${OWN}/CodeSystem/more`,
      target: LAB,
      element: [
        { code: 'k', target: [to('potassium', { dependsOn: of(SEX, 'male', GENDER) })] },
        { code: 'x', target: [to('y')] },
      ],
      unmapped: { mode: 'fixed', code: 'unknown' },
    },
  ],
})
await make('anything', {
  group: [
    {
      source: `${OWN}/CodeSystem/far`,
      target: LAB,
      element: [{ code: 'q', target: [to('far-q')] }],
    },
    { target: LAB, element: [{ code: 'none' }], unmapped: { mode: 'provided' } },
  ],
})
await make('imported', {})
await admin.post('ConceptMap/$import', {
  resourceType: 'Parameters',
  parameter: [
    { name: 'url', valueUri: `${OWN}/ConceptMap/imported` },
    {
      name: 'mapping',
      part: [
        { name: 'source', valueCoding: { system: LOCAL, code: 'row' } },
        { name: 'target', valueCoding: { system: LAB, code: 'imported-row' } },
      ],
    },
  ],
})

const text = (name: string, valueUri: string) => ({ name, valueUri })
const MAIN = text('url', `${OWN}/ConceptMap/main`)
const coding = (code: string, system = LOCAL) => ({ name: 'coding', valueCoding: { system, code } })
const dependency = (element: string, concept: object) => ({
  name: 'dependency',
  part: [
    { name: 'element', valueUri: element },
    { name: 'concept', valueCodeableConcept: concept },
  ],
})
const sex = (code: string, system?: string) =>
  dependency(SEX, { coding: [{ code, ...(system === undefined ? {} : { system }) }] })

interface Translated {
  readonly result: boolean
  readonly codes: readonly string[]
  readonly matches: readonly Raw[]
}

async function translated(parameter: object[], client = admin): Promise<Translated> {
  const answer = await client.post<Raw>('ConceptMap/$translate', {
    resourceType: 'Parameters',
    parameter,
  })
  t.equal(answer.status, 200, answer.text.slice(0, 200))
  const all: Raw[] = answer.body.parameter
  const parts = all.filter(({ name }) => name === 'match').map(({ part }) => part)
  const named = (match: Raw[], name: string) => match.find((part) => part.name === name)
  const matches = parts.map((match) => ({
    concept: named(match, 'concept')?.valueCoding,
    source: named(match, 'source')?.valueUri,
    product: named(match, 'product')?.part,
    dependsOn: named(match, 'dependsOn')?.part,
  }))
  const codes = matches.map(({ concept }) => concept?.code)
  return { result: all[0]?.valueBoolean, codes, matches }
}

t.test('omits a mapping with a condition that contradicts the dependency', async (t) => {
  for (const [label, given, codes] of [
    ['none', [], ['hb-m', 'hb-f']],
    ['male', [sex('male', GENDER)], ['hb-m']],
    ['female', [sex('female', GENDER)], ['hb-f']],
    ['without a system', [sex('male')], ['hb-m']],
    ['of another system', [sex('male', 'urn:other')], []],
    ['as text', [dependency(SEX, { text: 'female' })], ['hb-f']],
    ['neither', [sex('unknown', GENDER)], []],
    [
      'one of two codings',
      [dependency(SEX, { coding: [{ code: 'x' }, { code: 'male' }] })],
      ['hb-m'],
    ],
    ['another element', [dependency(SITE, { text: 'arm' })], ['hb-m', 'hb-f']],
  ] as const) {
    const found = await translated([MAIN, coding('hb'), ...given])
    t.same(found.codes, codes, label)
    t.equal(found.result, codes.length > 0, label)
  }
})

t.test('an unmet condition does not make a code unmapped', async (t) => {
  const more = (code: string) => coding(code, `${OWN}/CodeSystem/more`)
  const url = text('url', `${OWN}/ConceptMap/fixed`)
  t.same((await translated([url, more('k'), sex('female', GENDER)])).codes, [])
  t.same((await translated([url, more('z')])).codes, ['unknown'])
})

t.test('a match has its products and its open conditions', async (t) => {
  const female = await translated([MAIN, coding('hb'), sex('female', GENDER)])
  const product = [
    { name: 'element', valueUri: SITE },
    { name: 'concept', valueCoding: { system: `${OWN}/sites`, code: 'arm' } },
  ]
  t.match(female.matches, [{ product, dependsOn: undefined }])
  const open = await translated([MAIN, coding('hb')])
  const condition = (code: string) => [
    { name: 'element', valueUri: SEX },
    { name: 'concept', valueCoding: { system: GENDER, code } },
  ]
  t.match(open.matches, [
    { product: undefined, dependsOn: condition('male') },
    { product, dependsOn: condition('female') },
  ])
})

t.test('in reverse, products are the conditions and conditions the products', async (t) => {
  const reverse = { name: 'reverse', valueBoolean: true }
  const site = (code: string) => dependency(SITE, { coding: [{ code }] })
  const back = await translated([MAIN, coding('hb-f', LAB), reverse, site('arm')])
  t.match(back.matches, [
    { concept: { code: 'hb', display: 'Haemoglobin' }, product: [{ valueUri: SEX }, {}] },
  ])
  t.same((await translated([MAIN, coding('hb-f', LAB), reverse, site('leg')])).codes, [])
})

t.test('rejects a malformed dependency', async (t) => {
  for (const part of [
    [{ name: 'element', valueUri: SEX }],
    [{ name: 'concept', valueCodeableConcept: { text: 'x' } }],
    [
      { name: 'element', valueUri: SEX },
      { name: 'concept', valueCodeableConcept: { coding: 'male' } },
    ],
  ]) {
    const parameter = [MAIN, coding('hb'), { name: 'dependency', part }]
    const answer = await admin.post('ConceptMap/$translate', {
      resourceType: 'Parameters',
      parameter,
    })
    t.equal(answer.status, 400)
  }
})

t.test('without a map, all maps of the project are searched', async (t) => {
  const code = (value: string) => ({ name: 'code', valueCode: value })
  const system = text('system', LOCAL)
  const reverse = { name: 'reverse', valueBoolean: true }
  const concept = (...codes: string[]) => ({
    name: 'codeableConcept',
    valueCodeableConcept: { coding: codes.map((value) => ({ system: LOCAL, code: value })) },
  })
  for (const [label, parameters, codes] of [
    ['a bare code', [code('na')], ['S', 'sodium']],
    ['a code and its system', [code('na'), system], ['S', 'sodium']],
    ['a code of another system', [code('na'), text('system', LAB)], []],
    ['a version', [code('na'), system, { name: 'version', valueString: '2' }], ['S', 'sodium']],
    ['another version', [code('na'), system, { name: 'version', valueString: '1' }], ['sodium']],
    ['a target system', [code('na'), text('targetsystem', LAB)], ['sodium']],
    ['a coding', [coding('na')], ['S', 'sodium']],
    ['a concept', [concept('x', 'na', 'row')], ['S', 'imported-row', 'sodium']],
    ['an imported mapping', [code('row')], ['imported-row']],
    ['an imported mapping and its system', [code('row'), system], ['imported-row']],
    ['a code that a system leaves unmapped', [coding('z', `${OWN}/CodeSystem/more`)], ['unknown']],
    ['a rule for unmapped codes of no system', [coding('q', `${OWN}/CodeSystem/far`)], ['far-q']],
    ['reverse', [code('sodium'), reverse], ['na']],
    ['reverse with a system', [coding('S', `${OWN}/CodeSystem/other`), reverse], ['na']],
    ['reverse of an imported mapping', [code('imported-row'), reverse], ['row']],
    [
      'a source value set by uri',
      [code('na'), text('source', `${OWN}/ValueSet/local`)],
      ['sodium'],
    ],
    ['a source value set', [code('x'), text('source', `${OWN}/ValueSet/more`)], ['y']],
    ['a versioned value set', [code('na'), text('source', `${OWN}/ValueSet/other`)], ['S']],
    ['a target value set', [code('na'), text('target', `${OWN}/ValueSet/lab`)], ['sodium']],
    ['other value sets', [code('na'), text('source', 'urn:none')], []],
    ['no mapping', [code('nothing')], []],
  ] as const) {
    t.same((await translated([...parameters])).codes.toSorted(), codes, label)
  }
  const { matches } = await translated([
    coding('na'),
    text('targetsystem', `${OWN}/CodeSystem/other`),
  ])
  t.match(matches, [
    {
      source: `${OWN}/ConceptMap/other`,
      concept: { system: `${OWN}/CodeSystem/other`, version: '7' },
    },
  ])
})

t.test('applies the rule for unmapped codes only without a mapping, imported or not', async (t) => {
  const { admin } = await botica.createTenant()
  const url = text('url', `${OWN}/ConceptMap/part`)
  const unmapped = { mode: 'fixed', code: 'unknown' }
  const element = [{ code: '1', target: [to('one')] }]
  await make('part', { group: [{ source: LOCAL, target: LAB, element, unmapped }] }, admin)
  const mapping = [
    { name: 'source', valueCoding: { system: LOCAL, code: '2' } },
    { name: 'target', valueCoding: { system: LAB, code: 'two' } },
  ]
  const parameter = [url, { name: 'mapping', part: mapping }]
  await admin.post('ConceptMap/$import', { resourceType: 'Parameters', parameter })
  t.same((await translated([url, coding('1')], admin)).codes, ['one'])
  t.same((await translated([url, coding('2')], admin)).codes, ['two'])
  t.same((await translated([url, coding('3')], admin)).codes, ['unknown'])
})

t.test('follows the rule for unmapped codes to another map', async (t) => {
  const { admin } = await botica.createTenant()
  const group = { source: LOCAL, target: LAB, element: [{ code: 'own', target: [to('mapped')] }] }
  const toOther = (name: string, other: string) => {
    const unmapped = { mode: 'other-map', url: `${OWN}/ConceptMap/${other}` }
    return make(name, { group: [{ ...group, unmapped }] }, admin)
  }
  await toOther('first', 'second')
  await toOther('second', 'last')
  await toOther('circle', 'circle')
  await toOther('broken', 'none')
  const element = [{ code: 'na', target: [to('sodium')] }]
  await make('last', { group: [{ source: LOCAL, target: LAB, element }] }, admin)
  const by = (name: string, code: string) =>
    admin.get(`ConceptMap/$translate?url=${OWN}/ConceptMap/${name}&system=${LOCAL}&code=${code}`)
  t.match((await by('first', 'own')).text, '"code":"mapped"')
  t.match((await by('first', 'na')).text, '"code":"sodium"')
  t.match((await by('circle', 'na')).body, { parameter: [{ valueBoolean: false }] })
  t.match((await by('broken', 'own')).text, '"code":"mapped"')
  t.equal((await by('broken', 'na')).status, 404)
})

t.test('omits maps that the caller may not search', async (t) => {
  const client = await clientUnder(botica, {
    resourceType: 'ConceptMap',
    criteria: `ConceptMap?url=${OWN}/ConceptMap/other`,
  })
  t.same((await translated([coding('na')], client)).codes, ['S'])
  t.same((await translated([coding('row')], client)).codes, [])
  const other = await botica.createTenant()
  t.same((await translated([coding('row')], other.admin)).codes, [])
})

t.test('more maps than are searched are an error, not a missing match', async (t) => {
  const { admin } = await botica.createTenant()
  const entry = Array.from({ length: 101 }, (_, i) => ({
    request: { method: 'POST', url: 'ConceptMap' },
    resource: {
      resourceType: 'ConceptMap',
      status: 'active',
      url: `urn:map:${i}`,
      group: [
        {
          source: LOCAL,
          target: LAB,
          element: [{ code: i < 100 ? 'many' : 'one', target: [to('t')] }],
        },
      ],
    },
  }))
  const bundle = { resourceType: 'Bundle', type: 'batch', entry }
  t.equal((await admin.post('', bundle)).status, 200)
  t.equal((await translated([{ name: 'code', valueCode: 'one' }], admin)).codes.length, 1)
  t.equal((await translated([{ name: 'code', valueCode: 'many' }], admin)).codes.length, 100)
  t.match(await admin.get(`ConceptMap/$translate?code=one&system=${LOCAL}`), {
    status: 400,
    body: { issue: [{ code: 'too-costly' }] },
  })
})

t.test(
  'a concept of more codings, or of more imported mappings, than are looked for is an error',
  async (t) => {
    const costly = { status: 400, body: { issue: [{ code: 'too-costly' }] } }
    const codings = (count: number) => ({
      resourceType: 'Parameters',
      parameter: [
        {
          name: 'codeableConcept',
          valueCodeableConcept: {
            coding: Array.from({ length: count }, (_, i) => ({ system: LOCAL, code: `c${i}` })),
          },
        },
      ],
    })
    t.equal((await admin.post('ConceptMap/$translate', codings(100))).status, 200)
    t.match(await admin.post('ConceptMap/$translate', codings(101)), costly)

    const url = text('url', `${OWN}/ConceptMap/wide`)
    await make('wide', {})
    const add = (from: number, count: number) =>
      admin.post('ConceptMap/$import', {
        resourceType: 'Parameters',
        parameter: [
          url,
          ...Array.from({ length: count }, (_, i) => ({
            name: 'mapping',
            part: [
              { name: 'source', valueCoding: { system: LOCAL, code: 'wide' } },
              { name: 'target', valueCoding: { system: LAB, code: `w${from + i}` } },
            ],
          })),
        ],
      })
    t.equal((await add(0, 1000)).status, 200)
    t.equal((await translated([url, coding('wide')])).codes.length, 1000)
    t.equal((await add(1000, 1)).status, 200)
    const parameter = [url, coding('wide')]
    t.match(
      await admin.post('ConceptMap/$translate', { resourceType: 'Parameters', parameter }),
      costly,
    )
  },
)
