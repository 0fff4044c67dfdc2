/** Imports the planner: the pages of searches whose values thousands of rows share, as in a large Project. */
import t from 'tap'
import type { Resource } from '../../../../shared/fhir/resource.ts'
import { chooseAccessPath } from '../../../../shared/search/planner/access-paths.ts'
import { keysLookedUp } from '../../../../shared/search/planner/join-path.ts'
import {
  countedStatement,
  pageStatement,
} from '../../../../shared/search/planner/page-statement.ts'
import type { PlannerStats, Query, SortedRow } from '../../../../shared/search/predicates/query.ts'
import { countNow } from '../../../../shared/store/rows/counts.ts'
import { until } from '../../../fixtures/botica.ts'
import { openPlannedStore } from './planned-store.ts'
import { ownBuffers } from './plans.ts'

const PATIENTS = 1800
const OBSERVATIONS = 3 * PATIENTS
const BUSY_DAY = '2024-03-01'
const SIDE_BY_SIDE = 200
/** One Observation in this many has no value. */
const WITHOUT_VALUE = 900
const PATIENCE_MS = 60_000

const { database, repository, member, statistics, queryOf } = await openPlannedStore(t)

async function createAll(resources: readonly Resource[]): Promise<void> {
  for (let from = 0; from < resources.length; from += SIDE_BY_SIDE) {
    const some = resources.slice(from, from + SIDE_BY_SIDE)
    await Promise.all(some.map((one) => repository.create(member, one, { keepId: true })))
  }
}
const isShared = (patient: number) => patient % 3 > 0
await createAll(
  Array.from({ length: PATIENTS }, (_, n) => ({
    resourceType: 'Patient',
    id: `p${n}`,
    name: [{ family: isShared(n) ? 'Shared' : `Own${n}` }],
  })),
)
await createAll(
  Array.from({ length: OBSERVATIONS }, (_, n) => ({
    resourceType: 'Observation',
    id: `o${n}`,
    status: 'final',
    code: { coding: [{ system: 's', code: `c${n % 10}` }] },
    subject: { reference: `Patient/p${n % PATIENTS}` },
    effectiveDateTime: n % 3 === 0 ? BUSY_DAY : `20${10 + (n % 14)}-01-${10 + (n % 18)}`,
    ...(n % WITHOUT_VALUE === 0 ? {} : { valueQuantity: { value: n, code: 'kg' } }),
  })),
)
// While a transaction of another test runs, VACUUM leaves rows that an index alone cannot answer for.
await until(async () => {
  await database.query({ text: 'vacuum analyze', values: [] })
  const [table] = await database.query<{ isWhole: boolean }>({
    text: `select relallvisible >= relpages as "isWhole" from pg_class where oid = 'resource'::regclass`,
    values: [],
  })
  return table?.isWhole === true
}, PATIENCE_MS)
await statistics.refresh()

/** Simulates a Project with this many rows of each type, which hold the keys as often. */
const ROWS = 80_000
const stats = (query: Query, rows = ROWS): PlannerStats => ({
  statistics: {
    ...statistics,
    typeRows: () => rows,
    matches: (key) => (statistics.matches(key) ?? 0) * (rows / OBSERVATIONS),
    isIndexed: true,
  },
  rows,
  limit: query.limit,
  isKnown: true,
})
const page = (query: Query) => pageStatement([chooseAccessPath(query, stats(query))])
const count = (query: Query) => countedStatement([{ query, stats: stats(query) }])
const find = async (query: Query) => {
  const rows = await database.query<SortedRow>(page(query))
  return rows.map(({ content }) => Number((JSON.parse(content ?? '') as Resource).id?.slice(1)))
}
const numbersTo = (end: number) => Array.from({ length: end }, (_, n) => n)

interface Case {
  readonly search: string
  readonly isFound: (n: number) => boolean
  readonly of: number
  /** Most pages that the statement of a page touches. */
  readonly most: number
}

const PAGES: readonly Case[] = [
  {
    search: 'Observation?patient.family=shared&code=s|c1',
    isFound: (n) => isShared(n) && n % 10 === 1,
    of: OBSERVATIONS,
    most: 1000,
  },
  {
    search: 'Patient?_has:Observation:patient:date=2024-03-01',
    isFound: (n) => !isShared(n),
    of: PATIENTS,
    most: 1000,
  },
  {
    search: 'Observation?code=s|c0&_sort=-value-quantity',
    isFound: (n) => n % 10 === 0,
    of: OBSERVATIONS,
    most: 1000,
  },
  {
    // The day holds fewer rows than the code.
    search: 'Observation?code=s|c4&date=2014-01-14&_sort=value-quantity',
    isFound: (n) => n % 630 === 4,
    of: OBSERVATIONS,
    most: 250,
  },
  {
    // The rows before the range, which the order begins with, are hundreds.
    search: 'Observation?date=ge2014-06&_sort=date&code=s|c5',
    isFound: (n) => n % 10 === 5 && (n % 3 === 0 || n % 14 >= 5),
    of: OBSERVATIONS,
    most: 500,
  },
  {
    search: 'Observation?code=s|c1&_sort=-_lastUpdated,_id',
    isFound: (n) => n % 10 === 1,
    of: OBSERVATIONS,
    most: 1000,
  },
]

