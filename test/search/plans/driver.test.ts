import t from 'tap'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { parseSearch } from '../../../shared/query/search.ts'
import { Keys } from '../../../shared/store/index/keys.ts'
import { orderOf } from '../../../shared/store/search/order/order.ts'
import type { SortedRow } from '../../../shared/store/search/order/position.ts'
import { pageStatement } from '../../../shared/store/search/plan/compile.ts'
import { chooseDriver, type Driver } from '../../../shared/store/search/plan/driver.ts'
import type { Query } from '../../../shared/store/search/plan/query.ts'
import { openStatistics } from '../../../shared/store/search/plan/statistics.ts'
import { checkSortable } from '../../../shared/store/search/plan/total.ts'
import { testOf } from '../../../shared/store/search/tests/conditions.ts'
import type { Test } from '../../../shared/store/search/tests/test.ts'
import { sightOf } from '../../../shared/store/search/tests/visible-rows.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

const { database, repository, aMember } = await openTestStore(t)
const [salt] = await database.query<{ salt: Buffer }>({
  text: 'select salt from search_key_salt',
  values: [],
})
const hash = new Keys(salt?.salt ?? Buffer.alloc(0))
const member = await aMember()
const project = member.project.number
await Promise.all(
  Array.from({ length: 40 }, (_, i) =>
    repository.create(member, {
      resourceType: 'Observation',
      status: i % 4 ? 'final' : 'amended',
      code: { text: 'x' },
      valueQuantity: { value: i },
      ...(i % 3 ? { effectiveDateTime: `2024-01-${String((i % 28) + 1).padStart(2, '0')}` } : {}),
    }),
  ),
)

const scene = sightOf({ keys: hash }, member, 'Patient', 'search')
if (scene === undefined) throw new Error('Patients are not in sight')
const keys = (any: bigint[]): Test => ({ kind: 'keys', any })
const narrow: Test = { kind: 'narrow', sql: () => 'true' }
const join: Test = { kind: 'join', keys: () => 'null', check: () => 'true' }
const counts = new Map([
  [1n, 400_000],
  [2n, 1000],
  [3n, 5000],
])
const statistics = {
  matches: (key: bigint) => counts.get(key),
  startingWith: (text: string) => (text === 'smith' ? 2000 : 0),
}

t.test('a common key is tested on a walk, a rare one found first', async (t) => {
  const choose = (tests: Test[]) => chooseDriver(statistics, tests, 480_000, 21).kind
  t.equal(choose([]), 'order')
  t.equal(choose([keys([1n])]), 'walk')
  t.equal(choose([keys([3n])]), 'walk')
  t.equal(choose([keys([2n])]), 'keys')
  t.equal(choose([keys([9n])]), 'keys', 'a key without statistics is rare')
  t.equal(choose([keys([1n]), keys([2n])]), 'keys', 'the rarest decides')
  t.equal(choose([keys([1n]), narrow]), 'keys')
  t.equal(choose([keys([1n]), join]), 'join')
  t.equal(choose([keys([2n]), join]), 'keys', 'a reference is only looked up for few rows')
  t.equal(choose([{ kind: 'filter', sql: () => 'true' }]), 'order')
})

t.test('a join that very many rows fulfil is tried on a walk', async (t) => {
  const patient = (criterion: string) => {
    const { conditions } = parseSearch('Patient', `_has:Observation:patient:${criterion}`)
    const [condition] = conditions
    if (condition === undefined) throw new Error('There is no condition')
    return testOf(scene, condition)
  }
  const token = hash.token(hash.param(project, 'Observation', 'code'), undefined, 'x')
  const choose = (matches: number, test: Test) =>
    chooseDriver(
      { ...statistics, matches: (key) => (key === token ? matches : undefined) },
      [test],
      20_000,
      21,
    )
  t.same(choose(100, patient('code=x')), { kind: 'join' })
  t.same(choose(2400, patient('code=x')), { kind: 'walk', cap: 300 })
  t.same(choose(1_000_000, patient('code=x')), { kind: 'walk', cap: 500 })
  t.same(choose(1_000_000, patient('value-quantity=3')), { kind: 'join' }, 'nothing is known')
  const text = testOf(scene, {
    code: 'gender',
    type: 'token',
    modifier: 'text',
    values: ['married'],
  })
  t.same(choose(0, text), { kind: 'walk', cap: 1000 })
})

t.test('the more rows a type has, the more ids of a side table are few', async (t) => {
  const choose = (rows: number, limit: number) =>
    chooseDriver(statistics, [{ kind: 'ids', ids: () => '' }], rows, limit)
  t.same(choose(5000, 21), { kind: 'ids', few: 324, read: undefined, cap: undefined })
  t.same(choose(18_000, 21), { kind: 'ids', few: 615, read: 3075, cap: 2460 })
  t.same(choose(10_000_000, 101), { kind: 'ids', few: 5000, read: 25_000, cap: 20_000 })
})

t.test('a text that is rare needs no other way to few rows', async (t) => {
  const few = (family: string) => {
    const [condition] = parseSearch('Patient', `family=${family}`).conditions
    if (condition === undefined) throw new Error('There is no condition')
    const driver = chooseDriver(statistics, [testOf(scene, condition)], 3000, 21)
    return driver.kind === 'ids' ? driver.few : 0
  }
  t.equal(few('jones'), undefined)
  t.equal(few('smith'), 251)
  t.equal(few('smith,jones'), 251)
  t.equal(few('smith jones'), undefined, 'one word of a value is enough')
})

