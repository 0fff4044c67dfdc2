/** Searches with one way to their rows: they find what the other ways find, by a plan that is kept. */
import t from 'tap'
import { writeFeatures } from '../../../shared/api/write-features.ts'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { createLogger } from '../../../shared/log.ts'
import { openDatabase } from '../../../shared/platform/postgres/database.ts'
import { parseSearch } from '../../../shared/query/search.ts'
import { keysLiteral } from '../../../shared/store/index/keys.ts'
import { openRepository } from '../../../shared/store/open-repository.ts'
import { readCursor, writeCursor } from '../../../shared/store/search/order/order.ts'
import type { SortedRow } from '../../../shared/store/search/order/position.ts'
import { pageStatement } from '../../../shared/store/search/plan/compile.ts'
import type { Driver } from '../../../shared/store/search/plan/driver.ts'
import type { Query } from '../../../shared/store/search/plan/query.ts'
import { settledBy } from '../../../shared/store/search/plan/single-way.ts'
import { stringTest } from '../../../shared/store/search/tests/strings.ts'
import type { Test } from '../../../shared/store/search/tests/test.ts'
import { sightOf } from '../../../shared/store/search/tests/visible-rows.ts'
import { until } from '../../fixtures/botica.ts'
import { openPlannedStore } from '../../fixtures/store/planned-store.ts'
import { keptBuffers, ownBuffers } from '../../fixtures/store/plans.ts'
import { databaseUrl, statementsOf } from '../../fixtures/store/store.ts'

const ROWS = 20_000
const PATIENTS = 100

const { database, member, project, keys, statistics, queryOf } = await openPlannedStore(t)

const [observation, patient] = [typeNumber('Observation'), typeNumber('Patient')]
const subject = keys.param(project, 'Observation', 'subject')
const status = keys.param(project, 'Observation', 'status')
const subjects = Array.from({ length: PATIENTS }, (_, n) =>
  keys.reference(subject, keys.target(project, `Patient/p${n}`)),
)
const [final, amended] = ['final', 'amended'].map((code) => keys.token(status, undefined, code))
await database.query({
  text: `insert into resource (project, type, id, ver, lu, d_lo, d_hi, nref, keys)
    select $1, $2, gen_random_uuid(), 1, timestamptz '2024-01-01' + n / 3 * interval '1 second', at, at, 2,
      array[n, ($3::bigint[])[1 + n % $4], case n % 7 when 0 then $5::bigint else $6::bigint end]
    from generate_series(1, $7::int) n,
      lateral (select case when n % 11 > 0 then timestamptz '2020-01-01' + n * 7919 % 20000 * interval '1 hour' end) d(at)`,
  values: [project, observation, keysLiteral(subjects), PATIENTS, amended, final, ROWS],
})
await database.query({
  text: `insert into resource (project, type, id, ver, lu, nref, keys)
    select $1, $2, gen_random_uuid(), 1, timestamptz '2024-01-01' + n * interval '1 second', 1, array[-n]
    from generate_series(1, $3::int) n`,
  values: [project, patient, PATIENTS * 10],
})
for (const [name, words] of Object.entries({ family: 40, given: 30 })) {
  await database.query({
    text: `insert into idx_string (project, type, p, v, id)
      select project, type, $1, $2 || (-keys[1] % $3::int), id from resource where type = $4`,
    values: [keys.param(project, 'Patient', name), name, words, patient],
  })
}
await database.query({
  text: `insert into version (project, type, id, ver, lu, content, meta_at, meta_ext)
    select project, type, id, ver, lu, '{}', 1, '' from resource where project = $1`,
  values: [project],
})
await database.query({ text: 'vacuum analyze resource, version, idx_string', values: [] })
await statistics.refresh()

const BY_KEYS: Driver = { kind: 'keys' }
const WALK: Driver = { kind: 'walk', cap: 2500 }
const BY_IDS: Driver = { kind: 'ids', few: undefined, read: undefined, cap: undefined }

