import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { fetchExportLines, fetchManifest, kickOff } from '../../../fixtures/exports/exports.ts'
import {
  BY_PATIENT,
  exportByPatient,
  type Line,
  lineReference,
  namesIn,
} from '../../../fixtures/exports/patient-exports.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { clientUnder } from '../../../fixtures/policy/policy.ts'
import { anObservation, aPatient } from '../../../fixtures/resources.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { admin: stranger } = await botica.createTenant()

const [mine, theirs] = await Promise.all(
  ['1900-01-01', '2000-01-01'].map(async (birthDate) => {
    const telecom = [{ system: 'phone', value: '1' }]
    return lineReference((await admin.create(aPatient({ birthDate, telecom }))) as Line)
  }),
)
if (mine === undefined || theirs === undefined) throw new Error('There are no patients')
const foreign = lineReference(
  (await stranger.create(aPatient({ birthDate: '1900-01-01' }))) as Line,
)
const [pulse, draft, other] = [
  await createPulse(mine),
  await createPulse(mine, { status: 'preliminary' }),
  await createPulse(theirs),
]
const group = await admin.create({
  resourceType: 'Group',
  type: 'person',
  actual: true,
  member: [mine, theirs, foreign].map((reference) => ({ entity: { reference } })),
})
const LEVELS = ['$export', 'Patient/$export', `Group/${group.id}/$export`, `${mine}/$export`]
const ONLY_MINE = 'Patient?birthdate=lt1950'

t.test('applies policy criteria at every level', async (t) => {
  const client = await clientUnder(
    botica,
    { resourceType: 'Patient', criteria: ONLY_MINE },
    { resourceType: 'Observation', criteria: 'Observation?status=final' },
    { resourceType: 'Group' },
  )
  for (const path of LEVELS) {
    const { blocks, manifest } = await exportByPatient(client, path)
    t.same([...blocks.keys()], [mine], path)
    t.same(namesIn({ blocks }, mine), [`Group/${group.id}`, mine, pulse].sort(), path)
    if (!path.startsWith('Group')) continue
    const [line = ''] =
      (await fetchExportLines(client, manifest.error)).get('OperationOutcome') ?? []
    t.match(line, '2 members of the Group are not there or may not be read')
  }
  t.equal((await client.get(`${theirs}/$export?${BY_PATIENT}`)).status, 404)
})

t.test('omits hidden fields from every line, by the first matching policy entry', async (t) => {
  const client = await clientUnder(
    botica,
    { resourceType: 'Patient', criteria: ONLY_MINE, hiddenFields: ['telecom', 'name.given'] },
    { resourceType: 'Patient', hiddenFields: ['birthDate'] },
    { resourceType: 'Observation', criteria: 'Observation?status=final', hiddenFields: ['code'] },
    { resourceType: 'Observation', hiddenFields: ['valueQuantity'] },
  )
  const { blocks } = await exportByPatient(client, 'Patient/$export')
  t.same([...blocks.keys()].sort(), [mine, theirs].sort())
  t.same(namesIn({ blocks }, mine), [mine, pulse, draft].sort())
  const lines = [...blocks.values()].flat()
  for (const line of lines)
    t.same(line, (await client.get(lineReference(line))).body, lineReference(line))
  const texts = new Map(lines.map((line) => [lineReference(line), JSON.stringify(line)]))
  t.notMatch(texts.get(mine), 'telecom')
  t.match(texts.get(mine), '"birthDate"')
  t.notMatch(texts.get(theirs), 'birthDate')
  t.notMatch(texts.get(pulse), '"code":{')
  t.notMatch(texts.get(draft), 'valueQuantity')
  t.match(texts.get(draft), '"code":{')
  t.notMatch(texts.get(other), '"code":{')
})

t.test('applies to an earlier version the grant of that version', async (t) => {
  const { manifest } = await exportByPatient(admin, `${mine}/$export?_type=Patient`)
  const until = encodeURIComponent(manifest.transactionTime)
  const client = await clientUnder(
    botica,
    { resourceType: 'Patient' },
    { resourceType: 'Observation', criteria: 'Observation?status=final', hiddenFields: ['code'] },
    { resourceType: 'Observation', criteria: 'Observation?status=amended' },
  )
  const before = (await admin.get<Resource>(pulse)).body
  await admin.put(pulse, { ...before, status: 'amended' })
  const now = await exportByPatient(client, `${mine}/$export?_type=Observation`)
  t.match(now.blocks.get(mine), [{ status: 'amended', code: {} }])
  const then = await exportByPatient(client, `${mine}/$export?_type=Observation&_until=${until}`)
  t.match(then.blocks.get(mine), [{ status: 'final', code: undefined }])
  await admin.put(pulse, before)
})

t.test('does not reveal the subject of a resource by the block that contains it', async (t) => {
  const blind = await clientUnder(
    botica,
    { resourceType: 'Patient' },
    { resourceType: 'Observation', hiddenFields: ['subject'] },
  )
  const { blocks } = await exportByPatient(blind, 'Patient/$export')
  t.same(namesIn({ blocks }, mine), [mine])
})

t.test('rejects an export immediately if the caller may not read Patients', async (t) => {
  const client = await clientUnder(
    botica,
    { resourceType: 'Observation' },
    { resourceType: 'Group' },
  )
  for (const path of LEVELS.slice(0, 3)) {
    const { status, body } = await client.get<Resource>(`${path}?${BY_PATIENT}`)
    t.equal(status, 403, path)
    t.match(body, { resourceType: 'OperationOutcome', issue: [{ code: 'forbidden' }] })
  }
})

t.test('serves files only to their owner, and deletes them with the export', async (t) => {
  const client = await clientUnder(botica, { resourceType: 'Patient' })
  const url = await kickOff(client, `Patient/$export?${BY_PATIENT}`)
  const [file] = (await fetchManifest(client, url)).output
  for (const caller of [stranger, await clientUnder(botica, { resourceType: 'Patient' })]) {
    t.equal((await caller.get(url)).status, 404)
    t.equal((await caller.get(file?.url ?? '')).status, 404)
  }
  t.equal((await client.del(url)).status, 202)
  t.equal((await client.get(file?.url ?? '')).status, 404)
})

async function createPulse(patient: string, more: Partial<Line> = {}): Promise<string> {
  return lineReference((await admin.create(anObservation(patient, more))) as Line)
}
