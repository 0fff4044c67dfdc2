/**
 * What the chosen driver of a search touches, beside the other ones and beside a generic plan. Counted in
 * buffers, which do not depend on the machine.
 */
import t from 'tap'
import type { Connection, Statement } from '../shared/database.ts'
import { typeNumber } from '../shared/fhir/definitions.ts'
import { parseSearch } from '../shared/fhir/search.ts'
import { Keys } from '../shared/store/keys.ts'
import { pageStatement, type Query } from '../shared/store/search/compile.ts'
import { chooseDriver, type Driver } from '../shared/store/search/driver.ts'
import { orderOf } from '../shared/store/search/order.ts'
import { openStatistics } from '../shared/store/search/statistics.ts'
import { createDatabase } from './fixtures/own-database.ts'
import { openTestStore } from './fixtures/store.ts'

const ROWS = 20_000
const RARE = 40

// How many pages rows lie on depends on what was stored before them.
process.env.DATABASE_URL = await createDatabase(t)
const { database, aMember } = await openTestStore(t)
const member = await aMember()
const project = member.project.number
const type = typeNumber('Observation')
const [salt] = await database.query<{ salt: Buffer }>({
  text: 'select salt from search_key_salt',
  values: [],
})
const hash = new Keys(salt?.salt ?? Buffer.alloc(0))
const p = hash.param(project, 'Observation', 'status')
const [common, rare] = ['final', 'amended'].map((code) => hash.token(p, undefined, code))
if (common === undefined || rare === undefined) throw new Error('There are no keys')

// Straight into the tables: rows of this shape, many and at once. The rare ones are the oldest.
await database.query({
  text: `insert into resource (project, type, id, ver, lu, nref, keys)
    select $1, $2, gen_random_uuid(), 1, timestamptz '2024-01-01' + n * interval '1 second', 1,
      array[n, case when n <= $3 then $4::bigint else $5::bigint end]
    from generate_series(1, $6::int) n`,
  values: [project, type, RARE, rare, common, ROWS],
})
await database.query({
  text: `insert into version (project, type, id, ver, lu, content, meta_at, meta_ext)
    select project, type, id, ver, lu, '{}', 1, '' from resource where project = $1`,
  values: [project],
})
await database.query({ text: 'vacuum analyze resource, version', values: [] })
const statistics = openStatistics(database)
await statistics.refresh()

function queryOf(key: bigint): Query {
  return {
    project,
    typeNumbers: [type],
    tests: [{ kind: 'keys', any: [key] }],
    order: orderOf(parseSearch('Observation', '_sort=-_lastUpdated'), hash, undefined),
    after: undefined,
    limit: 21,
    offset: 0,
  }
}

/** 8 kB pages that a plan touches. */
function buffersOf(lines: readonly { 'QUERY PLAN': string }[]): number {
  const text = lines.map((line) => line['QUERY PLAN']).join('\n')
  // Those of the topmost node are the whole statement's.
  const [, hit = '0', read = '0'] =
    /Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/.exec(text) ?? []
  return Number(hit) + Number(read)
}

async function explained(connection: Connection, { text, values }: Statement): Promise<number> {
  return buffersOf(
    await connection.query({ text: `explain (analyze, buffers, timing off) ${text}`, values }),
  )
}

const buffers = (key: bigint, driver: Driver) =>
  explained(database, pageStatement([{ query: queryOf(key), driver }]))

t.test('the driver that is chosen touches far less than the other one', async (t) => {
  const choose = (key: bigint) => chooseDriver(statistics, queryOf(key).tests, ROWS, 21)
  t.equal(choose(common).kind, 'walk')
  t.equal(choose(rare).kind, 'keys')
  const walked = await buffers(common, choose(common))
  const found = await buffers(rare, choose(rare))
  t.ok((await buffers(common, { kind: 'keys' })) > 2 * walked, 'a common key')
  t.ok((await buffers(rare, { kind: 'order' })) > 2 * found, 'a rare key')
})

t.test('a walk that finds nothing ends at its cap, and the keys are asked', async (t) => {
  const capped = await buffers(rare, { kind: 'walk', cap: 500 })
  const whole = await buffers(rare, { kind: 'order' })
  t.ok(capped * 3 < whole, `${capped} of ${whole}`)
})

t.test('a plan made for its values touches no more than a generic one', async (t) => {
  const query = queryOf(rare)
  const { text, values } = pageStatement([{ query, driver: { kind: 'keys' } }])
  const own = await explained(database, { text, values })
  const generic = await database.transaction(async (connection) => {
    const run = (sql: string) =>
      connection.query<{ 'QUERY PLAN': string }>({ text: sql, values: [] })
    await run('set local plan_cache_mode = force_generic_plan')
    await run(`prepare searching as ${text}`)
    const literals = values.map((value) => `'${value}'`).join(', ')
    const lines = await run(`explain (analyze, buffers, timing off) execute searching(${literals})`)
    await run('deallocate searching')
    return buffersOf(lines)
  })
  t.ok(generic >= own, `${generic} beside ${own}`)
})
