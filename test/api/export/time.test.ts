/**
 * The state at the time of an export, and open transactions that delay it. Imports the analysis of tables, which a
 * worker starts only after growth.
 */
import t from 'tap'
import { analyzeGrown } from '../../../shared/jobs/upkeep/upkeep.ts'
import type { Connection } from '../../../shared/postgres/statement.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { type Exported, exportAll, idsIn, untilPast } from '../../fixtures/exports/exports.ts'
import { anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'
import { hold, holdRow, waitingFor } from '../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const HOLD = 4713
const ROWS = 3000
const PATIENCE_MS = 60_000

const botica = await openBotica(t, {
  worker: true,
  // Other writers to the database would delay it, too.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database } = botica.services

async function run(connection: Connection, ...texts: readonly string[]): Promise<void> {
  for (const text of texts) await connection.query({ text, values: [] })
}

const exportedPatients = async () =>
  idsIn(await exportAll(admin, '$export?_type=Patient'), 'Patient')

t.test('exports the state at the export time of rows changed or deleted later', async (t) => {
  const [one, two] = [await admin.create(aPatient()), await admin.create(aPatient())]
  const of = (patient: { readonly id: string }) => anObservation(`Patient/${patient.id}`)
  const [moved, lost, gone, back] = await Promise.all([1, 2, 3, 4].map(() => admin.create(of(one))))
  const foreign = await admin.create(of(two))
  const member = [{ entity: { reference: `Patient/${one.id}` } }]
  const group = await admin.create({ resourceType: 'Group', type: 'person', actual: true, member })
  for (const id of [gone?.id, back?.id]) await admin.del(`Observation/${id}`)
  await admin.put(`Observation/${back?.id}`, { ...of(one), id: back?.id })
  const other = await admin.create(anOrganization())
  await untilPast(database)

  const [row] = await database.query<{ id: string }>({
    text: 'select id from version where content like $1',
    values: [`%"id":"${other.id}"%`],
  })
  const held = await holdRow(database, row?.id)
  t.teardown(held.release)
  await admin.put(`Observation/${moved?.id}`, { ...of(two), id: moved?.id })
  await admin.del(`Observation/${lost?.id}`)
  await admin.put(`Patient/${one.id}`, { ...aPatient({ active: false }), id: one.id })
  const late = await admin.create(of(one))

  const found = ({ resources }: Exported) =>
    (resources.get('Observation') ?? []).map(({ id, subject }) => [id, Object(subject).reference])
  const sorted = (pairs: unknown[][]) =>
    pairs.sort(([a], [b]) => String(a).localeCompare(String(b)))
  const own = [moved, lost, back].map((kept) => [kept?.id, `Patient/${one.id}`])
  const all = [...own, [foreign.id, `Patient/${two.id}`]]
  for (const [path, expected] of [
    ['$export?_type=Patient,Observation', all],
    ['Patient/$export', all],
    [`Group/${group.id}/$export`, own],
  ] as const) {
    const exported = await exportAll(admin, path)
    t.same(sorted(found(exported)), sorted([...expected]), path)
    const patient = exported.resources.get('Patient')?.find(({ id }) => id === one.id)
    t.not(patient?.active, false, path)
  }
  await held.release()
  const exported = await exportAll(admin, `Group/${group.id}/$export`)
  t.same(
    found(exported)
      .map(([id]) => id)
      .sort(),
    [back?.id, late.id].sort(),
    'a later export has the later state',
  )
})

t.test('waits for transactions that may write resources', async (t) => {
  const { release } = await hold(database, { text: 'select pg_current_xact_id()', values: [] })
  const { id } = await admin.create(aPatient())
  t.notOk((await exportedPatients()).includes(id))
  await release()
  t.ok((await exportedPatients()).includes(id))
})

t.test('does not wait for the collection of statistics', async (t) => {
  // The transaction has an id while it waits, as at its end.
  await run(
    database,
    `create function hold(int) returns int immutable language plpgsql set lock_timeout = 0 as $$ begin
      if exists (select from pg_stat_progress_analyze where pid = pg_backend_pid()) then
        perform pg_current_xact_id(), pg_advisory_xact_lock_shared(${HOLD});
      end if; return 1; end $$`,
    'create index held on unique_key (hold(project))',
  )
  const text = 'select pg_advisory_xact_lock($1)'
  const { pid, release } = await hold(database, { text, values: [HOLD] })
  const isHeld = async () => (await waitingFor(database, pid)).length > 0
  await database.transaction((connection) =>
    run(
      connection,
      `insert into unique_key select 0, 0, 0, n, gen_random_uuid() from generate_series(1, ${ROWS}) n`,
      'select pg_stat_force_next_flush()',
    ),
  )
  const analyzing = analyzeGrown(database)
  await until(isHeld, PATIENCE_MS)
  const { id } = await admin.create(aPatient())
  t.ok((await exportedPatients()).includes(id))
  t.ok(await isHeld())
  await release()
  t.same(await analyzing, ['unique_key'])
})
