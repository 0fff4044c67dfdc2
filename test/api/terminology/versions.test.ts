/** Terminology across code systems: versions, fragments, languages and missing definitions. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'

const botica = await openBotica(t)
const { admin } = botica
const OWN = 'http://example.org'
const SYSTEM = `${OWN}/CodeSystem/colours`

const make = (resource: Raw) => admin.create({ status: 'active', ...resource } as Resource)
const system = (version: string, ...codes: string[]) =>
  make({
    resourceType: 'CodeSystem',
    url: SYSTEM,
    version,
    content: 'complete',
    language: 'en',
    concept: codes.map((code) => ({
      code,
      display: `${code} ${version}`,
      ...(code === 'red' ? { designation: [{ language: 'de', value: 'rot' }] } : {}),
    })),
  })
const valueSet = (name: string, include: object, more: object = {}) =>
  make({
    resourceType: 'ValueSet',
    url: `${OWN}/ValueSet/${name}`,
    compose: { include: [include].flat() },
    ...more,
  })

await system('1.0.0', 'red', 'blue')
await system('1.2.0', 'red', 'green')
await valueSet('any', { system: SYSTEM })
await valueSet('first', { system: SYSTEM, version: '1.0.0' })
await valueSet('wild', { system: SYSTEM, version: '1.x.x' })
await valueSet('none', { system: SYSTEM, version: '1' })
await valueSet('both', [
  { system: SYSTEM, version: '1.0.0' },
  { system: SYSTEM, version: '1.2.0' },
])
await valueSet('imports', { valueSet: [`${OWN}/ValueSet/nowhere`] })
await make({
  resourceType: 'CodeSystem',
  url: `${OWN}/CodeSystem/part`,
  content: 'fragment',
  concept: [{ code: 'a' }],
})
await valueSet('part', { system: `${OWN}/CodeSystem/part` })
await valueSet(
  'supplemented',
  { system: SYSTEM },
  {
    extension: [
      {
        url: 'http://hl7.org/fhir/StructureDefinition/valueset-supplement',
        valueCanonical: `${OWN}/CodeSystem/nowhere`,
      },
    ],
  },
)

const ask = (operation: string, ...parameter: object[]) =>
  admin.post<Raw>(operation, { resourceType: 'Parameters', parameter })
async function isIn(name: string, coding: object, ...more: object[]): Promise<unknown> {
  const { body } = await ask(
    'ValueSet/$validate-code',
    { name: 'url', valueUri: `${OWN}/ValueSet/${name}` },
    { name: 'coding', valueCoding: coding },
    ...more,
  )
  return body.parameter?.find((item: Raw) => item.name === 'result')?.valueBoolean
}

const red = (version?: string, display?: string) => ({
  system: SYSTEM,
  code: 'red',
  ...(version === undefined ? {} : { version }),
  ...(display === undefined ? {} : { display }),
})

t.test('uses the version of the value set and requires that it exists', async (t) => {
  for (const [name, version, wanted] of [
    ['any', undefined, true],
    ['any', '1.0.0', true],
    ['any', '2.0.0', false],
    ['first', '1.0.0', true],
    ['first', '1.2.0', false],
    ['wild', '1.0.0', true],
    ['wild', undefined, true],
    ['none', undefined, false],
    ['none', '1.0.0', false],
  ] as const) {
    t.equal(await isIn(name, red(version)), wanted, `${name} ${version}`)
  }
  t.equal(await isIn('any', { system: SYSTEM, code: 'blue' }), false)
  t.equal(await isIn('any', { system: SYSTEM, version: '1.0.0', code: 'blue' }), true)
})

t.test('an expansion has the codes of each version that is named', async (t) => {
  const codes = async (name: string) => {
    const { body } = await admin.get<Raw>(`ValueSet/$expand?url=${OWN}/ValueSet/${name}`)
    return body.expansion.contains.map(({ code }: Raw) => code)
  }
  t.same(await codes('both'), ['red', 'blue', 'red', 'green'])
  const { body } = await admin.get<Raw>(`ValueSet/$expand?url=${OWN}/ValueSet/both`)
  t.same(
    body.expansion.parameter.map(({ valueUri }: Raw) => valueUri),
    [`${SYSTEM}|1.0.0`, `${SYSTEM}|1.2.0`],
  )
  t.same(await codes('wild'), ['red', 'green'])
})

t.test('rejects codes and expansions of unknown code systems', async (t) => {
  t.equal(await isIn('imports', red()), false)
  t.equal(await isIn('any', { code: 'red' }), false)
  for (const name of ['imports', 'none', 'supplemented']) {
    const url = `${OWN}/ValueSet/${name}`
    t.match(await admin.get(`ValueSet/$expand?url=${url}`), {
      status: 400,
      body: { issue: [{ code: 'not-found' }] },
    })
  }
  const sent = {
    resourceType: 'ValueSet',
    status: 'draft',
    compose: { include: [{ system: SYSTEM, filter: [{ property: 'concept', op: 'is-a' }] }] },
  }
  const { status } = await ask('ValueSet/$expand', { name: 'valueSet', resource: sent })
  t.equal(status, 400)
})

t.test('accepts unknown codes of a fragment', async (t) => {
  t.equal(await isIn('part', { system: `${OWN}/CodeSystem/part`, code: 'z' }), true)
})

t.test('searches displays in the requested language', async (t) => {
  const language = (valueCode: string) => ({ name: 'displayLanguage', valueCode })
  for (const [display, wanted, ...more] of [
    ['rot', true],
    ['rot', true, language('de')],
    ['rot', true, language('fr, de;q=0.5')],
    ['rot', false, language('en')],
    ['red 1.2.0', true, language('en')],
    ['red 1.2.0', false, language('de')],
    ['red 1.2.0', true, language('fr')],
    ['blue', false],
  ] as const) {
    t.equal(
      await isIn('any', red(undefined, display), ...more),
      wanted,
      JSON.stringify([display, more]),
    )
  }
})

t.test('names are in the language of the parameter, the header, or the value set', async (t) => {
  const expansion = 'http://hl7.org/fhir/StructureDefinition/valueset-expansion-parameter'
  const name = { url: 'name', valueCode: 'displayLanguage' }
  const extension = [{ url: expansion, extension: [name, { url: 'value', valueCode: 'de' }] }]
  const include = [{ system: SYSTEM }]
  const compose = { extension, include }
  await valueSet('german', { system: SYSTEM }, { language: 'de' })
  await make({ resourceType: 'ValueSet', url: `${OWN}/ValueSet/demands-german`, compose })
  for (const [set, parameter, header, expected] of [
    ['any', '', undefined, 'red 1.2.0'],
    ['any', '', 'de', 'rot'],
    ['any', '', 'de-CH, en;q=0.5', 'rot'],
    ['any', '', 'en-US,en;q=0.9,de;q=0.8', 'red 1.2.0'],
    ['any', '', 'fr, de;q=0.5, *;q=0.1', 'rot'],
    ['any', '', 'not de!', 'red 1.2.0'],
    ['any', 'en', 'de', 'red 1.2.0'],
    ['german', '', undefined, 'rot'],
    ['demands-german', '', undefined, 'rot'],
    ['demands-german', 'en', 'de', 'red 1.2.0'],
    ['demands-german', '', 'en', 'red 1.2.0'],
  ] as const) {
    const headers: Record<string, string> =
      header === undefined ? {} : { 'Accept-Language': header }
    const asked = parameter === '' ? '' : `&displayLanguage=${parameter}`
    const get = (path: string) => admin.get<Raw>(`${path}${asked}`, headers)
    const { body } = await get(`ValueSet/$expand?url=${OWN}/ValueSet/${set}&filter=r`)
    const red = body.expansion.contains.find((item: Raw) => item.code === 'red')
    t.equal(red.display, expected, `${set} ${parameter} ${header}`)
    if (set !== 'any') continue
    const looked = await get(`CodeSystem/$lookup?system=${SYSTEM}&code=red`)
    const display = looked.body.parameter.find((item: Raw) => item.name === 'display')
    t.equal(display.valueString, expected)
    const valid = await get(
      `ValueSet/$validate-code?url=${OWN}/ValueSet/any&system=${SYSTEM}&code=red&display=rot`,
    )
    const isGerman = !/^en/.test(parameter) && (header?.includes('de') ?? true)
    t.equal(valid.body.parameter[0].valueBoolean, isGerman, `${parameter} ${header}`)
  }
  for (const path of ['ValueSet/$expand', 'ValueSet/$validate-code', 'CodeSystem/$lookup']) {
    const query = `url=${OWN}/ValueSet/any&system=${SYSTEM}&code=red&displayLanguage=-`
    t.match(await admin.get(`${path}?${query}`), {
      status: 400,
      text: 'Invalid displayLanguage: -',
    })
  }
})

t.test('resolves a contained value set by id', async (t) => {
  const inner = {
    resourceType: 'ValueSet',
    id: 'inner',
    status: 'active',
    compose: { include: [{ system: SYSTEM, concept: [{ code: 'red' }] }] },
  }
  const resource = {
    resourceType: 'ValueSet',
    status: 'active',
    contained: [inner],
    compose: { include: [{ valueSet: ['#inner'] }] },
  }
  const { body } = await ask('ValueSet/$expand', { name: 'valueSet', resource })
  t.same(
    body.expansion.contains.map(({ code }: Raw) => code),
    ['red'],
  )
})

const text = (name: string, valueString: string) => ({ name, valueString })
const canonical = (name: string, version: string) => text(name, `${SYSTEM}|${version}`)

async function expanded(name: string, ...more: object[]): Promise<Raw> {
  const { body } = await ask('ValueSet/$expand', text('url', `${OWN}/ValueSet/${name}`), ...more)
  return body.expansion?.contains ?? body.issue[0].details.text
}

t.test('the version of a system is given, demanded or forced', async (t) => {
  const codes = async (name: string, ...more: object[]) => {
    const found = await expanded(name, ...more)
    return Array.isArray(found) ? found.map(({ code }) => code) : found
  }
  const first = ['red', 'blue']
  t.same(await codes('any', canonical('system-version', '1.0.0')), first)
  t.same(await codes('wild', canonical('force-system-version', '1.0.0')), first)
  t.same(await codes('none', canonical('force-system-version', '1.0.0')), first)
  t.same(await codes('any', canonical('check-system-version', '1.0.0')), first)
  t.same(await codes('first', canonical('system-version', '1.2.0')), first)
  t.match(await codes('first', canonical('check-system-version', '1.2.0')), /not 1.2.0/)
  t.match(await codes('any', text('system-version', SYSTEM)), /must be a url and a version/)
  const blue = { system: SYSTEM, code: 'blue' }
  t.equal(await isIn('any', blue, canonical('system-version', '1.0.0')), true)
  const forced = canonical('force-system-version', '1.0.x')
  for (const name of ['any', 'none', 'wild', 'first']) {
    t.equal(await isIn(name, { ...blue, version: '1.0.0' }, forced), true, name)
    t.equal(await isIn(name, { ...blue, version: '2.4.0' }, forced), false, 'a version of nobody')
  }
  const demanded = canonical('check-system-version', '1.0.x')
  t.equal(await isIn('first', blue, demanded), true)
  t.equal(await isIn('wild', red(), demanded), false)
  t.equal(await isIn('any', red('2.4.0'), demanded), false)
})

t.test('supplements add names to the concepts of a system', async (t) => {
  const url = `${OWN}/CodeSystem/more-names`
  await make({
    resourceType: 'CodeSystem',
    url,
    content: 'supplement',
    supplements: SYSTEM,
    concept: [
      {
        code: 'red',
        designation: [
          { language: 'fr', value: 'rouge', use: { system: 'urn:use', code: 'short' } },
          { language: 'fr-CA', value: 'rouge vif' },
        ],
      },
    ],
  })
  const extended = 'http://hl7.org/fhir/StructureDefinition/valueset-supplement'
  const extension = [{ url: extended, valueCanonical: url }]
  await valueSet('named', { system: SYSTEM, version: '1.0.0' }, { extension })
  const french = text('displayLanguage', 'fr')
  t.match(await expanded('named', french), [{ code: 'red', display: 'rouge' }, { code: 'blue' }])
  const use = text('useSupplement', url)
  t.match(await expanded('any', french, use), [{ display: 'rouge' }, { display: 'green 1.2.0' }])
  t.match(await expanded('any', french), [{ display: 'red 1.2.0' }, { display: 'green 1.2.0' }])
  t.equal(await isIn('any', red(undefined, 'rouge')), false)
  t.equal(await isIn('any', red(undefined, 'rouge'), use), true)
  const lenient = { name: 'lenient-display-validation', valueBoolean: true }
  t.equal(await isIn('any', red(undefined, 'rouge'), lenient), true)
  const given = [text('system', SYSTEM), text('code', 'red'), french, use]
  t.match(await ask('CodeSystem/$lookup', ...given), {
    body: { parameter: [{ name: 'name' }, { name: 'version' }, { valueString: 'rouge' }] },
  })
  const nobody = text('useSupplement', `${OWN}/CodeSystem/nobody`)
  t.equal((await ask('CodeSystem/$lookup', ...given, nobody)).status, 400)

  const all = { name: 'includeDesignations', valueBoolean: true }
  const designations = async (...more: object[]) => {
    const [found] = await expanded('named', all, ...more)
    return found.designation?.map(({ value }: Raw) => value)
  }
  t.same(await designations(), ['rot', 'rouge', 'rouge vif'])
  t.same(await designations(text('designation', 'urn:ietf:bcp:47|de')), ['rot'])
  t.same(await designations(text('designation', 'urn:use|short')), ['rouge'])
})

t.test('a code unknown to its system is in no value set', async (t) => {
  const concept = [{ code: 'red' }, { code: 'pink' }]
  await valueSet('listed', { system: SYSTEM, concept })
  t.match(await expanded('listed'), [{ code: 'red' }])
  t.equal((await expanded('listed')).length, 1)
  t.equal(await isIn('listed', { system: SYSTEM, code: 'pink' }), false)
  t.equal(await isIn('listed', red()), true)
})

t.test('returns false for a code without a system if two systems have it', async (t) => {
  const concept = [{ code: 'red' }]
  const other = { system: `${OWN}/CodeSystem/not-here`, concept }
  await valueSet('two', [{ system: SYSTEM }, other])
  const { body } = await ask(
    'ValueSet/$validate-code',
    text('url', `${OWN}/ValueSet/two`),
    text('code', 'red'),
  )
  t.match(body.parameter, [{ valueBoolean: false }, { valueString: /is a code of .* and / }])
})
