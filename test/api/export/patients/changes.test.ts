import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { fetchExportLines, untilPast } from '../../../fixtures/exports/exports.ts'
import {
  exportByPatient,
  type Line,
  lineReference,
  namesIn,
} from '../../../fixtures/exports/patient-exports.ts'
import {
  anObservation,
  anOrganization,
  aPatient,
  aProvenance,
} from '../../../fixtures/resources.ts'
import { holdRow } from '../../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database } = botica.services

const [one, two] = [await aNewPatient(), await aNewPatient()]
const [own, other] = [await createPulse(one), await createPulse(two)]
const both = await admin.create(anObservation(one, { performer: [{ reference: two }] }))
const clinic = await admin.create(anOrganization())
const group = await admin.create({
  resourceType: 'Group',
  type: 'person',
  actual: true,
  member: [one, two].map((reference) => ({ entity: { reference } })),
})
const ofPatient = await about(one)
const ofPulse = await about(`Organization/${clinic.id}`, own)
const ofVersion = await about(`${own}/_history/1`)
const ofOther = await about(other)
const ofBoth = await about(`Observation/${both.id}`)
await about(`Organization/${clinic.id}`)
const PATHS = [`Group/${group.id}/$export`, 'Patient/$export', '$export']

t.test('includes Provenance in the blocks that contain one of its targets', async (t) => {
  for (const path of PATHS) {
    const exported = await exportByPatient(admin, path)
    t.same(provenanceIn(exported, one), [ofPatient, ofPulse, ofVersion, ofBoth].sort(), path)
    t.same(provenanceIn(exported, two), [ofOther, ofBoth].sort(), path)
    const alone = await exportByPatient(admin, `${path}?_type=Provenance`)
    t.same(
      namesIn(alone, two),
      [ofOther, ofBoth].sort(),
      'Provenance of resources that would be exported',
    )
    const pulses = await exportByPatient(admin, `${path}?_type=Observation,Provenance`)
    t.same(
      provenanceIn(pulses, one),
      [ofPulse, ofVersion, ofBoth].sort(),
      'Provenance of requested resources',
    )
    const none = await exportByPatient(admin, `${path}?_type=Patient,Observation`)
    t.same(provenanceIn(none, one), [])
  }
})

t.test(
  'includes the latest Provenance of each resource when only the latest is requested',
  async (t) => {
    const patient = await aNewPatient()
    const pulse = await createPulse(patient)
    await about(pulse)
    const newer = await aboutAt('2025-01-01T00:00:00Z', pulse)
    const latest = 'includeAssociatedData=LatestProvenanceResources'
    for (const path of [`${patient}/$export`, 'Patient/$export']) {
      t.same(provenanceIn(await exportByPatient(admin, `${path}?${latest}`), patient), [newer])
      const relevant = latest.replace('Latest', 'Relevant')
      const all = await exportByPatient(admin, `${path}?_type=Observation&${relevant}`)
      t.equal(provenanceIn(all, patient).length, 2, 'even for types outside _type')
    }
  },
)

t.test('includes Provenance of resources changed since _since', async (t) => {
  const { manifest } = await exportByPatient(admin, `${one}/$export?_type=Patient`)
  const since = encodeURIComponent(manifest.transactionTime)
  const added = await createPulse(one)
  const late = await about(added)
  await about(own)
  const exported = await exportByPatient(admin, `Group/${group.id}/$export?_since=${since}`)
  t.same([...exported.blocks.keys()], [one])
  t.same(
    namesIn(exported, one),
    [added, late].sort(),
    'omits Provenance whose other target is unchanged',
  )
  await admin.del(added)
})

