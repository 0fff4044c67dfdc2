/**
 * Absent values have index keys, by which `:missing` and `:not` find rare resources. Imports the keys, to read them
 * from the index.
 */
import t from 'tap'
import { parseSearch } from '../../../shared/search/language/search.ts'
import { Keys } from '../../../shared/store/index/keys.ts'
import { until } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

process.env.DATABASE_URL = await createDatabase(t)
const { database, repository, aMember } = await openTestStore(t)
const member = await aMember()
/** More rows than a search walks before it looks up keys, half of them newer than the matches. */
const OTHERS = 1200
const SIDE_BY_SIDE = 100

const usual = { resourceType: 'Task', status: 'completed', intent: 'order' }
const task = (own: object): Resource => ({ ...usual, ...own })
const addOthers = async (count: number) => {
  for (let i = 0; i < count; i += SIDE_BY_SIDE) {
    const all = Array.from({ length: SIDE_BY_SIDE }, () => repository.create(member, task({})))
    await Promise.all(all)
  }
}
await addOthers(OTHERS / 2)
const ids = new Map<string, string>()
for (const [name, own] of Object.entries({
  open: { status: 'requested' },
  none: { status: undefined },
  long: { status: 'x'.repeat(1001) },
  proposal: { status: 'draft', intent: 'proposal' },
})) {
  ids.set((await repository.create(member, task(own))).id, name)
}
await addOthers(OTHERS / 2)

const CASES: readonly (readonly [query: string, found: string])[] = [
  ['status:not=completed', 'long none open proposal'],
  ['status:not=completed,draft', 'long none open'],
  ['status:not=http://hl7.org/fhir/task-status|completed', 'long none open proposal'],
  ['status:not=completed&intent:not=order', 'proposal'],
  ['status:not=completed&status:missing=false', 'long open proposal'],
  ['status:missing=true', 'none'],
  ['intent:missing=true', ''],
]

const PATIENCE_MS = 60_000

/** Waits until the process has read the index revision again. */
async function untilFoundBy(way: string): Promise<void> {
  const request = parseSearch('Task', 'status:missing=true')
  await until(async () => (await repository.explain(member, request)).driver === way, PATIENCE_MS)
}
await database.query({ text: 'analyze resource', values: [] })
await untilFoundBy('keys')

for (const [query, found] of CASES) {
  t.test(`${query} finds ${found || 'nothing'}`, async (t) => {
    for (const order of ['', '&_sort=_id', '&_sort=-_lastUpdated']) {
      const request = parseSearch('Task', `${query}${order}&_total=accurate`)
      const { versions, total } = await repository.search(member, request)
      const names = versions.map(({ id }) => ids.get(id)).sort()
      t.same(names.join(' '), found, order)
      t.equal(total, names.length)
    }
  })
}

t.test('distinguishes codes of different systems', async (t) => {
  const request = parseSearch('Task', 'status:not=urn:other|completed&_count=0&_total=accurate')
  const { total } = await repository.search(member, request)
  t.equal(total, OTHERS + ids.size)
})

t.test('finds a resource by its new state after it gains or loses a value', async (t) => {
  const [[id] = ['']] = ids
  const find = async (query: string) => {
    const { versions } = await repository.search(member, parseSearch('Task', query))
    return versions.some((version) => version.id === id)
  }
  await repository.update(member, { ...task({ status: undefined }), id })
  t.ok(await find('status:missing=true'))
  t.ok(await find('status:not=completed'))
  await repository.update(member, { ...task({}), id })
  t.notOk(await find('status:missing=true'))
  t.notOk(await find('status:not=completed'))
})

t.test('finds rows indexed by older code before they are reindexed', async (t) => {
  const [row] = await database.query<{ salt: Buffer }>({
    text: 'select salt from search_key_salt',
    values: [],
  })
  const keys = new Keys(row?.salt ?? Buffer.alloc(0))
  const absent = keys.absent(keys.param(member.project.number, 'Task', 'status'))
  const run = (text: string, ...values: unknown[]) => database.query({ text, values })
  const { id } = await repository.create(member, task({ status: undefined }))
  await run('update resource set keys = array_remove(keys, $1)', absent)
  await run('update index_revision set rev = rev - 1')
  await untilFoundBy('walk')
  for (const query of ['status:missing=true', 'status:not=completed']) {
    const { versions } = await repository.search(member, parseSearch('Task', query))
    t.ok(
      versions.some((version) => version.id === id),
      query,
    )
  }
})
