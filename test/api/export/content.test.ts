import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import {
  type Exported,
  exportAll,
  exportedAt,
  fetchExportLines,
  fetchManifest,
  idsIn,
  kickOff,
} from '../../fixtures/exports/exports.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anEncounter, anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, services } = botica
const { client } = await botica.createMember()

const PROVENANCE = 'http://terminology.hl7.org/CodeSystem/v3-DataOperation'

t.test('exports no secret for any caller', async (t) => {
  const planted = ['clientSecret', 'idp', 'setting', 'captcha', 'header', 'extension'].map(
    (name) => `planted-${name}-7f3a`,
  )
  const [secret, idp, setting, captcha, header, extension] = planted
  const provider = { authorizeUrl: 'https://a.example', tokenUrl: 'https://b.example' }
  const application = await admin.create({ resourceType: 'ClientApplication', name: 'kept' })
  await plant('ClientApplication', application.id, (stored) => ({
    ...stored,
    secret,
    retiringSecret: secret,
    identityProvider: { ...provider, clientId: 'c', clientSecret: idp },
  }))
  await plant('Project', botica.project.id, (stored) => ({
    ...stored,
    secret: [{ name: 'key', valueString: setting }],
    systemSecret: [{ name: 'key', valueString: setting }],
    site: [{ name: 's', domain: ['s.example'], recaptchaSecretKey: captcha }],
  }))
  const subscription = await admin.create({
    resourceType: 'Subscription',
    status: 'off',
    reason: 'test',
    criteria: 'Patient?name=nobody',
    channel: { type: 'rest-hook', endpoint: 'https://hook.example', header: [`X-Key: ${header}`] },
  })
  await plant('Subscription', subscription.id, (stored) => ({
    ...stored,
    extension: [
      {
        url: 'https://www.medplum.com/fhir/StructureDefinition/subscription-secret',
        valueString: extension,
      },
    ],
  }))
  const types = 'ClientApplication,Project,Subscription,ProjectMembership,AccessPolicy,Bot'
  for (const caller of [admin, botica.superAdmin]) {
    const { output } = await fetchManifest(caller, await kickOff(caller, `$export?_type=${types}`))
    const lines = [...(await fetchExportLines(caller, output)).values()].flat().join('\n')
    for (const text of planted) t.notOk(lines.includes(text), text)
    if (caller !== admin) continue
    t.match(lines, 'https://hook.example')
    t.match(lines, 's.example')
    t.match(lines, '"name":"kept"')
  }
  const { output } = await fetchManifest(client, await kickOff(client, '$export'))
  const lines = [...(await fetchExportLines(client, output)).values()].flat().join('\n')
  for (const text of planted) t.notOk(lines.includes(text), text)
  t.equal((await client.get('$export?_type=ClientApplication')).status, 403)
  t.equal((await admin.get('$export?_type=User')).status, 400)
})

t.test('reports an unreadable row with its type when several types share a part', async (t) => {
  const { id } = await admin.create(aPatient())
  const subject = `Patient/${id}`
  const encounters = await Promise.all([1, 2].map(() => admin.create(anEncounter(subject))))
  await Promise.all(Array.from({ length: 120 }, () => admin.create(anObservation(subject))))
  const member = [{ entity: { reference: subject } }]
  const group = await admin.create({ resourceType: 'Group', type: 'person', actual: true, member })
  const spoil = (change: string) =>
    services.database.query({
      text: `update version set content = ${change} where content like $1`,
      values: [`%"id":"${encounters[0]?.id}"%`],
    })
  t.teardown(() => spoil("content || '}'"))
  await spoil("rtrim(content, '}')")
  const exported = await exportAll(admin, `Group/${group.id}/$export`)
  t.same(idsIn(exported, 'Encounter'), [encounters[1]?.id])
  t.equal(idsIn(exported, 'Observation').length, 120)
  const told = await fetchExportLines(admin, exported.manifest.error)
  t.match(told.get('OperationOutcome')?.join(), 'A Encounter cannot be read')
})

t.test('exports requested elements, mandatory elements and the SUBSETTED tag', async (t) => {
  const patient = await admin.create(aPatient())
  await admin.create(anObservation(`Patient/${patient.id}`))
  const path = 'Patient/$export?_elements=Patient.name,valueQuantity,value'
  t.equal((await client.get(path)).status, 400)
  const url = 'Patient/$export?_elements=Patient.name,effective,id'
  const exported = await exportAll(client, url)
  const [one] = exported.resources.get('Patient') ?? []
  t.same(Object.keys(one ?? {}).sort(), ['id', 'meta', 'name', 'resourceType'])
  t.match(one?.meta, { tag: [{ code: 'SUBSETTED' }] })
  const [pulse] = exported.resources.get('Observation') ?? []
  t.match(pulse, { status: 'final', code: {}, effectiveDateTime: String })
  t.notOk(pulse?.subject)
  for (const wrong of ['Patient.name.given', 'Nothing.name', 'nothing', 'Patient.nothing']) {
    t.equal((await client.get(`$export?_elements=${wrong}`)).status, 400, wrong)
  }
})

