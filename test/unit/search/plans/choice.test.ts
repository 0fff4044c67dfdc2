/** The choice of access paths by the statistics of keys. */
import t from 'tap'
import { parseSearch } from '../../../../shared/search/language/search.ts'
import { chooseAccessPath } from '../../../../shared/search/planner/access-paths.ts'
import { resolveOrder } from '../../../../shared/search/predicates/order.ts'
import type { Predicate } from '../../../../shared/search/predicates/predicate.ts'
import type { Query } from '../../../../shared/search/predicates/query.ts'
import { Keys } from '../../../../shared/store/index/keys.ts'

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
  typeRows: () => 480_000,
  isIndexed: true,
  refresh: async () => undefined,
}
const keys = (...any: bigint[]): Predicate => ({ kind: 'keys', any })
const identifier: Predicate = { kind: 'keys', any: [9n], isIdentifying: true }
const narrow: Predicate = { kind: 'narrow', sql: () => 'true' }
const join: Predicate = { kind: 'join', keys: () => 'null', check: () => 'true' }
const name: Predicate = { kind: 'ids', ids: () => 'select 1' }
const filter: Predicate = { kind: 'filter', sql: () => 'true' }
const within = { column: 'd_lo', from: 0, to: 1 } as const
const date: Predicate = { kind: 'date', sql: () => 'true', within }
const unbounded: Predicate = { kind: 'date', sql: () => 'true' }

const aQuery = (predicates: readonly Predicate[], sort = '-_lastUpdated'): Query => ({
  project: 1,
  typeNumbers: [105],
  predicates,
  order: resolveOrder(parseSearch('Observation', `_sort=${sort}`), hash),
  after: undefined,
  limit: 21,
  offset: 0,
})

const planName = (query: Query, isKnown = true) =>
  chooseAccessPath(query, { statistics, rows: 480_000, limit: 21, isKnown }).accessPath.name
const choose = (...predicates: Predicate[]) => planName(aQuery(predicates))

t.test('walks for common keys and looks up rare ones first', (t) => {
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

t.test('counts keys in the statement when statistics cannot tell', (t) => {
  t.equal(choose(name, keys(1n)), 'ids')
  t.equal(choose(name, keys(2n)), 'keys')
  t.equal(choose(join, keys(1n)), 'join')
  t.equal(choose(join, keys(2n)), 'keys', 'a reference is only looked up for few rows')
  t.equal(choose(date, keys(3n)), 'dates')
  t.equal(choose(date, keys(2n)), 'keys')
  t.equal(planName(aQuery([date], 'date')), 'walk', 'in its own order a date bounds the walk')
  t.equal(choose(unbounded), 'walk', 'an open start bounds nothing')
  t.end()
})

t.test('assumes common keys without statistics, except for identifiers', (t) => {
  const unknown = (...predicates: Predicate[]) => planName(aQuery(predicates), false)
  t.equal(unknown(keys(9n)), 'walk')
  t.equal(unknown(identifier), 'keys')
  t.equal(unknown(name, keys(9n)), 'ids')
  t.equal(planName({ ...aQuery([keys(9n)]), typeNumbers: [105, 112] }, false), 'keys')
  t.end()
})