t.test('exports the state at the export time of resources changed later', async (t) => {
  const patient = await aNewPatient()
  const lostPatient = await aNewPatient()
  const pulses: string[] = []
  for (let i = 0; i < 4; i++) pulses.push(await createPulse(patient))
  const [moved = '', lost = '', amended = '', kept = ''] = pulses
  const provenance: string[] = []
  for (const target of [moved, lost, kept, patient]) provenance.push(await about(target))
  const [ofMoved = '', ofLost = '', ofKept = '', ofPatient = ''] = provenance
  const member = [patient, lostPatient].map((reference) => ({ entity: { reference } }))
  const group = await admin.create({ resourceType: 'Group', type: 'person', actual: true, member })
  const own = `Group/${group.id}`
  const last = await admin.create(anOrganization())
  await untilPast(database)
  const held = await holdRow(database, last.id)
  t.teardown(held.release)
  await admin.put(moved, { ...anObservation(two), id: patientId(moved) })
  await admin.del(lost)
  const later = anObservation(patient, { id: patientId(amended), valueString: 'later' })
  await admin.put(amended, { ...later, valueQuantity: undefined })
  await admin.put(ofMoved, { ...aProvenance([two]), id: patientId(ofMoved) })
  await admin.del(ofPatient)
  await admin.del(lostPatient)
  await createPulse(patient)
  await about(patient)
  for (const path of [`Group/${group.id}/$export`, 'Patient/$export']) {
    const exported = await exportByPatient(admin, path)
    const expected = [own, patient, ...pulses, ofMoved, ofLost, ofKept, ofPatient].sort()
    t.same(namesIn(exported, patient), expected, path)
    t.same(namesIn(exported, lostPatient), [own, lostPatient].sort())
    t.notOk(namesIn(exported, two).includes(moved))
    const lines = exported.blocks.get(patient) ?? []
    for (const line of lines) t.match(line.meta, { versionId: '1' }, lineReference(line))
  }
  await held.release()
  const now = await exportByPatient(admin, `Group/${group.id}/$export`)
  t.same([...now.blocks.keys()], [patient])
  t.notOk(namesIn(now, patient).includes(moved))
})

t.test('reports an unreadable row and writes its block without it', async (t) => {
  const patient = await aNewPatient()
  const pulse = await createPulse(patient)
  const entry = Array.from({ length: 220 }, () => ({
    request: { method: 'POST', url: 'Observation' },
    resource: anObservation(patient),
  }))
  await admin.post('', { resourceType: 'Bundle', type: 'transaction', entry })
  for (const name of [patient, pulse]) {
    await database.query({
      text: "update version set content = rtrim(content, '}') where id = $1",
      values: [patientId(name)],
    })
  }
  const { blocks, manifest } = await exportByPatient(admin, `${patient}/$export`)
  t.equal(namesIn({ blocks }, patient).length, entry.length)
  t.notOk(namesIn({ blocks }, patient).includes(patient))
  const lines = (await fetchExportLines(admin, manifest.error)).get('OperationOutcome') ?? []
  t.equal(lines.length, 2)
  for (const type of ['Patient', 'Observation']) {
    t.match(lines.join('\n'), `A ${type} cannot be read`)
  }
})

t.test('reports an unreadable earlier version of a Provenance', async (t) => {
  const patient = await aNewPatient()
  const [unreadable, kept] = [await about(patient), await about(patient)]
  const last = await admin.create(anOrganization())
  await untilPast(database)
  const held = await holdRow(database, last.id)
  t.teardown(held.release)
  for (const name of [unreadable, kept]) await admin.del(name)
  await database.query({
    text: "update version set content = rtrim(content, '}') where id = $1 and ver = 1",
    values: [patientId(unreadable)],
  })
  const exported = await exportByPatient(admin, `${patient}/$export`)
  t.same(provenanceIn(exported, patient), [kept])
  const lines = await fetchExportLines(admin, exported.manifest.error)
  t.match(lines.get('OperationOutcome'), [/An earlier version of a Provenance cannot be read/])
  t.match(lines.get('OperationOutcome'), [patientId(unreadable)])
})

async function aNewPatient(): Promise<string> {
  return lineReference((await admin.create(aPatient())) as Line)
}

async function createPulse(patient: string): Promise<string> {
  return lineReference((await admin.create(anObservation(patient))) as Line)
}

function about(...targets: string[]): Promise<string> {
  return aboutAt('2024-01-01T00:00:00Z', ...targets)
}

async function aboutAt(recorded: string, ...targets: string[]): Promise<string> {
  return lineReference((await admin.create(aProvenance(targets, recorded))) as Line)
}

function provenanceIn(exported: Parameters<typeof namesIn>[0], reference: string): string[] {
  return namesIn(exported, reference).filter((name) => name.startsWith('Provenance/'))
}

function patientId(name: string): string {
  return name.slice(name.indexOf('/') + 1)
}
