/** Which way a search takes, by what the statistics say of its keys. */
import t from 'tap'
import { parseSearch } from '../../../shared/query/search.ts'
import { Keys } from '../../../shared/store/index/keys.ts'
import { orderOf } from '../../../shared/store/search/order/order.ts'
import type { Query } from '../../../shared/store/search/plan/query.ts'
import { wayOf } from '../../../shared/store/search/plan/ways.ts'
import type { Test } from '../../../shared/store/search/tests/test.ts'

const hash = new Keys(Buffer.alloc(32))
const counts = new Map([
  [1n, 400_000],
  [2n, 1000],
  [3n, 5000],
])
const statistics = {
  matches: (key: bigint) => counts.get(key),
  startingWith: () => 0,
  rows: 5_000_000,
  rare: 100,
  knows: () => true,
  rowsOf: () => 480_000,
  isIndexed: true,
  refresh: async () => undefined,
}
const keys = (...any: bigint[]): Test => ({ kind: 'keys', any })
const identifier: Test = { kind: 'keys', any: [9n], isIdentifying: true }
const narrow: Test = { kind: 'narrow', sql: () => 'true' }
const join: Test = { kind: 'join', keys: () => 'null', check: () => 'true' }
const name: Test = { kind: 'ids', ids: () => 'select 1' }
const filter: Test = { kind: 'filter', sql: () => 'true' }
const begins = { column: 'd_lo', from: 0, to: 1 } as const
const date: Test = { kind: 'date', sql: () => 'true', within: begins, begins }
const since: Test = { kind: 'date', sql: () => 'true', within: { ...begins, to: Infinity } }

const queryOf = (tests: readonly Test[], sort = '-_lastUpdated'): Query => ({
  project: 1,
  typeNumbers: [105],
  tests,
  order: orderOf(parseSearch('Observation', `_sort=${sort}`), hash),
  after: undefined,
  limit: 21,
  offset: 0,
})

const nameOf = (query: Query, isKnown = true) =>
  wayOf(query, { statistics, rows: 480_000, limit: 21, isKnown }).way.name
const choose = (...tests: Test[]) => nameOf(queryOf(tests))

t.test('a common key is tested on a walk, a rare one found first', (t) => {
  t.equal(choose(), 'walk')
  t.equal(choose(filter), 'walk')
  t.equal(choose(keys(1n)), 'walk')
  t.equal(choose(keys(3n)), 'walk')
  t.equal(choose(keys(2n)), 'keys')
  t.equal(choose(keys(9n)), 'keys', 'a key without statistics is rare')
  t.equal(choose(keys(1n), keys(2n)), 'keys', 'the rarest decides')
  t.equal(choose(keys(1n), narrow), 'keys')
  t.end()
})

t.test('what is only known when rows are met is counted in the statement', (t) => {
  t.equal(choose(name, keys(1n)), 'ids')
  t.equal(choose(name, keys(2n)), 'keys')
  t.equal(choose(join, keys(1n)), 'join')
  t.equal(choose(join, keys(2n)), 'keys', 'a reference is only looked up for few rows')
  t.equal(choose(date, keys(3n)), 'dates')
  t.equal(choose(date, keys(2n)), 'keys')
  t.equal(nameOf(queryOf([date], 'date')), 'walk', 'in its own order a date bounds the walk')
  t.equal(choose(since), 'walk', 'what may begin at any time bounds nothing')
  t.end()
})

t.test('where nothing is known a key may be that of most rows, but for identifiers', (t) => {
  const unknown = (...tests: Test[]) => nameOf(queryOf(tests), false)
  t.equal(unknown(keys(9n)), 'walk')
  t.equal(unknown(identifier), 'keys')
  t.equal(unknown(name, keys(9n)), 'ids')
  t.equal(nameOf({ ...queryOf([keys(9n)]), typeNumbers: [105, 112] }, false), 'keys')
  t.end()
})
