import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import type { Client } from '../../../fixtures/client.ts'
import { fetchExportLines, fetchManifest, kickOff } from '../../../fixtures/exports/exports.ts'
import {
  BY_PATIENT,
  exportByPatient,
  type Line,
  lineReference,
  namesIn,
  type Organized,
} from '../../../fixtures/exports/patient-exports.ts'
import type { Resource } from '../../../fixtures/fhir.ts'
import { anObservation, syntheaTexts } from '../../../fixtures/resources.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { admin: stranger } = await botica.createTenant()

const json = { 'Content-Type': 'application/fhir+json' }
const texts = await syntheaTexts()
for (const text of texts) await admin.post('', text, json)
await stranger.post('', texts[0], json)
const all = (await findPatients(admin)).map(toReference).sort()
const [first = '', second = '', third = ''] = all
const group = await admin.create({
  resourceType: 'Group',
  type: 'person',
  actual: true,
  member: [first, second].map((reference) => ({ entity: { reference } })),
})
const shared = await admin.create(
  anObservation(first, { performer: [{ reference: second }], valueString: 'shared' }),
)

t.test('writes a block as a header, its Patient and the rest of the compartment', async (t) => {
  for (const [path, members] of [
    [`Group/${group.id}/$export`, [first, second]],
    ['Patient/$export', all],
    [`${first}/$export`, [first]],
    ['$export', all],
  ] as const) {
    const exported = await exportByPatient(admin, path)
    t.equal(exported.manifest.outputOrganizedBy, 'Patient')
    t.same([...exported.blocks.keys()].sort(), members, path)
    t.equal(exported.manifest.error.length, path === '$export' ? 1 : 0, 'omits excluded patients')
    for (const reference of members) {
      const lines = exported.blocks.get(reference) ?? []
      t.equal(lineReference(lines[0] as Line), reference, 'begins with the Patient')
      t.same(namesIn(exported, reference), await readCompartment(admin, reference))
      t.ok(lines.length > 20)
    }
    for (const file of exported.manifest.output) t.same(Object.keys(file).sort(), ['count', 'url'])
  }
})

t.test('writes the lines that a read returns', async (t) => {
  const { blocks } = await exportByPatient(admin, `${third}/$export`)
  for (const line of blocks.get(third) ?? []) {
    t.same(line, (await admin.get(lineReference(line))).body, lineReference(line))
  }
})

t.test('repeats a resource of several compartments in each of their blocks', async (t) => {
  const exported = await exportByPatient(admin, `Group/${group.id}/$export`)
  for (const reference of [first, second]) {
    t.ok(namesIn(exported, reference).includes(`Observation/${shared.id}`), reference)
  }
})

t.test('exports only patients of the Project of the caller', async (t) => {
  const own = (await findPatients(stranger)).map(toReference)
  const exported = await exportByPatient(stranger, 'Patient/$export')
  t.same([...exported.blocks.keys()], own)
  t.same(namesIn(exported, own[0] ?? ''), await readCompartment(stranger, own[0] ?? ''))
  t.equal((await stranger.get(`Group/${group.id}/$export?${BY_PATIENT}`)).status, 404)
})

t.test('narrows blocks by types, filters and elements', async (t) => {
  const path = `Group/${group.id}/$export`
  const typed = await exportByPatient(admin, `${path}?_type=Observation,Condition`)
  const wanted = new Set(['Observation', 'Condition'])
  for (const reference of [first, second]) {
    const expected = (await readCompartment(admin, reference)).filter((name) =>
      wanted.has(name.slice(0, name.indexOf('/'))),
    )
    t.same(namesIn(typed, reference), expected, 'omits a Patient outside _type')
  }
  const filter = encodeURIComponent('Observation?value-string=shared')
  const filtered = await exportByPatient(admin, `${path}?_type=Observation&_typeFilter=${filter}`)
  for (const reference of [first, second]) {
    t.same(namesIn(filtered, reference), [`Observation/${shared.id}`])
  }
  const nobody = encodeURIComponent('Observation?value-string=none')
  const none = await exportByPatient(admin, `${path}?_type=Observation&_typeFilter=${nobody}`)
  t.same([none.manifest.output, none.blocks.size], [[], 0], 'omits empty blocks')
  const some = await exportByPatient(admin, `${path}?_type=Patient&_elements=Patient.gender`)
  const [patient] = some.blocks.get(first) ?? []
  t.same(Object.keys(patient ?? {}).sort(), ['gender', 'id', 'meta', 'resourceType'])
  t.match(JSON.stringify(patient?.meta), '"SUBSETTED"')
})

t.test('exports changes since _since and lists deletions', async (t) => {
  const { manifest } = await exportByPatient(admin, `${first}/$export?_type=Patient`)
  const since = encodeURIComponent(manifest.transactionTime)
  const lost = await admin.create(anObservation(first))
  const made = await admin.create(anObservation(first))
  await admin.del(`Observation/${lost.id}`)
  for (const path of [`Group/${group.id}/$export`, 'Patient/$export']) {
    const exported = await exportByPatient(admin, `${path}?_since=${since}`)
    t.same([...exported.blocks.keys()], [first], path)
    t.same(namesIn(exported, first), [`Observation/${made.id}`], 'directly after the header')
    const deleted = exported.manifest.deleted ?? []
    t.match(deleted, [{ type: 'Bundle', count: 1 }])
    const [line = ''] = (await fetchExportLines(admin, deleted)).get('Bundle') ?? []
    t.match(line, `"Observation/${lost.id}"`)
  }
  await admin.del(`Observation/${made.id}`)
})

