/**
 * Accurate totals of a type with many rows. Its statistics are those of a large table, with fewer rows in it.
 * Imports the store's database to write both.
 */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

/** More than the matches that are counted next to good statistics. */
const ROWS = 10_050
/** More than are counted of one code, but not of other conditions. */
const MANY_ROWS = 200_000
const TABLE_ROWS = 10_000_000
const READY_MS = 60_000

process.env.DATABASE_URL = await createDatabase(t)
const botica = await openBotica(t)
const { admin, services } = botica
const { database } = services

// Otherwise PostgreSQL would count the rows again.
await database.query({
  text: 'alter table resource set (autovacuum_enabled = false)',
  values: [],
})
const { id } = await admin.create({
  resourceType: 'Patient',
  gender: 'female',
  birthDate: '1980-01-01',
})
await database.query({
  text: `insert into resource (project, type, id, ver, lu, nref, d_lo, d_hi, keys)
    select project, type, gen_random_uuid(), ver, lu, nref, d_lo, d_hi, keys
    from resource, generate_series(2, $2::int) where id = $1::uuid`,
  values: [id, ROWS],
})
await database.query({ text: 'analyze resource', values: [] })
const setTableRows = (rows: number) =>
  database.query({
    text: `update pg_class set reltuples = $1::float4 where oid = 'resource'::regclass`,
    values: [rows],
  })
await setTableRows(MANY_ROWS)

const page = async (query: string) => {
  const { body } = await admin.get<Raw>(`Patient?${query}`)
  const self = body.link.find((link: { relation: string }) => link.relation === 'self').url
  return { total: body.total as number, asked: new URL(self).searchParams.get('_total') }
}

t.test('estimates the total of a code above 100,000, and names it in the self link', async (t) => {
  const isEstimated = async () =>
    (await page('gender=female&_count=1&_total=accurate')).total > 100_000
  await until(isEstimated, READY_MS)
  const { asked } = await page('gender=female&_count=1&_total=accurate')
  t.equal(asked, 'estimate')
})

t.test('counts the matches of other conditions up to 600,000', async (t) => {
  for (const query of ['gender:not=male', 'gender=female&birthdate=1980-01-01']) {
    const found = await page(`${query}&_count=1&_total=accurate`)
    t.same(found, { total: ROWS, asked: 'accurate' }, query)
  }
})

t.test('counts conditions whose matches no statistics know', async (t) => {
  for (const query of ['birthdate=1980-01-01', 'gender=female&birthdate=lt2000']) {
    const found = await page(`${query}&_count=1&_total=accurate`)
    t.same(found, { total: ROWS, asked: 'accurate' }, query)
  }
})

t.test(
  'estimates the total of all others above 600,000, where a code has statistics',
  async (t) => {
    await setTableRows(TABLE_ROWS)
    await until(
      async () => (await page('gender:not=male&_count=1&_total=accurate')).asked === 'estimate',
      READY_MS,
    )
    const { total } = await page('gender:not=male&_count=1&_total=accurate')
    t.ok(total > 600_000)
  },
)
