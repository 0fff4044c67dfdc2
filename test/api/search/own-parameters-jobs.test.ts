/** Imports the revision of the index, which no route returns. */
import { once } from 'node:events'
import t from 'tap'
import { INDEX_REVISION } from '../../../shared/store/index/keys.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { aPatient, aSearchParameter } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, { env: { DATABASE_URL: await createDatabase(t) } })
const { admin, services } = botica
const { database } = services
const READY_MS = 60_000

const run = (text: string, values: unknown[] = []) => database.query<Raw>({ text, values })

async function findIds(query: string): Promise<string[]> {
  const { body } = await admin.get<Raw>(query)
  return (body.entry ?? []).map((entry: Raw) => entry.resource.id).sort()
}

t.test('continues the index of a crashed worker in the next one', async (t) => {
  const patients = await Promise.all(
    Array.from({ length: 450 }, () => admin.create(aPatient({ language: 'de' }))),
  )
  const first = await botica.startWorker()
  await admin.create(aSearchParameter())
  // The worker dies while its first page waits for the table lock.
  await database.transaction(async (connection) => {
    await connection.query({ text: 'lock table resource in share row exclusive mode', values: [] })
    await until(async () => {
      const [job] = await run(`select 1 from job where kind = 'own-parameters'
        and state = 'active' and progress is not null`)
      return job !== undefined
    }, READY_MS)
    t.match(await admin.get<Raw>('Patient?tongue=de'), {
      status: 400,
      body: { issue: [{ details: { text: 'Search parameter tongue is not ready' } }] },
    })
    const ended = once(first, 'exit')
    first.kill('SIGKILL')
    await ended
  })
  // Simulates an expired heartbeat.
  await run(`update job set held = held - interval '1 minute'`)
  await botica.startWorker()
  await until(async () => (await admin.get('Patient?tongue=de')).status === 200, READY_MS)
  const found = await admin.get<Raw>('Patient?tongue=de&_total=accurate&_count=0')
  t.equal(found.body.total, patients.length)
})

t.test('reindexes rows of older code by a worker', async (t) => {
  const patient = await admin.create(aPatient({ name: [{ family: 'Upgraded' }] }))
  t.same(await run('select rev from index_revision'), [{ rev: INDEX_REVISION }])
  await run('delete from idx_string where id = $1', [patient.id])
  await run('update resource set keys = keys[1:1], nref = 1 where id = $1', [patient.id])
  await run('update index_revision set rev = 0')
  t.same(await findIds('Patient?name=upgraded'), [])

  await botica.startWorker()
  await until(async () => (await findIds('Patient?name=upgraded')).length === 1, READY_MS)
  const isWaiting = `kind = 'index-revision' and progress->>'isLate' = 'true' and state = 'waiting'`
  await until(async () => (await run(`select 1 from job where ${isWaiting}`)).length > 0, READY_MS)
  // Not finished: an old process may still write without the new keys.
  t.same(await run('select rev from index_revision'), [{ rev: 0 }])
  const late = await admin.create(aPatient({ name: [{ family: 'Belated' }] }))
  await run('delete from idx_string where id = $1', [late.id])
  await run(`update job set touched = clock_timestamp() where ${isWaiting}`)
  await until(async () => {
    const jobs = await run(`select 1 from job where kind = 'index-revision'`)
    return jobs.length === 0
  }, READY_MS)
  t.same(await findIds('Patient?name=belated'), [late.id])
  t.same(await run('select rev from index_revision'), [{ rev: INDEX_REVISION }])
  t.match(await admin.get(`Patient/${patient.id}`), { body: { meta: { versionId: '1' } } })
})
