/**
 * Statistics follow a load: a process that searched before a load finds its rows the way that a process finds them
 * which was started after it. Counted in buffers, which do not depend on the machine. Imports the analysis of
 * tables, which a worker starts only after growth.
 */
import t from 'tap'
import type { Principal } from '../../../../shared/access/principal.ts'
import { writeFeatures } from '../../../../shared/api/write-features.ts'
import { createLogger } from '../../../../shared/core/log.ts'
import { typeNumber } from '../../../../shared/fhir/definitions.ts'
import { analyzeGrown, STALE, vacuumGrown } from '../../../../shared/jobs/upkeep/upkeep.ts'
import { openDatabase } from '../../../../shared/postgres/database.ts'
import { parseSearch } from '../../../../shared/search/language/search.ts'
import { openRepository } from '../../../../shared/store/open-repository.ts'
import type { Repository } from '../../../../shared/store/repository.ts'
import { until } from '../../../fixtures/botica.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'
import { countStatements, databaseUrl, openTestStore } from '../../../fixtures/store/store.ts'

const ROWS = 20_000
const PATIENCE_MS = 60_000

process.env.DATABASE_URL = await createDatabase(t)
const { database, repository, aMember } = await openTestStore(t)
const early = await aMember()
const late = await aMember()

const PAGE = parseSearch('Observation', 'status=final&_count=100')
const ONE = parseSearch('Observation', 'status=amended&_count=100')

/** Opens a repository as another process does. */
async function openOther(): Promise<Repository> {
  const other = openDatabase(
    { databaseUrl: databaseUrl(), databasePool: 2 },
    createLogger('silent', 'script'),
  )
  t.teardown(() => other.close())
  return openRepository(other, writeFeatures())
}

/** Inserts copies of rows directly; one Observation is amended, the others are final. */
async function load(member: Principal): Promise<void> {
  const observation = { resourceType: 'Observation', code: { text: 'x' } }
  await repository.create(member, { ...observation, status: 'amended' })
  const { id } = await repository.create(member, { ...observation, status: 'final' })
  await database.query({
    text: `with twin as (select * from resource where project = $1 and type = $2 and id = $3),
      made as (
        insert into resource (project, type, id, ver, lu, d_lo, d_hi, nref, keys)
        select project, type, gen_random_uuid(), ver, lu + n * interval '1 ms', d_lo, d_hi, nref,
          array[n] || keys[2:] from twin, generate_series(1, $4::int) n
        returning project, type, id, ver, lu)
      insert into version (project, type, id, ver, lu, content, meta_at, meta_ext)
      select project, type, id, ver, lu, '{}', 1, '' from made`,
    values: [member.project.number, typeNumber('Observation'), id, ROWS],
  })
  // Contents are analyzed: only the row lookup is under test.
  await database.query({ text: 'analyze version', values: [] })
}

/** Runs the worker's ANALYZE after PostgreSQL has counted the new rows. */
async function analyze(): Promise<void> {
  await until(async () => (await analyzeGrown(database)).includes('resource'), PATIENCE_MS)
}

async function explainDriver(one: Repository, member: Principal, request = PAGE) {
  return (await one.explain(member, request)).driver
}

async function explainBuffers(one: Repository, member: Principal, request = PAGE): Promise<number> {
  const { plan } = await one.explain(member, request)
  return Number(/Buffers: shared hit=(\d+)/.exec(plan.join('\n'))?.[1])
}

const before = await openOther()
await before.search(early, PAGE)
await load(early)

t.test('sorts no whole table before the first ANALYZE', async (t) => {
  t.equal(await explainDriver(before, early), 'walk')
  // The first search after a load also sets hint bits.
  await before.search(early, ONE)
  t.ok(
    (await explainBuffers(before, early)) < ROWS / 20,
    `${await explainBuffers(before, early)} pages`,
  )
  t.equal((await before.search(early, ONE)).versions.length, 1)
})

t.test('plans as a new process does after an ANALYZE', async (t) => {
  await analyze()
  const after = await openOther()
  const alike = async () => {
    const [old, fresh] = await Promise.all(
      [before, after].map(async (one) => {
        const asked = [await one.explain(early, PAGE), await one.explain(early, ONE)]
        return asked.map(({ driver, sql }) => ({ driver, sql }))
      }),
    )
    return JSON.stringify(old) === JSON.stringify(fresh) && fresh?.[1]?.driver === 'keys'
  }
  await until(alike, PATIENCE_MS)
  t.equal(await explainDriver(before, early), 'walk', 'for most rows')
  t.equal(await explainDriver(before, early, ONE), 'keys', 'for few')
})

t.test('notices an ANALYZE by another session', async (t) => {
  await load(late)
  await database.query({ text: 'analyze resource', values: [] })
  await until(async () => (await explainDriver(before, late, ONE)) === 'keys', PATIENCE_MS)
  t.equal(await explainDriver(before, late), 'walk')
})

t.test('does not assume that a Project without statistics is empty', async (t) => {
  const unknown = await aMember()
  await load(unknown)
  t.equal(await explainDriver(before, unknown), 'walk')
  t.ok((await explainBuffers(before, unknown)) < ROWS / 20)
  t.equal((await before.search(unknown, ONE)).versions.length, 1)
})

t.test('notices the growth of a Project in a large table', async (t) => {
  const young = await aMember()
  for (let n = 0; n < 30; n++) {
    await repository.create(young, { resourceType: 'Observation', status: 'final', code: {} })
  }
  await database.query({ text: 'analyze resource', values: [] })
  await until(async () => (await explainDriver(before, young, ONE)) === 'keys', PATIENCE_MS)
  await load(young)
  // Less than half of the table.
  await until(async () => (await analyzeGrown(database, STALE)).includes('resource'), PATIENCE_MS)
  await until(async () => (await explainDriver(before, young)) === 'walk', PATIENCE_MS)
  t.equal(await explainDriver(before, young, ONE), 'keys')
})

t.test('uses an index for rows loaded a moment ago', async (t) => {
  await load(await aMember())
  const unseen = async () => {
    const [row] = await database.query<{ share: number }>({
      text: `select 1 - relallvisible / (pg_relation_size(oid) / current_setting('block_size')::float8) as share
        from pg_class where oid = 'resource'::regclass`,
      values: [],
    })
    return row?.share ?? 1
  }
  t.ok((await unseen()) >= 0.1, `${await unseen()} of the pages`)
  // Rows invisible to an older snapshot are left to the next run.
  await until(async () => !(await vacuumGrown(database)).includes('resource'), PATIENCE_MS)
  t.ok((await unseen()) < 0.1, `${await unseen()} of the pages`)
})

t.test('reads the statistics outside of requests', async (t) => {
  const end = Date.now() + 2500
  let most = 0
  while (Date.now() < end) {
    const cost = await countStatements(database, () => repository.search(early, ONE))
    most = Math.max(most, cost)
  }
  t.equal(most, 1)
})
