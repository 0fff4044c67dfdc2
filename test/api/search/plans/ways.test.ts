/**
 * Every access path finds the same rows in the same order, page by page, under one plan. Imports the planner, to
 * force each access path.
 */
import { inspect } from 'node:util'
import t from 'tap'
import { typeNumber } from '../../../../shared/fhir/definitions.ts'
import { UCUM } from '../../../../shared/fhir/values.ts'
import type { Statement } from '../../../../shared/postgres/statement.ts'
import { ACCESS_PATHS, chooseAccessPath } from '../../../../shared/search/planner/access-paths.ts'
import {
  countedStatement,
  pageStatement,
} from '../../../../shared/search/planner/page-statement.ts'
import { readCursor, writeCursor } from '../../../../shared/search/predicates/order.ts'
import { type Predicate, predicateSql } from '../../../../shared/search/predicates/predicate.ts'
import type { PlannerStats, Query, SortedRow } from '../../../../shared/search/predicates/query.ts'
import { countNow } from '../../../../shared/store/rows/counts.ts'
import { openPlannedStore } from './planned-store.ts'
import { keptBuffers, ownBuffers } from './plans.ts'

const OBSERVATIONS = 3000
const PATIENTS = 300
const MANY = 5000

const planned = await openPlannedStore(t)
const { database, repository, member, statistics } = planned

const ids = Array.from({ length: PATIENTS }, (_, n) => `p${n}`)
const toDay = (n: number, from: number) =>
  new Date(Date.UTC(from, 0, 1) + n * 86_400_000).toISOString().slice(0, 10)
await Promise.all(
  ids.map((id, n) =>
    repository.create(
      member,
      {
        resourceType: 'Patient',
        id,
        identifier: [{ system: 'urn:n', value: id }],
        gender: n % 2 ? 'male' : 'female',
        birthDate: toDay((n * 37) % 3000, 1990),
        name: [{ family: `family${n % 40}`, given: [`given${n % 7}`] }],
        ...(n % 5 ? { address: [{ city: n % 4 ? 'Norwood' : 'Boston' }] } : {}),
      },
      { keepId: true },
    ),
  ),
)
await Promise.all(
  Array.from({ length: OBSERVATIONS }, (_, n) =>
    repository.create(member, {
      resourceType: 'Observation',
      status: n % 9 ? 'final' : 'amended',
      code: { coding: [{ system: 's', code: `c${n % 3}` }], text: n % 3 ? 'Weight' : 'Height' },
      subject: { reference: `Patient/p${(n * 7) % PATIENTS}` },
      ...(n % 11 ? { effectiveDateTime: toDay((n * 131) % 1000, 2020) } : {}),
      valueQuantity: { value: n % 200, system: UCUM, code: n % 2 ? 'kg' : 'g', unit: 'x' },
    }),
  ),
)
await database.query({ text: 'vacuum analyze', values: [] })
await statistics.refresh()

const planQuery = (search: string): Query => planned.queryOf(search, ['kg', 'g'])
const toType = ({ typeNumbers: [number] }: Query) => number

/** Simulated row counts of the type; the limit of "few" keys grows with them. */
const someStatistics = (query: Query, rows: number, isKnown = true): PlannerStats => ({
  statistics: { ...statistics, typeRows: () => rows },
  rows,
  limit: query.limit + query.offset,
  isKnown,
})
const realStats = (query: Query) =>
  someStatistics(query, toType(query) === typeNumber('Patient') ? PATIENTS : OBSERVATIONS)

/** With few rows each key counts as common, with many rows as rare. */
const STATS: readonly ((query: Query) => PlannerStats)[] = [
  realStats,
  (query) => someStatistics(query, 1),
  (query) => someStatistics(query, 2000),
  (query) => someStatistics(query, 1_000_000),
  (query) => someStatistics(query, 10_000, false),
]

const keyOf = ({ text, values }: Statement) =>
  inspect([text, values], { maxArrayLength: null, depth: null })

/** Asks each statement once: many statistics lead to the same one, and the rows do not change. */
function askOnce<T>(ask: (statement: Statement) => Promise<T>) {
  const answers = new Map<string, Promise<T>>()
  return (statement: Statement): Promise<T> => {
    const answer = answers.get(keyOf(statement)) ?? ask(statement)
    answers.set(keyOf(statement), answer)
    return answer
  }
}
const readRows = askOnce((statement) => database.query<SortedRow>(statement))
const countRows = askOnce((statement) => countNow(database, statement))