const holds = (test: Test, key: bigint | undefined) =>
  test.kind === 'keys' && key !== undefined && test.any.includes(key)

const ways = (query: Query): readonly [Driver, Driver] => {
  const isCommon = query.tests.length === 1 && query.tests.some((test) => holds(test, final))
  const driver = isCommon ? WALK : query.typeNumbers[0] === observation ? BY_KEYS : BY_IDS
  return [driver, settledBy(statistics, { query, driver })]
}

/** Without a walk, which finds the same in another way. */
const firstWay = (query: Query): Driver => {
  const [driver] = ways(query)
  return driver.kind === 'walk' ? BY_KEYS : driver
}

function following(query: Query, row: SortedRow | undefined): Query {
  if (row === undefined) throw new Error('There is no row to follow')
  return { ...query, after: readCursor(query.order, writeCursor(query.order, row)) }
}

const rowsBy = (query: Query, driver: Driver) =>
  database.query<SortedRow>(pageStatement([{ query, driver }]))

const OBSERVATIONS = [
  'subject=Patient/p7',
  'subject=Patient/p7,Patient/p8',
  'subject=Patient/p7&status=amended',
  'subject=Patient/p7&date=ge2021',
  'subject=Patient/p7&date=ge2021&date=lt2022-03',
]
const COMMON = ['-_lastUpdated', '_lastUpdated', 'date', '-date'].map(
  (sort) => `Observation?status=final&_sort=${sort}&_count=15`,
)
const PATIENT_NAMES = ['family=family7', 'family=family7,family9', 'family=family7&given=given7']

t.test('a settled search finds what others find, in the same order, page by page', async (t) => {
  const searches = [
    ...['-_lastUpdated', '_lastUpdated', 'date', '-date', '_id'].flatMap((sort) =>
      OBSERVATIONS.map((search) => `Observation?${search}&_sort=${sort}&_count=15`),
    ),
    ...COMMON,
    ...PATIENT_NAMES.map((search) => `Patient?${search}&_count=15`),
  ]
  for (const search of searches) {
    const first = queryOf(search)
    const whole = await rowsBy({ ...first, limit: 1000 }, firstWay(first))
    t.ok(whole.length > 1, search)
    const ids = whole.map(({ id }) => id)
    const idsOf = async (query: Query) => {
      const [, settled] = ways(query)
      t.equal(settled.kind, 'settled', search)
      return (await rowsBy(query, settled)).map(({ id }) => id)
    }
    t.same(await idsOf({ ...first, limit: 1000 }), ids, search)
    t.same(await idsOf({ ...first, offset: 3 }), ids.slice(3, 3 + 16), search)
    const at = Math.floor(ids.length / 2)
    t.same(await idsOf(following(first, whole[at])), ids.slice(at + 1, at + 17), search)
  }
})

t.test('so does one of several types or parameters at once', async (t) => {
  const byKeys = queryOf(`Observation?${OBSERVATIONS[0]}`)
  const types = { ...byKeys, typeNumbers: [observation, patient] }
  const settled = { kind: 'settled' } as const
  t.same(await rowsBy(types, settled), await rowsBy(byKeys, BY_KEYS))
  const scene = sightOf({ keys }, member, 'Patient', 'search')
  if (scene === undefined) throw new Error('Patients are not in sight')
  const ps = ['family', 'given'].map((name) => keys.param(project, 'Patient', name))
  const condition = {
    code: 'name',
    type: 'string',
    modifier: undefined,
    values: ['given7'],
  } as const
  const names = { ...queryOf('Patient?'), tests: [stringTest(scene, ps, condition)] }
  t.same(await rowsBy(names, settled), await rowsBy(queryOf('Patient?given=given7'), BY_IDS))
})