t.test(
  'a walk goes as far as what all matches cost, and to the end where they cost more',
  async (t) => {
    const walk = (limit: number, ...all: bigint[]) =>
      chooseDriver(
        statistics,
        all.map((key) => keys([key])),
        480_000,
        limit,
      )
    t.match(walk(21, 1n), { kind: 'walk', isEndless: true })
    t.strictSame(walk(21, 3n), { kind: 'walk', cap: 20_000 })
    t.strictSame(walk(21, 1n, 3n), { kind: 'walk', cap: 16_667 })
  },
)

const DRIVERS: readonly Driver[] = [
  { kind: 'keys' },
  { kind: 'order' },
  { kind: 'walk', cap: 2000 },
  { kind: 'walk', cap: 3 },
]

for (const sort of ['-_lastUpdated', '_lastUpdated', '_id', '-_id', 'date', '-date']) {
  t.test(`every driver finds the same rows sorted by ${sort}`, async (t) => {
    const p = hash.param(project, 'Observation', 'status')
    const query: Query = {
      project,
      typeNumbers: [typeNumber('Observation')],
      tests: [keys([hash.token(p, undefined, 'final')])],
      order: orderOf(parseSearch('Observation', `_sort=${sort}`), hash),
      after: undefined,
      limit: 12,
      offset: 0,
    }
    const pages = await Promise.all(
      DRIVERS.map((driver) => database.query<SortedRow>(pageStatement([{ query, driver }]))),
    )
    const [first = [], ...others] = pages.map((rows) => rows.map(({ id }) => id))
    t.equal(first.length, 12)
    for (const [i, ids] of others.entries()) t.same(ids, first, JSON.stringify(DRIVERS[i + 1]))
  })
}

const ID_DRIVERS: readonly Driver[] = [
  { kind: 'ids', few: undefined, read: undefined, cap: undefined },
  { kind: 'ids', few: 2000, read: undefined, cap: undefined },
  { kind: 'ids', few: 5, read: undefined, cap: undefined },
  { kind: 'ids', few: 2000, read: 6000, cap: 2000 },
  { kind: 'ids', few: 5, read: 6000, cap: 2000 },
  { kind: 'ids', few: 5, read: 6, cap: 2000 },
  { kind: 'ids', few: 5, read: 6000, cap: 3 },
  { kind: 'ids', few: 5, read: 6, cap: 3 },
  { kind: 'keys' },
]

for (const sort of ['-_lastUpdated', '_id', 'date', '-date']) {
  t.test(`few and many ids of a side table give the same rows sorted by ${sort}`, async (t) => {
    const p = hash.param(project, 'Observation', 'value-quantity')
    const within = (bounds: string): Test => ({
      kind: 'ids',
      ids: (bind) => `select g.id from idx_range g where g.project = ${bind(project, 'int')}
        and g.p = ${bind(p, 'bigint')} and ${bounds}`,
    })
    const query: Query = {
      project,
      typeNumbers: [typeNumber('Observation')],
      tests: [within('g.lo > 7'), within('g.hi < 35')],
      order: orderOf(parseSearch('Observation', `_sort=${sort}`), hash),
      after: undefined,
      limit: 12,
      offset: 0,
    }
    const pages = await Promise.all(
      ID_DRIVERS.map((driver) => database.query<SortedRow>(pageStatement([{ query, driver }]))),
    )
    const [first = [], ...others] = pages.map((rows) => rows.map(({ id }) => id))
    t.equal(first.length, 12)
    for (const [i, found] of others.entries()) {
      t.same(found, first, JSON.stringify(ID_DRIVERS[i + 1]))
    }
  })
}

t.test('a rare key keeps a sort of its rows allowed, whatever the type has', async (t) => {
  const huge = {
    matches: () => undefined,
    startingWith: () => 0,
    rows: 5_000_000,
    rare: 100,
    knows: () => true,
    rowsOf: () => 5_000_000,
    refresh: async () => undefined,
  }
  const query = (tests: Test[]): Query => ({
    project,
    typeNumbers: [typeNumber('Observation')],
    tests,
    order: orderOf(parseSearch('Observation', '_sort=code,-date'), hash),
    after: undefined,
    limit: 21,
    offset: 0,
  })
  t.doesNotThrow(() => checkSortable(huge, query([keys([9n])])))
  t.doesNotThrow(() => checkSortable(huge, query([keys([9n]), keys([1n])])))
  t.throws(() => checkSortable(huge, query([])), { message: /too many to sort/ })
  t.throws(() => checkSortable({ ...huge, rare: undefined }, query([keys([9n])])), {
    message: /too many to sort/,
  })
})

t.test('statistics know the keys of many rows', async (t) => {
  await database.query({ text: 'analyze resource', values: [] })
  const known = openStatistics(database)
  await known.refresh()
  const p = hash.param(project, 'Observation', 'status')
  const matches = known.matches(hash.token(p, undefined, 'final'))
  t.ok(matches === undefined || matches > 0)
  t.ok(known.rowsOf(project, typeNumber('Observation')) > 0)
})
