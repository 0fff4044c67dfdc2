/**
 * Accurate totals of a type with over a million rows. Its statistics are those of a large table, with fewer rows in it.
 * Imports the store's database to write both.
 */
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

/** More than the matches that are counted next to good statistics. */
const ROWS = 10_050
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
await database.transaction(async (connection) => {
  await connection.query({ text: 'analyze resource', values: [] })
  await connection.query({
    text: `update pg_class set reltuples = $1::float4 where oid = 'resource'::regclass`,
    values: [TABLE_ROWS],
  })
})

const page = async (query: string) => {
  const { body } = await admin.get<Raw>(`Patient?${query}`)
  const self = body.link.find((link: { relation: string }) => link.relation === 'self').url
  return { total: body.total as number, asked: new URL(self).searchParams.get('_total') }
}

t.test('estimates a total above a million, and names it in the self link', async (t) => {
  await until(
    async () => (await page('gender=female&_count=1&_total=accurate')).total > 1_000_000,
    READY_MS,
  )
  const { asked } = await page('gender=female&_count=1&_total=accurate')
  t.equal(asked, 'estimate')
})

t.test('counts conditions whose matches no statistics know', async (t) => {
  for (const query of ['birthdate=1980-01-01', 'gender=female&birthdate=lt2000']) {
    const found = await page(`${query}&_count=1&_total=accurate`)
    t.same(found, { total: ROWS, asked: 'accurate' }, query)
  }
})

t.test('estimates the total of all others, where a code has statistics', async (t) => {
  const found = await page('gender:not=male&_count=1&_total=accurate')
  t.equal(found.asked, 'estimate')
})