t.test('applies a _typeFilter as a search of its type only', async (t) => {
  const [old, young] = await Promise.all(
    ['1901-01-01', '2020-02-02'].map((birthDate) =>
      admin.create(aPatient({ birthDate, name: [{ family: 'Filter, Mary' }] })),
    ),
  )
  const pulse = await admin.create(anObservation(`Patient/${old?.id}`))
  const of = async (...filters: string[]) => {
    const query = filters.map((text) => `&_typeFilter=${encodeURIComponent(text)}`).join('')
    return exportAll(client, `$export?_type=Patient,Observation${query}`)
  }
  const aged = await of('Patient?birthdate=lt1902-01-01')
  t.same(idsIn(aged, 'Patient'), [old?.id])
  t.ok(idsIn(aged, 'Observation').includes(pulse.id))
  const both = ['Patient?birthdate=lt1902-01-01', 'Patient?birthdate=2020-02-02']
  const either = [old?.id ?? '', young?.id ?? ''].sort()
  t.same(idsIn(await of(...both), 'Patient'), either)
  t.same(idsIn(await of(both.join(',')), 'Patient'), either, 'splits at a comma before a filter')
  const named = await of('Patient?family=Filter\\, Mary&birthdate=2020-02-02')
  t.same(idsIn(named, 'Patient'), [young?.id], 'keeps a comma in a value')
  const chained = await of('Observation?subject:Patient.birthdate=1901-01-01')
  t.same(idsIn(chained, 'Observation'), [pulse.id])
  for (const wrong of [
    'Patient?_sort=name',
    'Patient?_include=Patient:organization',
    'Patient?nothing=1',
    'Patient',
    '?name=x',
    'Nothing?a=b',
    'Condition?code=1',
  ]) {
    const query = `_type=Patient&_typeFilter=${encodeURIComponent(wrong)}`
    t.equal((await client.get(`$export?${query}`)).status, 400, wrong)
  }
  t.equal(
    (await client.get('$export?_typeFilter=Patient?_count=1&organizeOutputBy=Patient')).status,
    400,
  )
  t.match(await client.get('Patient/$export?_typeFilter=Organization?name=x'), {
    status: 400,
    body: { issue: [{ expression: ['_typeFilter'], details: { text: /compartment/ } }] },
  })
})

t.test('accepts patients in POST only if they exist and belong to the Group', async (t) => {
  const [one, two] = await Promise.all([admin.create(aPatient()), admin.create(aPatient())])
  const pulse = await admin.create(anObservation(`Patient/${one.id}`))
  const group = await admin.create({
    resourceType: 'Group',
    type: 'person',
    actual: true,
    member: [{ entity: { reference: `Patient/${one.id}` } }],
  })
  const asked = (id: string, base = ''): Resource => ({
    resourceType: 'Parameters',
    parameter: [{ name: 'patient', valueReference: { reference: `${base}Patient/${id}` } }],
  })
  for (const path of ['Patient/$export', `Group/${group.id}/$export`]) {
    const answer = await client.post(path, asked(one.id))
    const url = answer.headers.get('content-location') ?? ''
    const found = await exportedAt(client, url)
    t.same(idsIn(found, 'Patient'), [one.id])
    t.same(idsIn(found, 'Observation'), [pulse.id])
  }
  t.equal((await client.post(`Group/${group.id}/$export`, asked(two.id))).status, 400)
  t.equal((await client.post('Patient/$export', asked('nobody'))).status, 400)
  const [own, foreign] = [`${botica.baseUrl}fhir/R4/`, 'https://example.com/fhir/R4/']
  t.equal((await client.post('Patient/$export', asked(one.id, own))).status, 202)
  t.equal((await client.post('Patient/$export', asked(one.id, foreign))).status, 400)
  t.equal((await client.post('$export', asked(one.id))).status, 400)
  t.equal((await client.get(`Patient/$export?patient=Patient/${one.id}`)).status, 400)
})