for (const { search, isFound, of, most } of PAGES) {
  t.test(`reads few pages for ${search}`, async (t) => {
    const all = await find(queryOf(`${search}&_count=1000`))
    t.same(
      all.toSorted((a, b) => a - b),
      numbersTo(of).filter(isFound),
    )
    const query = queryOf(`${search}&_count=10`)
    t.same(await find(query), all.slice(0, 11))
    const pages = await ownBuffers(database, page(query))
    t.ok(pages <= most, `${pages} pages`)
  })
}

/** The number of rows that the statement of a page walks at most is its largest number. */
function longestWalk(search: string, rows: number): number {
  const query = queryOf(search)
  const plan = chooseAccessPath(query, stats(query, rows))
  const numbers = pageStatement([plan]).values?.filter((value) => typeof value === 'number') ?? []
  return Math.max(...numbers)
}

t.test('walks further if more matches would have to be fetched after it', (t) => {
  const walks = [80_000, 4_000_000].map((rows) =>
    longestWalk('Observation?code=s|c1&date=ne2020', rows),
  )
  t.same(walks, [20_000, 400_000])
  t.equal(longestWalk(`Observation?code=s|c1&date=${BUSY_DAY}`, 4_000_000), 20_000, 'a range')
  t.end()
})

t.test('looks up more keys of a chain if a walk would be long', (t) => {
  const lookups = (search: string, rows: number) => {
    const query = queryOf(search)
    const [first] = query.predicates.filter(({ kind }) => kind === 'join')
    return first?.kind === 'join' ? keysLookedUp(query, first, stats(query, rows)) : 0
  }
  const chain = 'Observation?patient.family=shared'
  t.equal(lookups(chain, 10_000), 200)
  const alone = lookups(chain, 1_000_000)
  t.ok(alone > 200, `${alone} keys`)
  t.ok(lookups(`${chain}&code=s|c1`, 1_000_000) > 2 * alone, 'with a code')
  t.equal(lookups(`${chain}&code=s|c1`, 1_000_000_000), 5000)
  t.end()
})

t.test('sorts resources without a value first when descending', async (t) => {
  const found = await find(queryOf('Observation?_sort=-value-quantity&_count=10'))
  const without = numbersTo(OBSERVATIONS).filter((n) => n % WITHOUT_VALUE === 0)
  t.same(
    found.slice(0, without.length).toSorted((a, b) => a - b),
    without,
  )
  t.same(found.slice(without.length), [5399, 5398, 5397, 5396, 5395])
})

const TOTALS: readonly Case[] = [
  {
    search: 'Observation?code:not=s|c1',
    isFound: (n) => n % 10 !== 1,
    of: OBSERVATIONS,
    most: 2000,
  },
  {
    search: 'Observation?date=ge2013',
    isFound: (n) => n % 3 === 0 || n % 14 >= 3,
    of: OBSERVATIONS,
    most: 1000,
  },
]

for (const { search, isFound, of, most } of TOTALS) {
  t.test(`reads few pages to count ${search}`, async (t) => {
    const query = queryOf(search)
    const { count: total } = await countNow(database, count(query))
    t.equal(total, numbersTo(of).filter(isFound).length)
    const pages = await ownBuffers(database, count(query))
    t.ok(pages <= most, `${pages} pages`)
  })
}

const CHAIN = 'Observation?patient.family=shared'
/** Each of the shared patients has three Observations, so any sample leads to the same total. */
const CHAINED = (PATIENTS / 3) * 2 * 3

t.test(
  'counts the matches of a chain by its targets, or by a walk if these are many',
  async (t) => {
    const query = queryOf(CHAIN)
    for (const rows of [ROWS, OBSERVATIONS / 10]) {
      const statement = countedStatement([{ query, stats: { ...stats(query), rows } }])
      t.match(await countNow(database, statement), { count: CHAINED, isEstimate: false })
    }
  },
)

t.test('estimates the matches of a chain by a sample of its targets beyond a bound', async (t) => {
  const query = queryOf(CHAIN)
  const sampled = countedStatement([{ query, stats: stats(query) }], { work: 1 })
  t.match(await countNow(database, sampled), { count: CHAINED, isEstimate: true })
  const own = await ownBuffers(database, sampled)
  const all = await ownBuffers(database, count(query))
  t.ok(own < all / 2, `${own} pages, not ${all}`)
})

t.test('estimates no more matches than there are rows', async (t) => {
  const query = queryOf(CHAIN)
  const fewer = { ...stats(query), rows: CHAINED - 1 }
  const { count: total } = await countNow(
    database,
    countedStatement([{ query, stats: fewer }], { work: 1 }),
  )
  t.equal(total, CHAINED - 1)
})

t.test('counts all matches of a chain if its targets are few', async (t) => {
  const query = queryOf('Observation?patient.family=own1797')
  const sampled = countedStatement([{ query, stats: stats(query) }], { work: 1 })
  t.match(await countNow(database, sampled), { count: 3, isEstimate: false })
})

t.test('counts the changes since a time in the order of their index', async (t) => {
  const query = queryOf('Observation?_lastUpdated=gt2001-01-01')
  t.equal((await countNow(database, count(query))).count, OBSERVATIONS)
  const { text, values } = count(query)
  const plan = await database.query({ text: `explain ${text}`, values })
  t.notMatch(JSON.stringify(plan), /Sort/)
})
