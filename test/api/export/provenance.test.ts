/** Imports the numbers of types, to read the columns of the store. */
import { randomUUID } from 'node:crypto'
import t from 'tap'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import {
  exportAll,
  exportedAt,
  fetchExportLines,
  idsIn,
  kickOff,
  untilPast,
} from '../../fixtures/exports/exports.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'
import { anObservation, anOrganization, aPatient, aProvenance } from '../../fixtures/resources.ts'
import { holdRow } from '../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database } = botica.services
const { admin: stranger } = await botica.createTenant()

const [one, two] = [await admin.create(aPatient()), await admin.create(aPatient())]
const [own, other] = [await createPulse(one.id), await createPulse(two.id)]
const clinic = await admin.create(anOrganization())
const group = await admin.create({
  resourceType: 'Group',
  type: 'person',
  actual: true,
  member: [{ entity: { reference: `Patient/${one.id}` } }],
})
const ofPatient = await about(admin, `Patient/${one.id}`)
const ofPulse = await about(admin, `Organization/${clinic.id}`, `Observation/${own.id}`)
const ofVersion = await about(admin, `Observation/${own.id}/_history/1`)
const ofOther = await about(admin, `Observation/${other.id}`)
const ofClinic = await about(admin, `Organization/${clinic.id}`)
// Another Project may use the same ids and references.
await stranger.put(`Observation/${own.id}`, { ...anObservation('Patient/x'), id: own.id })
await about(stranger, `Observation/${own.id}`)

const NARROW = [`Group/${group.id}/$export`, `Patient/${one.id}/$export`]
const OWN = [ofPatient, ofPulse, ofVersion].sort()

t.test('exports Provenance of exported resources only', async (t) => {
  for (const path of NARROW) {
    t.same(idsIn(await exportAll(admin, path), 'Provenance'), OWN, path)
    const alone = await exportAll(admin, `${path}?_type=Provenance`)
    t.same(idsIn(alone, 'Provenance'), OWN, 'Provenance of resources that would be exported')
    t.same([...alone.resources.keys()], ['Provenance'])
    const none = await exportAll(admin, `${path}?_type=Patient,Observation`)
    t.notOk(none.resources.has('Provenance'), 'even for targets outside _type')
  }
  const patients = await exportAll(admin, 'Patient/$export')
  t.same(idsIn(patients, 'Provenance'), [...OWN, ofOther].sort())
  const system = await exportAll(admin, '$export')
  t.same(idsIn(system, 'Provenance'), [...OWN, ofOther, ofClinic].sort())
  t.notOk((await exportAll(admin, '$export?_type=Patient')).resources.has('Provenance'))
})

t.test('exports Provenance whose last target of many is exported', async (t) => {
  const patient = await admin.create(aPatient())
  const others = Array.from({ length: 30 }, () => `Organization/${clinic.id}/_history/1`)
  const unknown = Array.from({ length: 30 }, () => `Observation/${randomUUID()}`)
  const long = await about(admin, ...others, ...unknown, `Patient/${patient.id}`)
  for (const choice of ['Relevant', 'Latest']) {
    const path = `Patient/$export?includeAssociatedData=${choice}ProvenanceResources&_type=Patient`
    t.ok(idsIn(await exportAll(admin, path), 'Provenance').includes(long), choice)
  }
  await admin.del(`Provenance/${long}`)
  await admin.del(`Patient/${patient.id}`)
})

t.test('reads only Provenance of the members', async (t) => {
  const url = await kickOff(admin, `Group/${group.id}/$export`)
  await exportedAt(admin, url)
  const rows = await database.query<{ rows: number }>({
    text: `select count(distinct i.id)::int as rows
      from export_compartment c cross join lateral unnest(c.ids) i(id) where c.job = $1 and c.place = $2`,
    values: [url.slice(url.lastIndexOf('/') + 1), typeNumber('Provenance')],
  })
  t.same(rows, [{ rows: OWN.length }])
})

t.test('omits Provenance whose target is hidden by a policy', async (t) => {
  const entries = ['Patient', 'Group', 'Provenance'].map((resourceType) => ({ resourceType }))
  const client = await clientUnder(botica, ...entries)
  for (const path of NARROW) {
    t.same(idsIn(await exportAll(client, path), 'Provenance'), [ofPatient], path)
  }
  const blind = await clientUnder(botica, ...entries.slice(0, 2))
  t.notOk((await exportAll(blind, NARROW[0] ?? '')).resources.has('Provenance'))
})

t.test('includes Provenance of resources changed since _since', async (t) => {
  const { manifest } = await exportAll(admin, '$export?_type=Organization')
  const since = encodeURIComponent(manifest.transactionTime)
  const added = await createPulse(one.id)
  const late = await about(admin, `Observation/${added.id}`)
  await about(admin, `Observation/${own.id}`).then((id) => admin.del(`Provenance/${id}`))
  const gone = await about(admin, `Patient/${one.id}`)
  const middle = await exportAll(admin, `${NARROW[0]}?_since=${since}`)
  t.same(idsIn(middle, 'Provenance'), [late], 'the Patient is unchanged')
  await admin.del(`Provenance/${gone}`)
  await admin.del(`Observation/${added.id}`)
  const between = encodeURIComponent(middle.manifest.transactionTime)
  const last = await exportAll(admin, `${NARROW[0]}?_since=${between}`)
  t.notOk(last.resources.has('Provenance'), 'the target was deleted')
  const lines = [...(await fetchExportLines(admin, last.manifest.deleted ?? [])).values()].flat()
  t.match(lines.join('\n'), `"Provenance/${gone}"`)
})

t.test('exports the state at the export time of resources changed later', async (t) => {
  const [moved, lost] = [await createPulse(one.id), await createPulse(one.id)]
  const [first, second, third] = [
    await about(admin, `Observation/${moved.id}`),
    await about(admin, `Observation/${lost.id}`),
    await about(admin, `Patient/${one.id}`),
  ]
  const last = await admin.create(anOrganization())
  await untilPast(database)
  const held = await holdRow(database, last.id)
  t.teardown(held.release)
  await admin.put(`Provenance/${first}`, { ...aProvenance([`Patient/${two.id}`]), id: first })
  await admin.del(`Observation/${lost.id}`)
  await admin.del(`Provenance/${third}`)
  await about(admin, `Patient/${one.id}`)
  for (const path of NARROW) {
    const found = idsIn(await exportAll(admin, path), 'Provenance')
    t.same(found, [...OWN, first, second, third].sort(), path)
  }
  await held.release()
})

t.test('selects the latest Provenance among that of the members', async (t) => {
  const patient = await admin.create(aPatient())
  const reference = `Patient/${patient.id}`
  await about(admin, reference)
  const newer = await admin.create({
    ...aProvenance([reference]),
    recorded: '2025-01-01T00:00:00Z',
    location: { display: 'half a surrogate pair: \ud800' },
  })
  const path = `Patient/${patient.id}/$export?includeAssociatedData=LatestProvenanceResources`
  t.same(idsIn(await exportAll(admin, path), 'Provenance'), [newer.id])
})

function createPulse(patient: string) {
  return admin.create(anObservation(`Patient/${patient}`))
}

async function about(client: Client, ...targets: string[]): Promise<string> {
  return (await client.create(aProvenance(targets))).id
}
