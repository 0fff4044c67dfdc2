import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { type Exported, exportAll, untilPast } from '../../fixtures/exports/exports.ts'
import { anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'
import { holdRow } from '../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database } = botica.services

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
