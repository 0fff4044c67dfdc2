/** `$validate-code` and `$expand` agree on the version, display, language and status of a code. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const OWN = 'http://example.org'
const SYSTEM = `${OWN}/CodeSystem/plants`

const make = (resource: Raw) => admin.create({ status: 'active', ...resource } as Resource)
const flag = (code: string) => [{ code, valueBoolean: true }]
const german = (value: string) => [{ language: 'de', value }]

/** Version 1 has one more code than version 2, and other displays, designations and flags. */
for (const [version, concept] of [
  [
    '1',
    [
      { code: 'oak', display: 'Oak tree', designation: german('Eichbaum') },
      { code: 'elm', display: 'Elm' },
      { code: 'moss', display: 'Moss', property: flag('inactive') },
      { code: 'tree', display: 'Tree', property: flag('notSelectable') },
    ],
  ],
  [
    '2',
    [
      { code: 'oak', display: 'Oak', designation: german('Eiche') },
      { code: 'moss', display: 'Moss' },
      { code: 'tree', display: 'Tree' },
    ],
  ],
] as const) {
  await make({
    resourceType: 'CodeSystem',
    url: SYSTEM,
    version,
    content: 'complete',
    language: 'en',
    caseSensitive: true,
    concept,
  })
}

const url = (name: string) => `${OWN}/ValueSet/${name}`
const aValueSet = (include: object[], more: object = {}): Raw => ({
  resourceType: 'ValueSet',
  status: 'active',
  compose: { include },
  ...more,
})
const first = { system: SYSTEM, version: '1' }
const named = [{ code: 'oak', display: 'Mighty oak', designation: german('Starke Eiche') }]
const sets: Readonly<Record<string, Raw>> = {
  first: aValueSet([first]),
  any: aValueSet([{ system: SYSTEM }]),
  both: aValueSet([{ system: SYSTEM }, first]),
  imports: aValueSet([{ valueSet: [url('first')] }]),
  'imports-twice': aValueSet([{ valueSet: [url('imports'), url('any')] }]),
  named: aValueSet([{ ...first, concept: named }]),
  'imports-named': aValueSet([{ valueSet: [url('named')] }]),
  'german-named': aValueSet([{ ...first, concept: [{ code: 'oak', display: 'Baum' }] }], {
    language: 'de',
  }),
  'active-only': aValueSet([{ ...first, concept: [{ code: 'oak' }, { code: 'moss' }] }], {
    compose: {
      inactive: false,
      include: [{ ...first, concept: [{ code: 'oak' }, { code: 'moss' }] }],
    },
  }),
  'without-first': aValueSet([], {
    compose: { include: [{ system: SYSTEM }], exclude: [first] },
  }),
  'both-without-oak': aValueSet([], {
    compose: {
      include: [{ system: SYSTEM }, first],
      exclude: [{ ...first, concept: [{ code: 'oak' }] }],
    },
  }),
}
for (const [name, resource] of Object.entries(sets)) await make({ ...resource, url: url(name) })

const text = (name: string, valueString: string) => ({ name, valueString })
const ask = (operation: string, ...parameter: object[]) =>
  admin.post<Raw>(operation, { resourceType: 'Parameters', parameter })

interface Judged {
  readonly result: boolean
  readonly display: string | undefined
  readonly inactive: boolean | undefined
  readonly message: string | undefined
}

async function judged(...parameters: object[]): Promise<Judged> {
  const { status, body, text } = await ask('ValueSet/$validate-code', ...parameters)
  t.equal(status, 200, text.slice(0, 200))
  const partValue = (name: string) => {
    const item = body.parameter.find((one: Raw) => one.name === name)
    return item?.valueBoolean ?? item?.valueString
  }
  return {
    result: partValue('result'),
    display: partValue('display'),
    inactive: partValue('inactive'),
    message: partValue('message'),
  }
}

