/**
 * Pages that a search touches when the statistics of PostgreSQL are missing, cover some tables only, or know nothing
 * of the Project or the type. Counted in buffers, which do not depend on the machine. Imports the repository, to
 * search on a database without statistics.
 */
import t from 'tap'
import type { Principal } from '../../../../shared/access/principal.ts'
import { writeFeatures } from '../../../../shared/api/write-features.ts'
import { createLogger } from '../../../../shared/core/log.ts'
import { type Database, openDatabase } from '../../../../shared/postgres/database.ts'
import { parseSearch } from '../../../../shared/search/language/search.ts'
import { openRepository } from '../../../../shared/store/open-repository.ts'
import type { Repository } from '../../../../shared/store/repository.ts'
import { until } from '../../../fixtures/botica.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'
import { databaseUrl, openTestStore } from '../../../fixtures/store/store.ts'

const PATIENTS = 800
const OBSERVATIONS = 24
const SIDE_BY_SIDE = 200
const FAMILIES = 20
const [FEW, LATE] = [0.02, 0.1]
const PATIENCE_MS = 60_000
const CODES = 10
/** PostgreSQL makes five custom plans first; a process prepares a statement after eight uses. */
const TIMES = 20

process.env.DATABASE_URL = await createDatabase(t)
const { database, repository, aMember } = await openTestStore(t)
const run = (text: string) => database.query({ text, values: [] })
for (const table of ['resource', 'version', 'idx_string', 'idx_range', 'code']) {
  await run(`alter table ${table} set (autovacuum_enabled = off)`)
}

async function createAll(member: Principal, resources: readonly object[]): Promise<string[]> {
  const ids: string[] = []
  for (let from = 0; from < resources.length; from += SIDE_BY_SIDE) {
    const some = resources.slice(from, from + SIDE_BY_SIDE)
    const made = await Promise.all(
      some.map((one) => repository.create(member, one as { resourceType: string })),
    )
    ids.push(...made.map(({ id }) => id))
  }
  return ids
}

/** The newest Observations are preliminary. */
async function load(member: Principal, patients: number): Promise<string> {
  const people = Array.from({ length: patients }, (_, n) => ({
    resourceType: 'Patient',
    identifier: [{ system: 'urn:n', value: `n${n}` }],
    active: true,
    name: [{ family: `Family${String(n % FAMILIES).padStart(2, '0')}`, given: [`Given${n % 7}`] }],
    birthDate: `${1930 + (n % 90)}-0${1 + (n % 9)}-11`,
  }))
  const ids = await createAll(member, people)
  const subject = (n: number) => ({ reference: `Patient/${ids[n]}` })
  const visits = people.flatMap((_, n) =>
    [1, 2].map(() => ({
      resourceType: 'Encounter',
      status: 'finished',
      class: { code: 'AMB' },
      subject: subject(n),
    })),
  )
  await createAll(member, visits)
  const measured = people.flatMap((_, n) =>
    Array.from({ length: OBSERVATIONS }, (_, i) => ({
      resourceType: 'Observation',
      status: n < patients * 0.8 ? 'final' : 'preliminary',
      code: { coding: [{ system: 'urn:c', code: `c${i % CODES}` }] },
      subject: subject(n),
      effectiveDateTime: `2024-0${1 + (i % 9)}-${10 + (n % 18)}T10:00:00Z`,
    })),
  )
  await createAll(member, measured)
  await run(`select gin_clean_pending_list('resource_keys')`)
  return ids[3] ?? ''
}

/** Opens a repository as a new process does. */
async function openOther(): Promise<Repository> {
  const settings = { databaseUrl: databaseUrl(), databasePool: 2 }
  const other = openDatabase(settings, createLogger('silent', 'script'))
  t.teardown(() => other.close())
  return openRepository(other, writeFeatures())
}

type Shape = readonly [query: string, known: number, unknown: number]

/** The page limits of each search with row statistics and without any. */
const shapes = (patient: string): readonly Shape[] => [
  ['Patient?identifier=urn:n|n3', 30, 60],
  ['Patient?family=family03&birthdate=ge1960-01-01&birthdate=lt2000-01-01&active=true', 200, 900],
  ['Patient?name:contains=amily03', 1200, 2000],
  ['Patient?family:exact=Family03', 150, 500],
  ['Patient?family:exact=Family03&given:exact=Given3', 60, 500],
  ['Patient?active=true&_sort=-family', 800, 9000],
  [`Observation?patient=Patient/${patient}&code=urn:c|c3&_sort=-date`, 60, 450],
  ['Encounter?patient.birthdate=1930-01-11', 150, 150],
  ['Encounter?patient.birthdate=ge1930', 1200, 1200],
  ['Observation?patient.family=family03&code=urn:c|c3', 400, 500],
  ['Observation?patient.active=true', 300, 1500],
  ['Patient?family=family03&_has:Encounter:subject:status=finished', 400, 1000],
  ['Patient?_has:Observation:subject:code=urn:c|c3', 400, 700],
  ['Patient?_has:Observation:subject:date=ge2024-03-01', 2000, 2000],
  ['Patient?_has:Observation:subject:code=urn:c|c77', 30, 60],
  ['Observation?status=final&_count=100', 3500, 3500],
  ['Observation?status=preliminary&_sort=-date', 200, 200],
  ['Observation?status=amended', 30, 500],
  ['Observation?code=urn:c|c3&status=final', 3500, 3500],
  ['Observation?code=urn:c|c3&status=final&_sort=date', 4500, 4500],
  ['Observation?date=ge2024-03-01&date=lt2024-04-01', 400, 400],
  ['Observation?code=urn:c|c3&date=2024-03-11', 300, 300],
  ['Observation?date=2024-03-11&status=preliminary', 300, 300],
  ['Observation?_lastUpdated=lt2001', 30, 30],
  ['Observation?date:missing=true', 60, 60],
  ['Observation?status:not=final', 200, 200],
  ['Observation?status:not=final,preliminary', 900, 900],
  ['Observation?code:not=urn:c|c3', 200, 200],
  ['Observation?focus:missing=true', 200, 200],
  ['Observation?status:missing=true', 60, 400],
  ['Patient?name:missing=true', 60, 400],
]

