import * as core from '@medplum/core'
import t from 'tap'
import { botModules } from '../shared/bot-modules.ts'
import { openGuest, plain, type Untyped } from './fixtures/guest.ts'

const guest = openGuest()
const ours: Untyped = guest.load('./core.cjs')
const theirs: Untyped = core

const patient = { resourceType: 'Patient', id: '1', name: [{ given: ['A', 'B'], family: 'C' }] }
const name = { prefix: ['Dr'], given: ['A', 'B'], family: 'C', suffix: ['Jr'], use: 'official' }
const address = {
  line: ['1 A', '2 B'],
  city: 'C',
  state: 'S',
  postalCode: '9',
  country: 'US',
  use: 'home',
}
const nested = { extension: [{ url: 'a', extension: [{ url: 'b', valueInteger: 5 }] }] }
const observations = [
  { resourceType: 'Observation', id: '1', code: { coding: [{ system: 's', code: 'c' }] } },
  { resourceType: 'Observation', id: '2', code: { coding: [{ system: 's', code: 'd' }] } },
]
const response = {
  resourceType: 'QuestionnaireResponse',
  item: [
    { linkId: 'a', answer: [{ valueString: '1' }, { valueString: '2' }] },
    {
      linkId: 'g',
      item: [
        { linkId: 'b', answer: [{ valueBoolean: false }], item: [{ linkId: 'c' }] },
        { linkId: 'f', answer: [] },
      ],
    },
    { linkId: 'a', answer: [{ valueString: '3' }] },
    { answer: [{ valueString: 'without link' }] },
  ],
}
const outcome = {
  resourceType: 'OperationOutcome',
  issue: [
    { severity: 'error', code: 'invalid', details: { text: 'a' }, expression: ['x', 'y'] },
    { severity: 'error', code: 'invalid', details: { text: 'b' }, diagnostics: 'd' },
    { severity: 'error', code: 'invalid', diagnostics: 'c' },
    { severity: 'error', code: 'invalid' },
  ],
}

function versions(left: unknown, right: unknown): [unknown, unknown] {
  return [{ meta: left }, { meta: right }]
}