t.test('its plan is made once and touches no more than one made for its values', async (t) => {
  const searches = [`Observation?${OBSERVATIONS[2]}`, `Patient?${PATIENT_NAMES[0]}`, ...COMMON]
  const first = searches.map((search) => queryOf(search))
  const later = first.slice(2).map(async (query) => {
    const rows = await rowsBy({ ...query, limit: 1000 }, BY_KEYS)
    return following(query, rows[500])
  })
  for (const [n, query] of [...first, ...(await Promise.all(later))].entries()) {
    const [other, settled] = ways(query)
    const statement = pageStatement([{ query, driver: settled }])
    const custom = pageStatement([{ query, driver: other }])
    await database.transaction(async (connection) => {
      const kept = (await keptBuffers(connection, `${n}`, statement)) ?? Number.NaN
      const own = await ownBuffers(connection, custom)
      t.ok(kept <= own * 1.5, `${kept} beside ${own}: ${statement.text}`)
    })
  }
})

t.test('a shape that becomes common is kept, after however many others', async (t) => {
  const one = openDatabase(
    { databaseUrl: databaseUrl(), databasePool: 1 },
    createLogger('silent', 'script'),
  )
  t.teardown(() => one.close())
  const repository = await openRepository(one, writeFeatures())
  const search = (parameters: string) => () =>
    repository.search(member, parseSearch('Observation', parameters))
  /** The last prepared first. */
  const kept = async () => {
    const rows = await one.query<{ text: string; plans: number }>({
      text: `select statement as text, generic_plans::int as plans from pg_prepared_statements
        where statement like '%from version c%' order by prepare_time desc`,
      values: [],
    })
    t.ok(rows.reduce((sum, { text }) => sum + text.length, 0) <= 120_000)
    return rows
  }
  const dates = Array.from({ length: 18 }, (_, n) => `date=ge${1990 + n}`)
  const rare = ['-_lastUpdated', '_lastUpdated', 'date', '-date', '_id'].flatMap((sort) =>
    dates.map((_, n) => `subject=Patient/p7&${dates.slice(n).join('&')}&_sort=${sort}`),
  )
  const common = `subject=Patient/p7&status=amended&${dates.join('&')}`
  // Beside the first search the statistics are read, once.
  await until(async () => (await statementsOf(one, search('subject=Patient/p8'))) === 1, 60_000)
  for (const parameters of rare) {
    for (let i = 0; i < 8; i++) t.equal(await statementsOf(one, search(parameters)), 1)
  }
  const full = await kept()
  t.ok(full.length < rare.length, 'there is no room for all')
  for (let i = 0; i < 20; i++) t.equal(await statementsOf(one, search(common)), 1)
  const [last] = await kept()
  t.ok((last?.plans ?? 0) > 0, 'one plan serves all')
  t.notOk(full.some(({ text }) => text === last?.text))
})

t.test('what more than one way may lead to is planned for its values', async (t) => {
  const settledKind = (search: string, driver: Driver, rows = ROWS) =>
    settledBy({ ...statistics, rows }, { query: queryOf(search), driver }).kind
  const settled = `Observation?${OBSERVATIONS[0]}`
  t.equal(settledKind(settled, BY_KEYS), 'settled')
  t.equal(settledKind(settled, BY_KEYS, 100), 'keys', 'while there are few rows')
  t.equal(settledKind(`${settled}&date=2021`, WALK), 'walk', 'with a bound on the order')
  t.equal(settledKind(`${settled}&_sort=code`, BY_KEYS), 'keys', 'in the order of values')
  t.equal(settledKind(`${settled}&subject:Patient.gender=male`, BY_KEYS), 'keys', 'with a chain')
  t.equal(settledKind('Observation?date=2021', BY_KEYS), 'keys', 'by a date alone')
  t.equal(settledKind('Patient?family=family', BY_IDS), 'ids', 'a text that many begin with')
  t.equal(settledKind('Patient?family=family7 jr', BY_IDS), 'ids', 'several words')
  t.equal(settledKind('Patient?family:contains=ily7', BY_IDS), 'ids')
  t.equal(settledKind('Patient?family:exact=family7', BY_KEYS), 'settled')
})