const coding = (code: string, display?: string, more: object = {}) => {
  return { system: SYSTEM, code, ...(display === undefined ? {} : { display }), ...more }
}

/** Forms of input that must give the same result. */
const WAYS = {
  'a coding': (set: string, code: string, display?: string) => [
    text('url', url(set)),
    { name: 'coding', valueCoding: coding(code, display) },
  ],
  'a concept with a foreign coding': (set: string, code: string, display?: string) => [
    text('url', url(set)),
    {
      name: 'codeableConcept',
      valueCodeableConcept: {
        coding: [{ system: 'urn:other', code: 'x' }, coding(code, display)],
      },
    },
  ],
  'a code without a system': (set: string, code: string, display?: string) => [
    text('url', url(set)),
    text('code', code),
    ...(display === undefined ? [] : [text('display', display)]),
  ],
  'a value set that is sent': (set: string, code: string, display?: string) => [
    { name: 'valueSet', resource: sets[set] },
    { name: 'coding', valueCoding: coding(code, display) },
  ],
}

t.test('displays are checked against the pinned version and the value set', async (t) => {
  for (const [set, code, display, result] of [
    ['first', 'oak', 'Oak tree', true],
    ['first', 'oak', 'Oak', false],
    ['any', 'oak', 'Oak', true],
    ['any', 'oak', 'Oak tree', false],
    ['both', 'oak', 'Oak tree', true],
    ['both', 'oak', 'Oak', true],
    ['both', 'oak', 'Pine', false],
    ['imports', 'oak', 'Oak tree', true],
    ['imports', 'oak', 'Oak', false],
    ['imports-twice', 'oak', 'Oak tree', true],
    ['first', 'elm', 'Elm', true],
    ['first', 'elm', 'Pine', false],
    ['imports', 'elm', 'Elm', true],
    ['any', 'elm', undefined, false],
    ['imports-twice', 'elm', undefined, false],
    ['named', 'oak', 'Mighty oak', true],
    ['named', 'oak', 'Oak tree', true],
    ['named', 'oak', 'Oak', false],
    ['imports-named', 'oak', 'Mighty oak', true],
    ['active-only', 'oak', undefined, true],
    ['active-only', 'moss', undefined, false],
    ['without-first', 'oak', undefined, false],
    ['both-without-oak', 'oak', 'Oak', true],
    ['both-without-oak', 'oak', 'Oak tree', false],
  ] as const) {
    for (const [way, parameters] of Object.entries(WAYS)) {
      const label = `${set} ${code} "${display}" as ${way}`
      t.equal((await judged(...parameters(set, code, display))).result, result, label)
    }
  }
})

t.test('$validate-code returns and accepts the display of $expand', async (t) => {
  for (const language of [undefined, 'de', 'en']) {
    const asked = language === undefined ? [] : [text('displayLanguage', language)]
    for (const [set, resource] of Object.entries(sets)) {
      // With two versions, either display is valid.
      if (set.startsWith('both')) continue
      const { body } = await ask('ValueSet/$expand', { name: 'valueSet', resource }, ...asked)
      for (const { code, display, inactive, abstract } of body.expansion.contains ?? []) {
        const label = `${set} ${code} ${language}`
        for (const [way, parameters] of Object.entries(WAYS)) {
          const all = [...parameters(set, code, display), ...asked]
          const found = await judged(...all)
          t.match(found, { result: true, display }, `${label} as ${way}`)
          t.equal(found.inactive, inactive, label)
        }
        const all = WAYS['a coding'](set, code)
        const selectable = await judged(...all, { name: 'abstract', valueBoolean: false })
        t.equal(selectable.result, abstract !== true, label)
        const active = await judged(...all, { name: 'activeOnly', valueBoolean: true })
        t.equal(active.result, inactive !== true, label)
      }
    }
  }
})