async function touched(one: Repository, member: Principal, query: string): Promise<number> {
  const [type = '', parameters = ''] = query.split('?')
  const request = parseSearch(type, parameters)
  // The first search after a load also sets hint bits.
  await one.search(member, request)
  const { plan } = await one.explain(member, request)
  const [, hit = '0', read = '0'] =
    /Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/.exec(plan.join('\n')) ?? []
  return Number(hit) + Number(read)
}

const large = await aMember()
const small = await aMember()

/** Opens a process with one connection that has run all searches on empty tables. */
const settings = { databaseUrl: databaseUrl(), databasePool: 1 }
const early = openDatabase(settings, createLogger('silent', 'script'))
t.teardown(() => early.close())
const earlier = await openRepository(early, writeFeatures())
for (const [query] of shapes('none')) {
  const [type = '', parameters = ''] = query.split('?')
  for (let i = 0; i < TIMES; i++) await earlier.search(large, parseSearch(type, parameters))
}
const keptPlans = () =>
  early.query({ text: 'select 1 from pg_prepared_statements where generic_plans > 0', values: [] })
const keptEmpty = (await keptPlans()).length

const patient = await load(large, PATIENTS)
const few = await load(small, PATIENTS * FEW)

/** Counts the buffers that a search touches under the prepared plan of its process. */
async function touchedKept(one: Repository, connection: Database, query: string): Promise<number> {
  const [type = '', parameters = ''] = query.split('?')
  const request = parseSearch(type, parameters)
  const pages = async () => {
    await connection.query({ text: 'select pg_stat_force_next_flush()', values: [] })
    const [row] = await connection.query<{ pages: number }>({
      text: `select (blks_hit + blks_read)::int as pages from pg_stat_database
        where datname = current_database()`,
      values: [],
    })
    return row?.pages ?? 0
  }
  await one.search(large, request)
  const before = await pages()
  for (let i = 0; i < TIMES; i++) await one.search(large, request)
  return ((await pages()) - before) / TIMES
}

interface Check {
  ok(isTrue: boolean, text: string): void
}

/** `share`: fraction of the rows that the limits assume. */
async function checkAll(
  t: Check,
  member: Principal,
  id: string,
  { isKnown = true, share = 1 } = {},
): Promise<void> {
  const one = await openOther()
  const rare = parseSearch('Observation', 'status=amended')
  // The first search starts the read of the statistics without waiting.
  const isRead = async () => !isKnown || (await one.explain(member, rare)).driver === 'keys'
  await until(isRead, PATIENCE_MS)
  for (const [query, known, unknown] of shapes(id)) {
    const limit = isKnown ? known : unknown
    const most = share === 1 ? limit : Math.max(limit * share, 1500)
    const pages = await touched(one, member, query)
    t.ok(pages <= most, `${query}: ${pages} pages`)
  }
}

t.test('stays within the limits when no table was analyzed', async (t) => {
  await checkAll(t, large, patient, { isKnown: false })
  await checkAll(t, small, few, { isKnown: false, share: FEW })
})

t.test('replans statements prepared on empty tables, even without ANALYZE', async (t) => {
  t.ok(keptEmpty > 10, `${keptEmpty} plans`)
  for (const [query, , unknown] of shapes(patient)) {
    let pages = Infinity
    const isFew = async () => {
      pages = await touchedKept(earlier, early, query)
      return pages <= unknown * 1.2 + 100
    }
    await until(isFew, PATIENCE_MS).catch(() => undefined)
    t.ok(pages <= unknown * 1.2 + 100, `${query}: ${pages} pages`)
  }
})

t.test('stays within the limits with statistics of rows but not of contents', async (t) => {
  await run('analyze resource')
  await checkAll(t, large, patient)
  await checkAll(t, small, few, { share: FEW })
})

t.test('stays within the limits for a Project newer than the statistics', async (t) => {
  await run('analyze resource, version, idx_string, idx_range, code')
  await checkAll(t, large, patient)
  const late = await aMember()
  await checkAll(t, late, await load(late, PATIENTS * LATE), { isKnown: false, share: LATE })
})
