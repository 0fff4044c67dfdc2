/** Every prefix on dates, numbers and quantities, at and around the bounds of stored values. */
import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { expectedMatches, type Stored } from '../../../fixtures/oracle/oracle.ts'
import { idsFound } from '../../../fixtures/oracle/stage.ts'
import type { Raw } from '../../../fixtures/oracle/values.ts'

const { admin } = await openBotica(t)
const UCUM = 'http://unitsofmeasure.org'
const PREFIXES = ['', 'eq', 'ne', 'gt', 'lt', 'ge', 'le', 'sa', 'eb', 'ap']

const DATES = [
  ...['2019', '2020', '2020-02', '2020-02-28', '2020-02-29', '2020-03-01', '2021'],
  ...['2020-02-29T12:00:00Z', '2020-02-29T12:00:00.250Z', '2020-02-29T14:00:00+02:00'],
]
const PERIODS = [
  ...[{ start: '2020' }, { end: '2020' }, { start: '2020-02-29' }, { end: '2020-02-29T12:00:00Z' }],
  ...[
    { start: '2020', end: '2020' },
    { start: '2020-02-29', end: '2020-03-01' },
  ],
  ...[
    { start: '2019-06', end: '2021-06' },
    { start: '2020-02-29T12:00:00Z', end: '2021' },
  ],
]
const TIMINGS = [
  { event: ['2019-12-31', '2020-03-01'] },
  { event: ['2020-02-29T12:00:00Z'] },
  { repeat: { boundsPeriod: { start: '2020-02-29' } } },
]
const amount = (value: number, code?: string) =>
  code === undefined ? { value } : { value, system: UCUM, code, unit: code }
const AMOUNTS = [
  ...[amount(0), amount(-5), amount(5), amount(5.4), amount(5.45), amount(100), amount(1e6)],
  ...[amount(5, 'mg'), amount(0.005, 'g'), amount(5.4, 'mg'), amount(5000, 'mg'), amount(5, 'g')],
  ...[
    { ...amount(5), comparator: '<' },
    { ...amount(5), comparator: '>=' },
    { ...amount(5, 'mg'), comparator: '>' },
    { value: 5, unit: 'drops' },
  ],
]
const RANGES = [{ low: amount(5) }, { high: amount(5) }, { low: amount(5), high: amount(100) }]

const observation = { resourceType: 'Observation', status: 'final', code: { text: 'x' } }
const task = { resourceType: 'Task', status: 'draft', intent: 'order' }
const condition = { resourceType: 'Condition', subject: { display: 'x' } }
const risk = { resourceType: 'RiskAssessment', status: 'final', subject: { display: 'x' } }
const item = { resourceType: 'ChargeItem', status: 'billable', code: { text: 'x' } }
const encounter = { resourceType: 'Encounter', status: 'finished', class: { code: 'AMB' } }

const NUMBERS = [0, 0.05, 0.1, 0.25, 0.2549, 1, 99.5, 100, 100.4, 110, 1000]
const RESOURCES: readonly Raw[] = [
  observation,
  ...DATES.map((effectiveDateTime) => ({ ...observation, effectiveDateTime })),
  ...PERIODS.map((effectivePeriod) => ({ ...observation, effectivePeriod })),
  ...TIMINGS.map((effectiveTiming) => ({ ...observation, effectiveTiming })),
  ...DATES.map((valueDateTime) => ({ ...observation, valueDateTime })),
  ...PERIODS.map((valuePeriod) => ({ ...observation, valuePeriod })),
  ...PERIODS.map((executionPeriod) => ({ ...task, executionPeriod })),
  ...PERIODS.map((period) => ({
    ...encounter,
    location: [{ location: { display: 'x' }, period }],
  })),
  {
    ...encounter,
    location: [PERIODS[1], PERIODS[5]].map((period) => ({ location: { display: 'x' }, period })),
  },
  ...DATES.filter((date) => !date.includes('T')).map((birthDate) => ({
    resourceType: 'Patient',
    birthDate,
  })),
  ...AMOUNTS.map((valueQuantity) => ({ ...observation, valueQuantity })),
  {
    ...observation,
    component: [amount(5), amount(100)].map((valueQuantity) => ({
      code: { text: 'x' },
      valueQuantity,
    })),
  },
  ...RANGES.map((onsetRange) => ({ ...condition, onsetRange })),
  ...NUMBERS.map((probabilityDecimal) => ({
    ...risk,
    prediction: [{ probabilityDecimal: Math.min(probabilityDecimal, 100) }],
  })),
  ...NUMBERS.map((factorOverride) => ({ ...item, subject: { display: 'x' }, factorOverride })),
]