/** Function → lists of arguments; both libraries get copies and must give the same. */
const cases: Record<string, unknown[][]> = {
  createReference: [
    [patient],
    [{ resourceType: 'Patient', id: '1' }],
    [{ resourceType: 'Device', id: '1', deviceName: [{ name: 'd' }] }],
    [{ resourceType: 'Organization', id: '1', name: 'O' }],
  ],
  getReferenceString: [
    [patient],
    [{ reference: 'Patient/2' }],
    [{}],
    [{ resourceType: 'Patient' }],
    [{ display: 'x' }],
  ],
  parseReference: [
    [{ reference: 'Patient/2' }],
    [{ reference: 'Patient/2/_history/3' }],
    [{ reference: 'x' }],
    [{}],
    [undefined],
  ],
  resolveId: [
    [{ reference: 'Patient/2' }],
    [{ reference: 'Patient/2/_history/3' }],
    [patient],
    [{ reference: 'x' }],
    [{}],
    [undefined],
  ],
  isResource: [
    [patient],
    [patient, 'Patient'],
    [patient, 'Observation'],
    [{}],
    [null],
    ['x'],
    [undefined],
  ],
  isReference: [
    [{ reference: 'Patient/1' }],
    [{ reference: 'Patient/1' }, 'Patient'],
    [{ reference: 'PatientX/1' }, 'Patient'],
    [{ reference: 'Patient?a=b' }, 'Patient'],
    [{ reference: 5 }],
    [{}],
    [null],
  ],
  getDisplayString: [
    [patient],
    [{ resourceType: 'Patient', id: '1', name: [] }],
    [{ resourceType: 'Patient', id: '1', name: [{ text: 'T' }] }],
    [{ resourceType: 'Practitioner', id: '1', name: [name] }],
    [{ resourceType: 'Person', id: '1', name: [name] }],
    [{ resourceType: 'Device', id: 'd', deviceName: [] }],
    [{ resourceType: 'User', id: 'u', email: 'e', name: 'n' }],
    [{ resourceType: 'MedicationRequest', id: '1', medicationCodeableConcept: { text: 'm' } }],
    [{ resourceType: 'PractitionerRole', id: '1', code: [{ text: 'x' }] }],
    [{ resourceType: 'Subscription', id: 's', criteria: 'Patient' }],
    [{ resourceType: 'Observation', id: 'o', name: 'n', code: { text: 'c' } }],
    [{ resourceType: 'Observation', id: 'o', code: { text: 'c' } }],
    [{ resourceType: 'Condition', id: 'o', code: { coding: [{ code: 'c' }] } }],
    [{ resourceType: 'Account', id: 'a' }],
    [{ resourceType: 'Bundle' }],
  ],
  getIdentifier: [
    [{ identifier: [{ system: 's', value: 'v' }] }, 's'],
    [{ identifier: [{ system: 's', value: 'v' }] }, 't'],
    [{ identifier: { system: 's', value: 'v' } }, 's'],
    [{}, 's'],
  ],
  setIdentifier: [
    [{}, 's', 'v'],
    [{ identifier: [{ system: 's', value: 'a', use: 'usual' }] }, 's', 'v'],
    [{ identifier: [{ system: 't', value: 'a' }] }, 's', 'v'],
  ],
  getExtension: [
    [nested, 'a'],
    [nested, 'a', 'b'],
    [nested, 'x', 'b'],
    [{}, 'a'],
    [undefined, 'a'],
  ],
  getExtensionValue: [
    [nested, 'a'],
    [nested, 'a', 'b'],
    [{ extension: [{ url: 'a', valueCoding: { code: 'q' } }] }, 'a'],
    [{ extension: [{ url: 'a', id: 'z' }] }, 'a'],
    [{}, 'a'],
  ],
  getCodeBySystem: [
    [{ coding: [{ system: 's', code: 'v' }] }, 's'],
    [{ coding: [{ system: 's', code: 'v' }] }, 't'],
    [{}, 's'],
  ],
  setCodeBySystem: [
    [{}, 's', 'v'],
    [{ coding: [{ system: 's', code: 'a', display: 'd' }] }, 's', 'v'],
    [{ coding: [{ system: 't', code: 'a' }] }, 's', 'v'],
  ],
  findResourceByCode: [
    [observations, 'd', 's'],
    [observations, { coding: [{ system: 's', code: 'c' }] }, 's'],
    [observations, 'x', 's'],
    [[], 'x', 's'],
  ],
  addProfileToResource: [
    [{ resourceType: 'Patient' }, 'u'],
    [{ resourceType: 'Patient', meta: { profile: ['u'] } }, 'u'],
    [{ resourceType: 'Patient', meta: { versionId: '1', profile: ['v'] } }, 'u'],
  ],
  getQuestionnaireAnswers: [[response], [{}], [{ item: [] }]],
  getAllQuestionnaireAnswers: [[response], [{}], [{ item: [] }]],
  deepClone: [[{ a: [1, { b: null }] }], [undefined]],
  deepEquals: [
    [1, 1],
    [1, '1'],
    [{ a: 1 }, { a: 1 }],
    [{ a: 1 }, { b: 1 }],
    [{ a: null }, {}],
    [
      [1, 2],
      [2, 1],
    ],
    [[1], { 0: 1 }],
    [undefined, null],
    ['', undefined],
    [{ a: '' }, { a: [] }],
    [{}, undefined],
    [0, ''],
    versions({ versionId: '1', lastUpdated: 'x', author: { a: 1 } }, { versionId: '2' }),
    versions({ versionId: '1', project: 'x' }, { versionId: '2' }),
    versions({ profile: ['x'], versionId: '1' }, { profile: ['x'] }),
    [{ a: { meta: { versionId: '1' } } }, { a: { meta: { versionId: '2' } } }],
    [{ versionId: '1' }, { versionId: '2' }],
  ],
  isString: [['x'], [''], [5], [null]],
  isObject: [[{}], [[]], [null], ['x'], [undefined]],
  isEmpty: [[undefined], [null], [''], [' '], [0], [false], [[]], [{}], [[0]], [{ a: 1 }]],
  capitalize: [['abc DEF'], [''], [undefined]],
  calculateAge: [
    ['2000-01-01', '2020-01-01'],
    ['2000-06-15', '2020-06-14'],
    ['2000-06-15', '2020-06-15'],
    ['2000-02-29', '2021-02-28'],
    ['2020-01-31', '2020-03-01'],
    ['2020', '2021'],
    ['2020-12-31', '2020-01-01'],
    ['2019-12-31', '2020-01-01'],
    ['1980-05-05'],
  ],
  getDateProperty: [['2020-01-01'], ['2020-01-01T01:02:03Z'], [''], [undefined]],
  formatDate: [
    ['2020-01-02'],
    ['2020'],
    ['2020-01-02T23:30:00-05:00'],
    ['bad'],
    [undefined],
    ['2020-01-02', 'de-DE'],
    ['2020-01-02', 'en-US', { month: 'long', day: 'numeric' }],
  ],
  formatDateTime: [
    ['2020-01-02T15:04:05Z'],
    ['2020-01-02'],
    ['bad'],
    [''],
    ['2020-01-02T15:04:05Z', 'en-GB', { timeZone: 'America/New_York' }],
  ],
  formatPeriod: [
    [undefined],
    [{}],
    [{ start: '2020-01-01' }],
    [{ end: '2020-01-01T10:00:00Z' }],
    [{ start: '2020-01-01', end: '2020-02-01' }, 'de'],
  ],
  formatHumanName: [
    [name],
    [name, { all: true }],
    [name, { use: true }],
    [name, { prefix: false, suffix: false }],
    [{ text: 'T' }],
    [{ text: 'T', family: 'F' }],
    [{ given: [null, 'B'] }],
    [{}],
    [undefined],
  ],
  formatGivenName: [[name], [{}], [{ given: ['A', null] }]],
  formatFamilyName: [[name], [{}]],
  formatAddress: [
    [address],
    [address, { all: true }],
    [address, { use: true }],
    [address, { all: true, lineSeparator: '\n' }],
    [{ city: 'C' }, { lineSeparator: '\n' }],
    [{ text: 'T' }],
    [{ state: 'S', postalCode: '9' }],
    [{}],
    [undefined],
  ],
  formatQuantity: [
    [{ value: 1 }],
    [{ value: 1.23456, unit: 'kg' }],
    [{ value: 1.23456, unit: 'kg' }, 2],
    [{ value: 5, unit: '%' }],
    [{ value: 5, comparator: '<', unit: 'mg' }],
    [{ unit: 'mg' }],
    [{ value: 0, unit: 'mg' }],
    [{ value: 5, code: 'mg' }],
    [{ comparator: '>' }],
    [{}],
    [undefined],
  ],
  formatCodeableConcept: [
    [{ text: 't' }],
    [{ coding: [{ display: 'a' }, { code: 'b' }, {}] }],
    [{ text: '', coding: [{ display: 'a' }] }],
    [{}],
    [undefined],
  ],
  badRequest: [['x'], ['x', 'Patient.name']],
  isOk: [[core.allOk], [core.created], [core.notFound], [{ id: 'accepted' }], [outcome]],
  isNotFound: [[core.notFound], [core.allOk], [outcome]],
  normalizeErrorString: [
    [undefined],
    [''],
    ['text'],
    [core.notFound],
    [outcome],
    [{ resourceType: 'OperationOutcome' }],
    [{ code: 'X' }],
    [{ a: 1 }],
    [['a']],
    [5],
  ],
  normalizeOperationOutcome: [[undefined], ['text'], [outcome], [{ code: 'X' }], [5]],
  encodeBase64: [[''], ['abc'], ['é€😀']],
  decodeBase64: [[''], ['YWJj'], ['w6nigqzwn5iA'], ['YWI']],
}

