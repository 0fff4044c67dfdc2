/** Searches whose statement holds several ways: by plans that are kept they find what they find by others. */
import t from 'tap'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { UCUM } from '../../../shared/fhir/ucum.ts'
import { readCursor, writeCursor } from '../../../shared/store/search/order/order.ts'
import type { SortedRow } from '../../../shared/store/search/order/position.ts'
import { countStatement, pageStatement } from '../../../shared/store/search/plan/compile.ts'
import { chooseDriver, type Driver } from '../../../shared/store/search/plan/driver.ts'
import type { Query } from '../../../shared/store/search/plan/query.ts'
import { settledBy } from '../../../shared/store/search/plan/single-way.ts'
import { openPlannedStore } from '../../fixtures/store/planned-store.ts'
import { keptBuffers, ownBuffers } from '../../fixtures/store/plans.ts'

const OBSERVATIONS = 3000
const PATIENTS = 300
const OTHERS = 12_000
/** The number of rows that both types pretend to have: only then a plan is cached. */
const ROWS = 20_000
const MANY = 5000

const planned = await openPlannedStore(t)
const { database, repository, member, project, statistics: read } = planned

const ids = Array.from({ length: PATIENTS }, (_, n) => `p${n}`)
const dayOf = (n: number, from: number) =>
  new Date(Date.UTC(from, 0, 1) + n * 86_400_000).toISOString().slice(0, 10)
await Promise.all(
  ids.map((id, n) =>
    repository.create(
      member,
      {
        resourceType: 'Patient',
        id,
        gender: n % 2 ? 'male' : 'female',
        birthDate: dayOf((n * 37) % 3000, 1990),
        name: [{ family: `family${n % 40}`, given: [`given${n % 7}`] }],
        address: [{ city: n % 4 ? 'Norwood' : 'Boston' }],
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
      effectiveDateTime: dayOf((n * 131) % 1000, 2020),
      valueQuantity: { value: n % 200, system: UCUM, code: n % 2 ? 'kg' : 'g', unit: 'x' },
    }),
  ),
)
// Rows of another type go straight into the table: among few rows the ways cost about the same.
await database.query({
  text: `insert into resource (project, type, id, ver, lu, nref, keys)
    select $1, $2, gen_random_uuid(), 1, now(), 1, array[n] from generate_series(1, $3::int) n`,
  values: [project, typeNumber('Encounter'), OTHERS],
})
await database.query({ text: 'vacuum analyze', values: [] })
await read.refresh()
const statistics = { ...read, rows: ROWS, rowsOf: () => ROWS }

const queryOf = (search: string): Query => planned.queryOf(search, ['kg', 'g'])

/** As in a type of `rows` rows. */
const driverOf = (query: Query, rows: number): Driver =>
  chooseDriver(statistics, query.tests, rows, query.limit)
const keptOf = (query: Query, rows: number): Driver =>
  settledBy(statistics, { query, driver: driverOf(query, rows) })

const rowsBy = (query: Query, driver: Driver) =>
  database.query<SortedRow>(pageStatement([{ query, driver }]))

function following(query: Query, row: SortedRow | undefined): Query {
  if (row === undefined) throw new Error('There is no row to follow')
  return { ...query, after: readCursor(query.order, writeCursor(query.order, row)) }
}

const BY_DATES = ['2021-01-05', 'lt2020-03', 'le2021', 'eb2021-02', 'sa2022-07', 'sa2020']
const BY_BIRTHS = ['1993-05', 'ge1997', 'gt1990-02', 'ap1994', 'le1990-03']
const SEARCHES = [
  ...BY_DATES.map((date) => `Observation?date=${date}`),
  ...BY_BIRTHS.map((date) => `Patient?birthdate=${date}`),
  'Observation?date=sa2020&date=lt2021-03',
  'Observation?date=2020-02-01,2021-03-01',
  'Observation?date=ge2021&_sort=date',
  'Observation?date=sa2021&_sort=_lastUpdated',
  'Observation?_sort=-date',
  'Observation?',
  'Patient?birthdate=ge1992&birthdate=le1992-02',
  'Observation?value-quantity=gt190',
  'Observation?value-quantity=lt150',
  'Observation?value-quantity=gt0.1',
  `Observation?value-quantity=gt0.1|${UCUM}|kg`,
  `Observation?value-quantity=gt190|${UCUM}|kg`,
  'Observation?value-quantity=gt150&status=final',
  'Observation?code-value-quantity=c1$gt190',
  'Observation?code-value-quantity=c1$gt10',
  'Observation?combo-code-value-quantity=s|c2$lt100',
  'Patient?address-city=Norwood',
  'Patient?family=family1&given=given1',
  'Patient?family=family1&birthdate=ge1991&birthdate=lt1996&gender=female',
  'Patient?_sort=name',
  'Patient?gender=female&_sort=name',
  'Patient?gender=female&_sort=-name,birthdate',
  'Observation?subject=Patient/p7&_sort=code,-date',
  'Observation?subject:Patient.name=family7',
  'Observation?subject:Patient.gender=male&status=final',
  'Observation?subject:Patient.birthdate=lt1991',
  'Patient?_has:Observation:subject:code=c1',
  'Patient?_has:Observation:subject:value-quantity=gt195',
  'Patient?_has:Observation:subject:code=c1&_sort=_lastUpdated',
  'Observation?code:text=hei',
]