const buildRows = (
  query: Query,
  stats: PlannerStats,
  accessPath = chooseAccessPath(query, stats).accessPath,
) => readRows(pageStatement([{ query, stats, accessPath }]))
/** Walks all rows of the type, without a key lookup. */
function walked(query: Query): Promise<SortedRow[]> {
  const predicates = query.predicates.map(
    (predicate): Predicate =>
      predicate.kind === 'keys'
        ? { kind: 'filter', sql: (bind) => predicateSql(predicate, bind, true) }
        : predicate,
  )
  const accessPath = ACCESS_PATHS.find(({ name }) => name === 'walk')
  return buildRows({ ...query, predicates }, realStats(query), accessPath)
}

function following(query: Query, row: SortedRow | undefined): Query {
  if (row === undefined) throw new Error('There is no row to follow')
  return { ...query, after: readCursor(query.order, writeCursor(query.order, row)) }
}

const BY_DATES = ['2021-01-05', 'lt2020-03', 'le2021', 'eb2021-02', 'sa2022-07', 'ge2022-06']
const BY_BIRTHS = ['1993-05', 'ge1997', 'gt1990-02', 'ap1994', 'le1990-03', 'ne1993']
const OBSERVED = [
  '',
  'subject=Patient/p7',
  'subject=Patient/p7,Patient/p8',
  'subject=Patient/p0&status=amended',
  'subject=Patient/p7&date=ge2021&date=lt2022-03',
  'status=final',
  'status=amended&date=2021',
  'status:not=final',
  'date=sa2020&date=lt2021-03',
  'date=2020-02-01,2021-03-01',
  'date:missing=true',
  'value-quantity=gt190',
  'value-quantity=gt0.1',
  'value-quantity=gt150&status=final',
  'value-quantity=lt150&value-quantity=gt20&date=lt2022',
  `value-quantity=gt190|${UCUM}|kg`,
  'code-value-quantity=c1$gt190',
  'code-value-quantity=c1$gt10',
  'subject:Patient.name=family7',
  'subject:Patient.gender=male&status=final',
  'subject:Patient.birthdate=lt1991',
  'code:text=hei',
]
const SORTED = ['-_lastUpdated', '_lastUpdated', 'date', '-date', '_id', '-_id']
const SEARCHES = [
  ...OBSERVED.flatMap((search, n) =>
    SORTED.filter((_, i) => n < 8 || i === n % 6 || i === 0).map(
      (sort) => `Observation?${search}&_sort=${sort}`,
    ),
  ),
  ...BY_DATES.map((date) => `Observation?date=${date}`),
  ...BY_BIRTHS.map((date) => `Patient?birthdate=${date}`),
  'Observation?_lastUpdated=gt2001&status=final',
  'Observation?subject=Patient/p7&_sort=code,-date',
  'Patient?_id=p1,p2,p3,p4&gender=male',
  'Patient?identifier=urn:n|p1,urn:n|p2',
  'Patient?family:exact=family1',
  'Patient?address-city=Norwood',
  'Patient?family=family1&given=given1',
  'Patient?name=family1 given1',
  'Patient?name:contains=amily1',
  'Patient?family=family1&birthdate=ge1991&birthdate=lt1996&gender=female',
  'Patient?_sort=name',
  'Patient?gender=female&_sort=name',
  'Patient?gender=female&_sort=-name,birthdate',
  'Patient?_sort=address-city',
  'Patient?_sort=-address-city',
  'Patient?_sort=-address-city,birthdate',
  'Patient?family=family1&_sort=-address-city',
  'Patient?name:contains=amily1&_sort=-name',
  'Observation?_sort=value-quantity',
  'Observation?_sort=-value-quantity',
  'Observation?status=amended&_sort=-value-quantity',
  'Observation?value-quantity=gt150&_sort=value-quantity',
  'Observation?date=ge2021&date=lt2022-03&_sort=value-quantity',
  'Observation?subject:Patient.gender=male&_sort=-value-quantity',
  'Patient?_has:Observation:subject:code=c1',
  'Patient?_has:Observation:subject:value-quantity=gt195',
  'Patient?_has:Observation:subject:date=ge2021',
  'Patient?_has:Observation:subject:date=2021-01-05',
  'Patient?_has:Observation:subject:code=c1&_sort=_lastUpdated',
  'Patient?family=family1&_has:Observation:subject:status=amended',
]

