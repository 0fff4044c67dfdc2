/** Changes drop stale entries in all caches of a process, and each cache reports its size and hits. */
import t from 'tap'
import {
  Cache,
  type CacheChange,
  cacheStats,
  FreshCache,
  invalidateCaches,
  sizeWithin,
} from '../../../shared/core/cache.ts'

const change = (type: CacheChange['type'], id = 'x'): CacheChange => ({
  type,
  id,
  number: 7,
  home: undefined,
})
const listKeys = (cache: Cache<string, string>) => [...cache.keys()].sort()

t.test('a change drops a whole cache, one key, or the entries that fail a test', async (t) => {
  const whole = new Cache<string, string>({ name: 'test-whole', max: 10, types: ['Bot'] })
  const keyed = new Cache<string, string>({
    name: 'test-keyed',
    max: 10,
    staleKey: ({ type, id }) => (type === 'Bot' ? id : undefined),
  })
  const tested = new Cache<string, string>({
    name: 'test-tested',
    max: 10,
    staleEntries: ({ type, id }) => (type === 'Bot' ? (value) => value === id : undefined),
  })
  const constant = new Cache<string, string>({ name: 'test-constant', max: 10 })
  const all = [whole, keyed, tested, constant]
  const fill = () => {
    for (const cache of all) for (const name of ['a', 'b']) cache.set(name, name)
  }
  fill()
  invalidateCaches([change('Login', 'a')])
  t.same(all.map(listKeys), [
    ['a', 'b'],
    ['a', 'b'],
    ['a', 'b'],
    ['a', 'b'],
  ])
  invalidateCaches([change('Bot', 'a')])
  t.same(all.map(listKeys), [[], ['b'], ['b'], ['a', 'b']])
  fill()
  invalidateCaches('everything')
  t.same(all.map(listKeys), [[], [], [], ['a', 'b']])
})

t.test('drops a value that is still being read', async (t) => {
  let reads = 0
  const { promise, resolve } = Promise.withResolvers<string>()
  const cache = new FreshCache<string>(
    {
      name: 'test-fresh',
      max: 10,
      freshMs: 60_000,
      usableMs: 60_000,
      staleEntries: ({ type }) => (type === 'Bot' ? (value) => value === undefined : undefined),
    },
    async () => (++reads === 1 ? promise : 'new'),
  )
  const first = cache.get('a')
  invalidateCaches([change('Bot')])
  t.equal(await cache.get('a'), 'new')
  resolve('old')
  t.equal(await first, 'old')
  t.equal(await cache.get('a'), 'new')
  invalidateCaches([change('Bot')])
  t.equal(await cache.get('a'), 'new')
  t.equal(reads, 2)
})

t.test('sizes a cache by the memory of its process, within bounds', (t) => {
  const megabytes = [64, 512, 1024, 8192].map((memory) => sizeWithin(memory, 128) / 1024 / 1024)
  t.same(megabytes, [8, 8, 16, 128])
  t.end()
})

t.test('adds up the statistics of caches with the same name', async (t) => {
  const [one, other] = [1, 2].map(() => new Cache<string, string>({ name: 'test-sum', max: 2 }))
  one?.set('a', 'a')
  for (const name of ['b', 'c', 'd']) other?.set(name, name)
  one?.get('a')
  one?.has('z')
  other?.get('b')
  const found = cacheStats().find(({ name }) => name === 'test-sum')
  t.same(found, { name: 'test-sum', entries: 3, hits: 1, misses: 2 })
})
