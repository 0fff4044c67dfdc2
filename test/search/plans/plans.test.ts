/**
 * Compares the buffers that the chosen driver of a search touches with those of the others and of a generic
 * plan. Buffers do not depend on the machine.
 */
import t from 'tap'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import type { Connection, Statement } from '../../../shared/platform/postgres/statement.ts'
import { parseSearch } from '../../../shared/query/search.ts'
import { Keys } from '../../../shared/store/index/keys.ts'
import type { Bind } from '../../../shared/store/rows/side-rows.ts'
import { orderOf } from '../../../shared/store/search/order/order.ts'
import { pageStatement } from '../../../shared/store/search/plan/compile.ts'
import { chooseDriver, type Driver } from '../../../shared/store/search/plan/driver.ts'
import type { Query } from '../../../shared/store/search/plan/query.ts'
import { openStatistics } from '../../../shared/store/search/plan/statistics.ts'
import { testOf } from '../../../shared/store/search/tests/conditions.ts'
import type { Test } from '../../../shared/store/search/tests/test.ts'
import { sightOf } from '../../../shared/store/search/tests/visible-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

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
// One in ten has a value, and there are as many Patients, born over a hundred years.
const value = hash.param(project, 'Observation', 'value-quantity')
await database.query({
  text: `insert into idx_range (project, type, p, lo, hi, u, id)
    select project, type, $1, 1, 1, 0, id from resource where type = $2 and keys[1] % 10 = 0`,
  values: [value, type],
})
await database.query({
  text: `insert into resource (project, type, id, ver, lu, d_lo, d_hi, nref, keys)
    select $1, $2, gen_random_uuid(), 1, timestamptz '2024-01-01' + n * interval '1 second',
      born, born + interval '1 day', 1, array[n]
    from generate_series(1, $3::int) n,
      lateral (select timestamptz '1920-01-01' + n * interval '43 hours') d(born)`,
  values: [project, typeNumber('Patient'), ROWS],
})
await database.query({ text: 'vacuum analyze resource, version, idx_range', values: [] })
const statistics = openStatistics(database)
await statistics.refresh()

function queryOf(...tests: Test[]): Query {
  return {
    project,
    typeNumbers: [type],
    tests,
    order: orderOf(parseSearch('Observation', '_sort=-_lastUpdated'), hash, undefined),
    after: undefined,
    limit: 21,
    offset: 0,
  }
}

/** 8 kB pages that a plan touches. */
function buffersOf(lines: readonly { 'QUERY PLAN': string }[]): number {
  const text = lines.map((line) => line['QUERY PLAN']).join('\n')
  // The buffers of the topmost node are the whole statement's.
  const [, hit = '0', read = '0'] =
    /Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/.exec(text) ?? []
  return Number(hit) + Number(read)
}

async function explained(connection: Connection, { text, values }: Statement): Promise<number> {
  return buffersOf(
    await connection.query({ text: `explain (analyze, buffers, timing off) ${text}`, values }),
  )
}

const keyTest = (key: bigint): Test => ({ kind: 'keys', any: [key] })
const buffersBy = (query: Query, driver: Driver) =>
  explained(database, pageStatement([{ query, driver }]))
const buffers = (key: bigint, driver: Driver) => buffersBy(queryOf(keyTest(key)), driver)

t.test('the driver that is chosen touches far less than the other one', async (t) => {
  const choose = (key: bigint) => chooseDriver(statistics, [keyTest(key)], ROWS, 21)
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

t.test(
  'rows are looked up among many ids on a walk, not one by one and not all of them',
  async (t) => {
    const rows = (bind: Bind) => `select g.id from idx_range g
    where g.project = ${bind(project, 'int')} and g.p = ${bind(value, 'bigint')}`
    const query = queryOf({ kind: 'ids', ids: rows })
    const chosen = chooseDriver(statistics, query.tests, ROWS, 21)
    if (chosen.kind !== 'ids') throw new Error(`${chosen.kind} was chosen`)
    const walked = await buffersBy(query, chosen)
    const probed = await buffersBy(query, { ...chosen, read: chosen.few })
    const fetched = await buffersBy(query, { ...chosen, few: undefined })
    t.ok(walked * 2 < probed, `${walked} beside ${probed} where each row is looked up`)
    t.ok(walked * 2 < fetched, `${walked} beside ${fetched} where all are fetched`)
    const small = await buffersBy(query, { ...chosen, read: undefined, cap: undefined })
    t.ok(small * 2 < fetched, `${small} beside ${fetched} in a type of few rows`)
  },
)

t.test(
  'a range of dates is read by where it begins, though it is bounded where it ends',
  async (t) => {
    const scene = sightOf({ keys: hash }, member, 'Patient', 'search')
    if (scene === undefined) throw new Error('Patients are not in sight')
    const { conditions } = parseSearch('Patient', 'birthdate=ge1990-05&birthdate=le1990-05')
    const born = (...tests: Test[]) => ({
      ...queryOf(...tests),
      typeNumbers: [typeNumber('Patient')],
    })
    const bounded = await buffersBy(born(...conditions.map((one) => testOf(scene, one))), {
      kind: 'order',
    })
    const whole = await buffersBy(
      born({ kind: 'filter', sql: () => `r.d_hi > '1990-05-01' and r.d_hi < '1990-06-02'` }),
      { kind: 'order' },
    )
    t.ok(bounded * 2 < whole, `${bounded} of ${whole}`)
  },
)

t.test('a plan made for its values touches no more than a generic one', async (t) => {
  const query = queryOf(keyTest(rare))
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