t.test('finds the same rows in the same order on every access path', async (t) => {
  const taken = new Set<string>()
  for (const search of SEARCHES) {
    const query = planQuery(`${search}&_count=15`)
    const whole = await walked({ ...query, limit: MANY })
    t.ok(whole.length > 1, search)
    const ids = whole.map(({ id }) => id)
    const at = Math.floor(ids.length / 3)
    const pages = [
      ['all rows', { ...query, limit: MANY }, ids],
      ['a page by offset', { ...query, offset: 3 }, ids.slice(3, 3 + 16)],
      ['the next page', following(query, whole[at]), ids.slice(at + 1, at + 17)],
    ] as const
    const asked = new Set<string>()
    for (const [n, stats] of STATS.entries()) {
      const { accessPath } = chooseAccessPath(query, stats(query))
      taken.add(accessPath.name)
      for (const [what, page, expected] of pages) {
        const statement = pageStatement([{ query: page, stats: stats(page), accessPath }])
        const isKnown = asked.has(keyOf(statement))
        asked.add(keyOf(statement))
        if (isKnown) continue
        const found = (await readRows(statement)).map(({ id }) => id)
        t.same(found, expected, `${accessPath.name} ${n}, ${what}: ${search}`)
      }
    }
  }
  t.same([...taken].sort(), ACCESS_PATHS.map(({ name }) => name).sort())
})

t.test('finds the same rows on every access path that fits a search', async (t) => {
  for (const search of SEARCHES) {
    const query = planQuery(`${search}&_count=15`)
    const expected = (await walked(query)).map(({ id }) => id)
    for (const accessPath of ACCESS_PATHS.filter((one) => one.fits(query))) {
      const pages = await Promise.all(
        STATS.map((stats) => buildRows(query, stats(query), accessPath)),
      )
      const found = pages.map((rows) => rows.map(({ id }) => id))
      const same = STATS.map(() => expected)
      t.same(found, same, `${accessPath.name}: ${search}`)
    }
  }
})

t.test('counts the rows exactly under any statistics', async (t) => {
  for (const search of SEARCHES.filter((one) => !one.includes('_sort') || one.endsWith('-date'))) {
    const query = planQuery(search)
    const whole = await walked({ ...query, limit: MANY })
    for (const stats of STATS) {
      const statement = countedStatement([{ query, stats: stats(query) }])
      t.equal((await countRows(statement)).count, whole.length, search)
    }
  }
})

t.test('touches few more buffers with generic plans than with custom plans', async (t) => {
  for (const [n, search] of SEARCHES.entries()) {
    const query = planQuery(search)
    const page = pageStatement([chooseAccessPath(query, realStats(query))])
    const count = countedStatement([{ query, stats: realStats(query) }])
    for (const [name, statement] of Object.entries({ page, count })) {
      if (statement.isPreparable !== true) continue
      await database.transaction(async (connection) => {
        const own = await ownBuffers(connection, statement)
        const kept = await keptBuffers(connection, `${name}-${n}`, statement)
        t.ok(Number(kept) <= own * 1.5 + 16, `${kept} beside ${own}: ${name} of ${search}`)
      })
    }
  }
})

t.test('prepares all statements except those whose index depends on values', (t) => {
  const isPreparable = (search: string) => {
    const query = planQuery(search)
    return pageStatement([chooseAccessPath(query, realStats(query))]).isPreparable
  }
  const others = [
    'Patient?name=family1 given1',
    'Patient?name:contains=amily1',
    // A sort by values over conditions whose access path depends on values.
    'Patient?family=family1&_sort=-address-city',
    'Patient?name:contains=amily1&_sort=-name',
    'Observation?value-quantity=gt150&_sort=value-quantity',
    'Observation?date=ge2021&date=lt2022-03&_sort=value-quantity',
    'Observation?subject:Patient.gender=male&_sort=-value-quantity',
  ]
  for (const search of SEARCHES.filter((one) => !one.includes('_sort=-name,'))) {
    t.equal(isPreparable(search), !others.includes(search), search)
  }
  t.end()
})

t.test('builds the same statement for types of all sizes', (t) => {
  const planText = (search: string, rows: number) => {
    const query = planQuery(search)
    return pageStatement([chooseAccessPath(query, someStatistics(query, rows))]).text
  }
  for (const search of ['value-quantity=gt190', 'date=2021', 'subject:Patient.name=family7']) {
    t.equal(planText(`Observation?${search}`, 20_000), planText(`Observation?${search}`, 900_000))
  }
  t.end()
})