const isKept = ({ kind, isKept }: Driver) => kind === 'settled' || isKept === true

t.test('what is counted by keys is planned once, and looked up in their index once', async (t) => {
  const query = queryOf('Observation?code=c1&status=final&date=ge2021')
  const statement = countStatement(statistics, [query], undefined)
  t.ok(statement.isKept)
  t.equal(statement.text.match(/r\.keys @>/g)?.length, 1)
  await database.transaction(async (connection) => {
    const own = await ownBuffers(connection, statement)
    const kept = await keptBuffers(connection, 'count', statement)
    t.ok(kept !== undefined && kept <= own * 1.5, `${kept} beside ${own}`)
  })
  const [row] = await database.query<{ count: number }>(statement)
  const all = await rowsBy({ ...query, limit: ROWS }, { kind: 'keys' })
  t.equal(row?.count, all.length)
  t.notOk(countStatement(statistics, [queryOf('Observation?date=2021')], undefined).isKept)
})

t.test('their plans are made once and touch hardly more than those made for values', async (t) => {
  for (const [n, search] of SEARCHES.entries()) {
    const query = queryOf(search)
    const driver = keptOf(query, ROWS)
    await database.transaction(async (connection) => {
      const own = await ownBuffers(
        connection,
        pageStatement([{ query, driver: driverOf(query, ROWS) }]),
      )
      const kept = await keptBuffers(connection, `${n}`, pageStatement([{ query, driver }]))
      // So many rows may be looked at to know whether there are more.
      const counted = driver.kind === 'dates' ? driver.few : 0
      t.ok(Number(kept) <= own * 1.5 + 16 + counted, `${kept} beside ${own}: ${search}`)
    })
  }
})

t.test('they find the same in the same order, page by page', async (t) => {
  // In a type of few rows all ids are read, else so many at most.
  for (const rows of [OBSERVATIONS, ROWS]) {
    for (const search of SEARCHES) {
      const query = queryOf(`${search}&_count=15`)
      const whole = await rowsBy({ ...query, limit: MANY }, driverOf(query, rows))
      t.ok(whole.length > 1, search)
      const ids = whole.map(({ id }) => id)
      const kept = keptOf(query, rows)
      t.ok(isKept(kept), search)
      const idsOf = async (one: Query) => (await rowsBy(one, kept)).map(({ id }) => id)
      t.same(await idsOf({ ...query, limit: MANY }), ids, search)
      t.same(await idsOf({ ...query, offset: 3 }), ids.slice(3, 3 + 16), search)
      const at = Math.floor(ids.length / 3)
      t.same(await idsOf(following(query, whole[at])), ids.slice(at + 1, at + 17), search)
    }
  }
})

t.test('dates are found by each of the ways that their statement holds', async (t) => {
  const query = queryOf('Observation?date=sa2020&date=lt2022&_count=15')
  const ids = (await rowsBy({ ...query, limit: MANY }, { kind: 'order' })).map(({ id }) => id)
  const second = following(query, (await rowsBy(query, { kind: 'order' }))[14])
  for (const [few, cap] of [
    [MANY, MANY],
    [1, MANY],
    [1, 1],
  ] as const) {
    const driver = { kind: 'dates', few, cap, isKept: true } as const
    t.same(
      (await rowsBy(query, driver)).map(({ id }) => id),
      ids.slice(0, 16),
    )
    t.same(
      (await rowsBy(second, driver)).map(({ id }) => id),
      ids.slice(15, 31),
    )
  }
})

t.test('numbers in their words are rounded, so that few statements serve all sizes', async (t) => {
  const textOf = (search: string, rows: number) =>
    pageStatement([{ query: queryOf(search), driver: keptOf(queryOf(search), rows) }]).text
  const search = 'Observation?value-quantity=gt190'
  t.equal(textOf(search, 20_000), textOf('Observation?value-quantity=gt5', 22_000))
  t.not(textOf(search, 20_000), textOf(search, 200_000))
})

t.test('what is found by other indexes for other values is planned for them', async (t) => {
  const isKeptAt = (search: string) => isKept(keptOf(queryOf(search), ROWS))
  t.notOk(isKeptAt('Patient?name=family1 given1'), 'several words')
  t.notOk(isKeptAt('Patient?name:contains=amily1'))
  t.notOk(isKeptAt('Observation?date=2021&status=final'), 'a date beside common keys')
  t.notOk(isKeptAt('Observation?value-quantity=gt5&date=2021'))
  t.notOk(isKeptAt('Observation?subject:Patient.name:contains=amily1'))
  t.notOk(isKeptAt('Observation?date=2021&_sort=code'))
  t.notOk(isKeptAt('Observation?date=ne2021'))
  t.notOk(isKeptAt('Encounter?date=ge2021'), 'a period may have begun at any time')
})