t.test('a display given by the value set has the language of the value set', async (t) => {
  const language = text('displayLanguage', 'de')
  t.match(await judged(...WAYS['a coding']('german-named', 'oak'), language), { display: 'Baum' })
  t.match(await judged(...WAYS['a coding']('first', 'oak'), language), { display: 'Eichbaum' })
  const english = WAYS['a coding']('first', 'oak', 'Oak tree')
  t.match(await judged(...english, language), { result: false, display: 'Eichbaum' })
})

t.test('ignores a designation without a value', async (t) => {
  const concept = [{ code: 'oak', display: 'Oak', designation: [{ language: 'de' }] }]
  const system = { resourceType: 'CodeSystem', status: 'active', url: SYSTEM, concept }
  for (const [path, name, resource] of [
    ['CodeSystem/$validate-code', 'codeSystem', { ...system, content: 'complete' }],
    ['ValueSet/$validate-code', 'valueSet', aValueSet([{ ...first, concept }])],
  ] as const) {
    const given = { name: 'coding', valueCoding: coding('oak', 'Ash') }
    const { status, body, text } = await ask(path, { name, resource }, given)
    t.equal(status, 200, text)
    t.match(body, { parameter: [{ name: 'result', valueBoolean: false }] })
  }
})

t.test('a concept is valid when one of its codings is valid', async (t) => {
  const concept = (...codings: object[]) =>
    judged(text('url', url('first')), {
      name: 'codeableConcept',
      valueCodeableConcept: { coding: codings },
    })
  const right = coding('oak', 'Oak tree')
  t.match(await concept(coding('oak', 'Pine'), right), { result: true, display: 'Oak tree' })
  t.match(await concept(coding('oak', undefined, { version: '9' }), right), { result: true })
  t.match(await concept(coding('oak', 'Pine'), coding('elm', 'Pine')), { result: false })
})

t.test('a code with a version is looked up in that version', async (t) => {
  for (const [set, code, version, result] of [
    ['any', 'elm', '1', true],
    ['any', 'elm', '2', false],
    ['first', 'oak', '2', false],
    ['both', 'elm', '1', true],
    ['without-first', 'oak', '2', false],
    ['both-without-oak', 'oak', '1', false],
    ['both-without-oak', 'oak', '2', true],
  ] as const) {
    const valueCoding = coding(code, undefined, { version })
    const found = await judged(text('url', url(set)), { name: 'coding', valueCoding })
    t.equal(found.result, result, `${set} ${code} ${version}`)
  }
})

t.test(
  'a code without a system is found in nested value sets, and ambiguous in two systems',
  async (t) => {
    const other = { system: 'urn:other', concept: [{ code: 'oak' }] }
    await make({ ...aValueSet([{ valueSet: [url('imports')] }, other]), url: url('two') })
    const found = await judged(text('url', url('two')), text('code', 'oak'))
    t.match(found, { result: false, message: /is a code of .*plants and urn:other/ })
    t.match(await judged(text('url', url('two')), text('code', 'elm')), { result: true })
  },
)

t.test('a binding accepts only codes of the pinned version', async (t) => {
  const profile = `${OWN}/StructureDefinition/pinned`
  await make({
    resourceType: 'StructureDefinition',
    url: profile,
    name: 'Pinned',
    kind: 'resource',
    abstract: false,
    type: 'Basic',
    baseDefinition: 'http://hl7.org/fhir/StructureDefinition/Basic',
    derivation: 'constraint',
    differential: {
      element: [
        {
          id: 'Basic.code',
          path: 'Basic.code',
          binding: { strength: 'required', valueSet: url('active-only') },
        },
      ],
    },
  })
  for (const [code, status] of [
    ['oak', 201],
    ['moss', 400],
    ['elm', 400],
  ] as const) {
    const basic = { resourceType: 'Basic', meta: { profile: [profile] } }
    const answer = await admin.post('Basic', { ...basic, code: { coding: [coding(code)] } })
    t.equal(answer.status, status, code)
  }
})
