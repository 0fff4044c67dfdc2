import * as core from '@medplum/core'
import fc from 'fast-check'
import t from 'tap'
import { openGuest, plain, type Untyped } from '../../../fixtures/bots/guest.ts'
import { r4Examples, syntheaBundles } from '../../../fixtures/resources.ts'

/** Seed of the drawn arguments. */
const SEED = Number(process.env.TEST_SEED ?? 1)
const ours: Untyped = openGuest().load('./core.cjs')
const theirs: Untyped = core

/** Returns the result or error of a function, with its arguments after the call. */
function answer(library: Untyped, name: string, given: readonly unknown[]): string {
  const copies = given.map((value) => (value === undefined ? undefined : structuredClone(value)))
  try {
    const result = library[name](...copies)
    return JSON.stringify({ result, kind: typeof result, copies })
  } catch (error) {
    return error instanceof TypeError || String(error).startsWith('TypeError')
      ? 'TypeError'
      : `${error}`
  }
}

/** Returns the difference between the two libraries; undefined if there is none. */
function difference(name: string, given: readonly unknown[]): object | undefined {
  const [mine, its] = [answer(ours, name, given), answer(theirs, name, given)]
  return mine === its ? undefined : { name, given, mine, its }
}

type Visit = (key: string, value: Untyped) => void

function walk(value: unknown, visit: Visit, key = ''): void {
  if (typeof value === 'string') visit(key, value)
  if (typeof value !== 'object' || value === null) return
  if (!Array.isArray(value)) visit(key, value)
  for (const [name, child] of Object.entries(value)) {
    walk(child, visit, Array.isArray(value) ? key : name)
  }
}

function* callsOf(key: string, value: Untyped): Generator<readonly [string, readonly unknown[]]> {
  if (typeof value === 'string') {
    yield* callsOfText(value)
    return
  }
  if (typeof value.resourceType === 'string') yield* callsOfResource(value)
  if (key === 'name' && (value.family || value.given || value.text)) {
    for (const options of [undefined, { all: true }, { use: true }, { prefix: false }]) {
      yield ['formatHumanName', [value, options]]
    }
    yield ['formatGivenName', [value]]
    yield ['formatFamilyName', [value]]
  }
  if (key === 'address') {
    for (const options of [undefined, { all: true }, { use: true }, { lineSeparator: '\n' }]) {
      yield ['formatAddress', [value, options]]
    }
  }
  if (value.start || value.end) yield ['formatPeriod', [value]]
  if (typeof value.value === 'number') {
    yield ['formatQuantity', [value]]
    yield ['formatQuantity', [value, 1]]
  }
  if (Array.isArray(value.coding) || key.endsWith('CodeableConcept')) {
    const system = value.coding?.[0]?.system ?? 's'
    yield ['formatCodeableConcept', [value]]
    yield ['getCodeBySystem', [value, system]]
    yield ['getCodeBySystem', [value, 'urn:none']]
    yield ['setCodeBySystem', [value, system, 'new']]
    yield ['setCodeBySystem', [value, 'urn:none', 'new']]
  }
  if (typeof value.reference === 'string') {
    for (const name of ['resolveId', 'getReferenceString', 'parseReference', 'isReference']) {
      yield [name, [value]]
    }
    yield ['isReference', [value, 'Patient']]
  }
  for (const { url } of Array.isArray(value.extension) ? value.extension : []) {
    yield ['getExtension', [value, url]]
    yield ['getExtensionValue', [value, url]]
    yield ['getExtensionValue', [value, url, 'text']]
  }
}

function* callsOfText(text: string): Generator<readonly [string, readonly unknown[]]> {
  if (/^\d{4}(-\d\d(-\d\d(T.*)?)?)?$/.test(text)) {
    for (const name of ['formatDate', 'formatDateTime', 'getDateProperty']) yield [name, [text]]
    yield ['calculateAge', [text, '2026-02-28']]
    yield ['parseHl7DateTime', [text.slice(0, 19).replace(/\D/g, '')]]
  }
  if (text.length < 200) {
    yield ['capitalize', [text]]
    yield ['encodeBase64', [text]]
  }
}

function* callsOfResource(resource: Untyped): Generator<readonly [string, readonly unknown[]]> {
  const { resourceType, id, ...rest } = resource
  for (const name of ['createReference', 'getDisplayString', 'getReferenceString', 'resolveId']) {
    yield [name, [resource]]
    yield [name, [{ resourceType, ...rest }]]
  }
  yield ['isResource', [resource, 'Patient']]
  yield ['deepClone', [resource]]
  yield ['deepEquals', [resource, { ...resource }]]
  yield ['deepEquals', [resource, { ...resource, meta: { versionId: '9', lastUpdated: 'x' } }]]
  yield ['deepEquals', [resource, { ...resource, id: `${id}1`, language: '' }]]
  yield ['addProfileToResource', [resource, 'urn:profile']]
  if (resourceType === 'QuestionnaireResponse') {
    yield ['getQuestionnaireAnswers', [resource]]
    yield ['getAllQuestionnaireAnswers', [resource]]
  }
  if (resourceType === 'OperationOutcome') {
    for (const name of [
      'isOk',
      'isNotFound',
      'normalizeErrorString',
      'normalizeOperationOutcome',
    ]) {
      yield [name, [resource]]
    }
  }
  // The SDK throws if there is only one identifier.
  if (!Array.isArray(resource.identifier)) return
  yield ['setIdentifier', [resource, 'urn:none', 'v']]
  for (const { system } of resource.identifier) {
    yield ['getIdentifier', [resource, system]]
    yield ['setIdentifier', [resource, system, 'v']]
  }
}