const all: Stored[] = []
for (let from = 0; from < RESOURCES.length; from += 10) {
  const made = await Promise.all(
    RESOURCES.slice(from, from + 10).map((resource) => admin.create(resource)),
  )
  all.push(...made.map((json) => ({ type: json.resourceType, id: json.id, json })))
}

const DATE_VALUES = [
  ...['2019', '2020', '2021', '2020-02', '2020-02-28', '2020-02-29', '2020-03-01'],
  ...['2020-02-29T12:00', '2020-02-29T12:00:00Z', '2020-02-29T12:00:00.250Z'],
  ...['2020-02-29T13:00:00+01:00', '1990'],
]
const NUMBER_VALUES = [
  '0',
  '0.25',
  '0.250',
  '1e-1',
  '1',
  '100',
  '111.556',
  '100.0',
  '1e2',
  '1e3',
  '-1',
]
const AMOUNT_VALUES = [
  ...[
    '5',
    '5.4',
    '5.40',
    '-5',
    '0',
    '100',
    '1e6',
    '4',
    '4.909090909090909',
    `5|${UCUM}|mg`,
    `5000|${UCUM}|mg`,
  ],
  ...[`0.005|${UCUM}|g`, `5.0|${UCUM}|g`, '5||drops', '5||mg', `5|${UCUM}|s`],
]
const SEARCHES: Readonly<Record<string, readonly string[]>> = {
  'Observation?date': DATE_VALUES,
  'Observation?value-date': DATE_VALUES,
  'Task?period': DATE_VALUES,
  'Encounter?location-period': DATE_VALUES,
  'Patient?birthdate': DATE_VALUES,
  'RiskAssessment?probability': NUMBER_VALUES,
  'ChargeItem?factor-override': NUMBER_VALUES,
  'Observation?value-quantity': AMOUNT_VALUES,
  'Observation?combo-value-quantity': AMOUNT_VALUES,
  'Condition?onset-age': ['4', '5', '50', '100', '101', '5.0'],
}

const encoded = (value: string) => encodeURIComponent(value)

async function check(
  t: Pick<typeof import('tap').default, 'same'>,
  query: string,
): Promise<number> {
  const expected = expectedMatches(all, query).map(({ id }) => id)
  t.same((await idsFound(admin, `${query}&_count=100`)).sort(), expected.sort(), query)
  return expected.length
}

for (const [start, values] of Object.entries(SEARCHES)) {
  t.test(`finds the matches of the raw JSON by ${start} with every prefix`, async (t) => {
    for (const prefix of PREFIXES) {
      let matches = 0
      for (const value of values) matches += await check(t, `${start}=${prefix}${encoded(value)}`)
      t.ok(matches > 0, `${prefix} finds something`)
    }
  })

  t.test(`accepts a list and a repeat of ${start}`, async (t) => {
    const [first = '', second = '', third = ''] = values.map(encoded)
    await check(t, `${start}=ge${first},eb${second}`)
    await check(t, `${start}=gt${first}&${start.replace(/.*\?/, '')}=lt${third}`)
    await check(t, `${start}:missing=true`)
    await check(t, `${start}:missing=false`)
  })
}