t.test('exports the compartments as of _until', async (t) => {
  const before = await exportByPatient(admin, 'Patient/$export')
  const until = encodeURIComponent(before.manifest.transactionTime)
  const [moved, gone] = (before.blocks.get(third) ?? []).filter(
    ({ resourceType }) => resourceType === 'Observation',
  )
  if (moved === undefined || gone === undefined) throw new Error('There are no Observations')
  const elsewhere = { ...moved, subject: { reference: first } }
  t.equal((await admin.put(lineReference(moved), elsewhere)).status, 200)
  t.equal((await admin.del(lineReference(gone))).status, 200)
  const added = await admin.create(anObservation(third))
  const after = await exportByPatient(admin, `Patient/$export?_until=${until}`)
  t.same([...after.blocks.keys()].sort(), [...before.blocks.keys()].sort())
  const leftOut = new Set([`Observation/${moved.id}`])
  for (const reference of all) {
    // A version at exactly _until is not before it.
    t.same(withoutNames(after, reference, leftOut), withoutNames(before, reference, leftOut))
  }
  t.ok(namesIn(after, third).includes(`Observation/${moved.id}`))
  t.notOk(namesIn(after, first).includes(`Observation/${moved.id}`))
  const now = await exportByPatient(admin, `Group/${group.id}/$export`)
  t.ok(namesIn(now, first).includes(`Observation/${moved.id}`))
  await admin.del(`Observation/${added.id}`)
})

t.test('reports excluded members of a Group as a number', async (t) => {
  const clinician = await admin.create({ resourceType: 'Practitioner', active: true })
  const mixed = await admin.create({
    resourceType: 'Group',
    type: 'person',
    actual: true,
    member: [second, 'Patient/nobody', `Practitioner/${clinician.id}`].map((reference) => ({
      entity: { reference },
    })),
  })
  const exported = await exportByPatient(admin, `Group/${mixed.id}/$export`)
  t.same([...exported.blocks.keys()], [second])
  const lines =
    (await fetchExportLines(admin, exported.manifest.error)).get('OperationOutcome') ?? []
  t.equal(lines.length, 2)
  t.match(lines.join('\n'), '1 members of the Group are no patients')
  t.match(lines.join('\n'), '1 members of the Group are not there')
})

t.test('rejects organizeOutputBy other than Patient', async (t) => {
  for (const type of ['Group', 'Organization', 'Nothing', 'patient']) {
    const { status, body } = await admin.get<Resource>(`Patient/$export?organizeOutputBy=${type}`)
    t.equal(status, 400, type)
    t.match(body.issue, [{ code: 'not-supported', expression: ['organizeOutputBy'] }])
  }
  t.equal(
    (await admin.get(`Patient/$export?${BY_PATIENT}&${BY_PATIENT}`)).status,
    400,
    'writes each once',
  )
  const types = `Group/${group.id}/$export?_type=Practitioner`
  t.equal((await admin.get(`${types}&${BY_PATIENT}`)).status, 400, 'outside every compartment')
  const lenient = { Prefer: 'respond-async, handling=lenient' }
  const url = await kickOff(admin, '$export?_type=Patient&organizeOutputBy=Group', lenient)
  const manifest = await fetchManifest(admin, url)
  t.match(manifest, { output: [{ type: 'Patient' }], error: [{ count: 1 }] })
  const asked = { resourceType: 'Parameters', parameter: [] as unknown[] }
  asked.parameter.push({ name: 'organizeOutputBy', valueString: 'Patient' })
  asked.parameter.push({ name: 'patient', valueReference: { reference: first } })
  const named = await admin.post('Patient/$export', asked)
  t.equal(named.status, 202)
  const status = named.headers.get('content-location') ?? ''
  t.match(await fetchManifest(admin, status), { outputOrganizedBy: 'Patient' })
  const record = `BulkDataExport/${status.slice(status.lastIndexOf('/') + 1)}`
  t.match((await admin.get<Resource>(record)).body, { output: [{ type: 'Patient' }] })
})

function withoutNames(exported: Organized, reference: string, names: ReadonlySet<string>) {
  return namesIn(exported, reference).filter((name) => !names.has(name))
}

async function findPatients(client: Client) {
  const { body } = await client.get<{ entry: { resource: { id: string } }[] }>('Patient')
  return body.entry.map(({ resource }) => resource)
}

function toReference({ id }: { readonly id: string }): string {
  return `Patient/${id}`
}

interface Page {
  readonly entry: readonly { readonly resource: Line; readonly search: { readonly mode: string } }[]
  readonly link: readonly { readonly relation: string }[]
}

/** Returns `Type/id` of the resources of `$everything`, without those that are only referenced. */
async function readCompartment(client: Client, reference: string): Promise<string[]> {
  const { body } = await client.get<Page>(`${reference}/$everything?_count=5000`)
  if (body.link.some(({ relation }) => relation === 'next')) throw new Error('There is more')
  const found = body.entry.filter(({ search }) => search.mode === 'match')
  return found.map(({ resource }) => lineReference(resource)).sort()
}