/** What a function gives, or throws, and what it made of its arguments. */
function answer(library: Untyped, name: string, given: unknown[]): unknown {
  const copies = given.map((value) => (value === undefined ? undefined : structuredClone(value)))
  try {
    const result = library[name](...copies)
    return plain({ result, kind: typeof result, copies })
  } catch (error) {
    return (error as Error).message
  }
}

for (const [name, lists] of Object.entries(cases)) {
  t.test(`${name} answers as the SDK does`, async (t) => {
    for (const given of lists) {
      t.same(answer(ours, name, given), answer(theirs, name, given), JSON.stringify(given))
    }
  })
}

t.test('constants and outcomes are those of the SDK', async (t) => {
  const names = ['LOINC', 'SNOMED', 'RXNORM', 'CPT', 'ICD10', 'NDC', 'UCUM', 'ContentType']
  const outcomes = ['allOk', 'created', 'notFound', 'unauthorized', 'forbidden']
  for (const name of [...names, ...outcomes]) t.same(plain(ours[name]), theirs[name], name)
})

t.test('an OperationOutcomeError says what its outcome says', async (t) => {
  for (const value of [outcome, core.notFound, core.badRequest('x', 'y'), { issue: [] }]) {
    const error = new ours.OperationOutcomeError(value, { cause: 1 })
    t.equal(error.message, new theirs.OperationOutcomeError(value).message)
    t.equal(error.name, 'OperationOutcomeError')
    t.equal(error.outcome, value)
    t.equal(error.cause, 1)
    t.equal(ours.normalizeErrorString(error), error.message)
    t.equal(ours.normalizeOperationOutcome(error), value)
  }
})

t.test('ids are UUIDs and sleep waits', async (t) => {
  t.match(ours.generateId(), /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/)
  await ours.sleep(1)
})

t.test('the list for deploying names exactly what the modules export', async (t) => {
  const modules = guest.load('./modules.cjs')
  const names = [...modules.names, ...modules.nodeModules.map((name: string) => `node:${name}`)]
  t.same(Object.keys(botModules).sort(), names.sort())
  for (const [name, exported] of Object.entries(botModules)) {
    t.same(exported, Object.keys(modules.resolve(name)).sort(), name)
  }
  for (const name of Object.keys(cases)) t.ok(botModules['@medplum/core']?.includes(name), name)
})
