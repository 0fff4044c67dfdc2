/** Terminology services beyond one CodeSystem: versions, fragments, languages, definitions that nobody has. */
import t from 'tap'
import type { Resource } from '../../shared/fhir/resource.ts'
import { openBotica } from '../fixtures/botica.ts'
import type { Raw } from '../fixtures/oracle/values.ts'

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

t.test('a version is that of the value set, and one that is there', async (t) => {
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
  t.same(await codes('wild'), ['red', 'green'])
})

t.test('what is not known makes a code none, and an expansion impossible', async (t) => {
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

t.test('a fragment may have more codes than are here', async (t) => {
  t.equal(await isIn('part', { system: `${OWN}/CodeSystem/part`, code: 'z' }), true)
})

t.test('a display is looked for in the language that is asked for', async (t) => {
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

t.test('a contained value set is what its id stands for', async (t) => {
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