t.test('exports Provenance of the exported resources, all or only the latest', async (t) => {
  const patient = await admin.create(aPatient())
  const pulse = await admin.create(anObservation(`Patient/${patient.id}`))
  const clinic = await admin.create(anOrganization())
  const about = (reference: string, recorded: string) =>
    admin.create({
      resourceType: 'Provenance',
      target: [{ reference }],
      recorded,
      activity: { coding: [{ system: PROVENANCE, code: 'CREATE' }] },
      agent: [{ who: { reference: `Patient/${patient.id}` } }],
    })
  const first = await about(`Observation/${pulse.id}`, '2024-01-01T00:00:00Z')
  const second = await about(`Observation/${pulse.id}`, '2024-02-01T00:00:00+01:00')
  const ofClinic = await about(`Organization/${clinic.id}`, '2024-01-01T00:00:00Z')
  const both = [first.id, second.id].sort()
  const path = `Patient/${patient.id}/$export`
  t.same(idsIn(await exportAll(client, path), 'Provenance'), both)
  const relevant = 'includeAssociatedData=RelevantProvenanceResources'
  const latest = 'includeAssociatedData=LatestProvenanceResources'
  const only = await exportAll(client, `${path}?_type=Observation`)
  t.notOk(only.resources.has('Provenance'))
  const named = await exportAll(client, `${path}?_type=Observation&${relevant}`)
  t.same(idsIn(named, 'Provenance'), both)
  const newest = await exportAll(client, `${path}?${latest}`)
  t.same(idsIn(newest, 'Provenance'), [second.id])
  t.same(idsIn(await exportAll(client, `${path}?${latest}&${relevant}`), 'Provenance'), both)
  t.same(idsIn(await exportAll(client, `${path}?_type=Patient&${relevant}`), 'Provenance'), [])
  const system = idsIn(await exportAll(client, '$export?_type=Provenance'), 'Provenance')
  for (const id of [...both, ofClinic.id]) t.ok(system.includes(id))
  t.equal((await client.get('$export?includeAssociatedData=Everything')).status, 400)
})

t.test('lists resources deleted since _since and omits them from the output', async (t) => {
  const [kept, gone, after] = await Promise.all([
    admin.create(anOrganization()),
    admin.create(anOrganization()),
    admin.create(anOrganization()),
  ])
  const patient = await admin.create(aPatient())
  const pulse = await admin.create(anObservation(`Patient/${patient.id}`))
  const first = await exportAll(client, '$export?_type=Organization')
  const since = encodeURIComponent(first.manifest.transactionTime)
  const brief = await admin.create(anOrganization())
  for (const { id } of [gone, brief]) await admin.del(`Organization/${id}`)
  await admin.del(`Observation/${pulse.id}`)
  const next = await exportAll(client, `$export?_type=Organization&_since=${since}`)
  const urls = await deletionsIn(client, next)
  t.same(urls, [`Organization/${brief.id}`, `Organization/${gone.id}`].sort())
  t.same(next.manifest.output, [])
  const compartment = `Patient/${patient.id}/$export?_since=${since}`
  t.same(await deletionsIn(client, await exportAll(client, compartment)), [
    `Observation/${pulse.id}`,
  ])
  t.notOk((await exportAll(client, '$export?_type=Organization')).manifest.deleted)
  const group = await admin.create({
    resourceType: 'Group',
    type: 'person',
    actual: true,
    member: [{ entity: { reference: `Patient/${patient.id}` } }],
  })
  await admin.del(`Patient/${patient.id}`)
  const ofGroup = await exportAll(client, `Group/${group.id}/$export?_since=${since}`)
  const lost = [`Observation/${pulse.id}`, `Patient/${patient.id}`]
  t.same(await deletionsIn(client, ofGroup), lost, 'lists deleted patients of a Group')
  await admin.del(`Organization/${after.id}`)
  const until = encodeURIComponent(next.manifest.transactionTime)
  const before = await exportAll(client, `$export?_type=Organization&_until=${until}`)
  const ids = idsIn(before, 'Organization')
  t.ok(ids.includes(kept.id) && ids.includes(after.id), 'lists deletions as of the export time')
  t.notOk(ids.includes(gone.id))
})

/** Changes stored content directly, like data of an older release. */
async function plant(
  type: string,
  id: string | undefined,
  change: (stored: Record<string, unknown>) => Record<string, unknown>,
): Promise<void> {
  const { database } = services
  const [row] = await database.query<{ content: string; lu: Date }>({
    text: `select content, lu from version where content is not null and content like $1
      order by lu desc limit 1`,
    values: [`{"resourceType":"${type}","id":"${id}"%`],
  })
  if (row === undefined) throw new Error(`There is no ${type}/${id}`)
  await database.query({
    text: 'update version set content = $2 where content = $1 and lu = $3',
    values: [row.content, JSON.stringify(change(JSON.parse(row.content))), row.lu],
  })
}

async function deletionsIn(caller: Client, { manifest }: Exported): Promise<string[]> {
  const lines = await fetchExportLines(caller, manifest.deleted ?? [])
  const bundles = (lines.get('Bundle') ?? []).map((line) => JSON.parse(line))
  return bundles
    .flatMap(({ entry }) => entry.map((one: { request: { url: string } }) => one.request.url))
    .sort()
}