t.test('returns the same from helpers as the SDK for real resources', async (t) => {
  const bundles = (await syntheaBundles()) as Untyped[]
  const resources = [
    ...(await r4Examples()),
    ...bundles.flatMap(({ entry }) => entry.map(({ resource }: Untyped) => resource)),
  ]
  const counts = new Map<string, number>()
  const found: object[] = []
  for (const resource of resources) {
    walk(resource, (key, value) => {
      for (const [name, given] of callsOf(key, value)) {
        counts.set(name, (counts.get(name) ?? 0) + 1)
        const differs = difference(name, given)
        if (differs !== undefined) found.push(differs)
      }
    })
  }
  t.same(found.slice(0, 5), [])
  t.ok(counts.size > 30, [...counts.keys()].join())
  const calls = [...counts.values()].reduce((sum, count) => sum + count, 0)
  t.ok(calls > 50_000, `compares ${calls} calls`)
})

const text = fc.oneof(fc.string(), fc.constantFrom('', ' ', 'a', 'official', '%', '2020-02-30'))
const texts = fc.array(text, { maxLength: 3 })
const some = <T>(fields: Record<string, fc.Arbitrary<T>>) => fc.record(fields, { requiredKeys: [] })
const coding = some<Untyped>({ system: text, code: text, display: text })
const concept = some<Untyped>({ text, coding: fc.array(coding, { maxLength: 3 }) })
const number = fc.double({ noNaN: true, noDefaultInfinity: true })
const date = fc.date({ noInvalidDate: true, min: new Date(0), max: new Date(4e12) })
const json = fc.jsonValue({ maxDepth: 3 })

const random: Readonly<Record<string, fc.Arbitrary<readonly unknown[]>>> = {
  formatHumanName: fc.tuple(
    some<Untyped>({ use: text, text, family: text, given: texts, prefix: texts, suffix: texts }),
    fc.option(
      some({ all: fc.boolean(), use: fc.boolean(), prefix: fc.boolean(), suffix: fc.boolean() }),
    ),
  ),
  formatAddress: fc.tuple(
    some<Untyped>({
      use: text,
      line: texts,
      city: text,
      state: text,
      postalCode: text,
      country: text,
    }),
    fc.option(some<Untyped>({ all: fc.boolean(), use: fc.boolean(), lineSeparator: text })),
  ),
  formatQuantity: fc.tuple(
    some<Untyped>({
      value: number,
      unit: text,
      code: text,
      comparator: fc.constantFrom('<', '>='),
    }),
    fc.option(fc.integer({ min: 0, max: 5 }), { nil: undefined }),
  ),
  formatCodeableConcept: fc.tuple(concept),
  getCodeBySystem: fc.tuple(concept, text),
  setCodeBySystem: fc.tuple(concept, text, text),
  getDisplayString: fc.tuple(
    fc.record<Untyped>({
      resourceType: fc.constantFrom('Patient', 'Device', 'Observation', 'Organization', 'User'),
      id: text,
      name: fc.oneof(
        text,
        fc.array(some<Untyped>({ family: text, given: texts }), { maxLength: 2 }),
      ),
      code: fc.oneof(fc.constant(undefined), concept),
    }),
  ),
  deepEquals: fc.tuple(json, json),
  deepClone: fc.tuple(json),
  isEmpty: fc.tuple(json),
  isObject: fc.tuple(json),
  isString: fc.tuple(json),
  isResource: fc.tuple(json),
  isReference: fc.tuple(json),
  capitalize: fc.tuple(fc.string()),
  encodeBase64: fc.tuple(fc.string({ unit: 'grapheme' })),
  normalizeErrorString: fc.tuple(json),
  calculateAge: fc.tuple(
    date.map((d) => d.toISOString().slice(0, 10)),
    date.map((d) => d.toISOString().slice(0, 10)),
  ),
  parseHl7DateTime: fc.tuple(
    date.chain((d) =>
      fc.integer({ min: 4, max: 14 }).map((n) =>
        d
          .toISOString()
          .replace(/\D/g, '')
          .slice(0, n & ~1),
      ),
    ),
  ),
  // The SDK writes milliseconds below 100 with too few digits.
  formatHl7DateTime: fc.tuple(
    date.map(
      (d) => new Date(d.getTime() - (d.getMilliseconds() % 1000 < 100 ? d.getMilliseconds() : 0)),
    ),
  ),
}

for (const [name, given] of Object.entries(random)) {
  t.test(`${name} returns the same as the SDK for any arguments (TEST_SEED=${SEED})`, async (t) => {
    fc.assert(
      fc.property(given, (values) => {
        const differs = difference(name, values)
        if (differs !== undefined) throw new Error(JSON.stringify(plain(differs)))
      }),
      { numRuns: 300, seed: SEED },
    )
    t.pass(name)
  })
}
