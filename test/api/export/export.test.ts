import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import {
  ended,
  exportAll,
  exportId,
  fetchExportLines,
  fetchManifest,
  idsIn,
  kickOff,
  statusUrl,
} from '../../fixtures/exports/exports.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anObservation, anOrganization, aPatient, syntheaTexts } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  // Export parts are in the database, and a worker of another test file would take them.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database } = botica.services
const { storageUrl } = botica.services.config
const { client } = await botica.createMember()
const { client: other } = await botica.createMember()
const { admin: stranger } = await botica.createTenant()

const json = { 'Content-Type': 'application/fhir+json' }
for (const text of (await syntheaTexts()).slice(0, 2)) await admin.post('', text, json)
const lonely = await admin.create(aPatient())
const pulse = await admin.create(anObservation(`Patient/${lonely.id}`))
const clinic = await admin.create(anOrganization())
await stranger.create(aPatient())

t.test('exports each resource of a project once, as a read returns it', async (t) => {
  const exported = await exportAll(client, '$export')
  const { manifest, resources } = exported
  t.equal(manifest.requiresAccessToken, true)
  t.match(manifest.request, /\/fhir\/R4\/\$export$/)
  t.same(manifest.error, [])
  t.notOk(manifest.deleted)
  const types = manifest.output.map(({ type }) => type)
  t.same(types, types.toSorted(), 'lists files in the order of their names')
  for (const [type, all] of resources) {
    const found = await client.get<{ total: number }>(`${type}?_summary=count`)
    t.equal(all.length, found.body.total, type)
    t.equal(new Set(all.map(({ id }) => id)).size, all.length, `has no duplicate ${type}`)
    t.ok(all.every(({ meta }) => (meta?.lastUpdated ?? '') <= manifest.transactionTime))
  }
  t.ok(resources.size > 10)
  t.notOk(resources.has('ClientApplication'))
  t.notOk(resources.has('Project'))
})

t.test('writes each line as the text that a read returns', async (t) => {
  const { output } = await fetchManifest(
    client,
    await kickOff(client, '$export?_type=Patient,Claim'),
  )
  t.same(
    output.map(({ type }) => type),
    ['Claim', 'Patient'],
  )
  for (const [type, lines] of await fetchExportLines(client, output)) {
    for (const line of lines) {
      const { id } = JSON.parse(line)
      t.equal(line, (await client.get(`${type}/${id}`)).text)
    }
  }
})

t.test('exports patients with the contents of their compartments only', async (t) => {
  const exported = await exportAll(client, 'Patient/$export')
  t.ok(idsIn(exported, 'Patient').includes(lonely.id))
  t.ok(idsIn(exported, 'Observation').includes(pulse.id))
  t.notOk(exported.resources.has('Organization'))
  const one = await exportAll(client, `Patient/${lonely.id}/$export`)
  t.same([...one.resources.keys()].sort(), ['Observation', 'Patient'])
  t.same(idsIn(one, 'Observation'), [pulse.id])
})

t.test('exports the compartments of the patients of a Group and of nested Groups', async (t) => {
  const inner = await admin.create(aGroup(`Patient/${lonely.id}`))
  const outer = await admin.create(aGroup(`Group/${inner.id}`, 'Patient/unknown'))
  const exported = await exportAll(client, `Group/${outer.id}/$export`)
  // A Group belongs to the compartments of its members.
  t.same([...exported.resources.keys()].sort(), ['Group', 'Observation', 'Patient'])
  t.same(idsIn(exported, 'Patient'), [lonely.id])
  const [told] = exported.manifest.error
  t.match(told, { type: 'OperationOutcome', count: 1 })
  const empty = await admin.create(aGroup())
  t.same((await exportAll(client, `Group/${empty.id}/$export`)).manifest.output, [])
  t.equal((await client.get('Group/nobody/$export')).status, 404)
  t.equal((await stranger.get(`Group/${inner.id}/$export`)).status, 404)
})

t.test('reports nested Groups that are not there and members of other servers', async (t) => {
  const elsewhere = 'https://example.com/fhir/R4/Patient/1'
  const members = [`Patient/${lonely.id}`, 'Group/unknown', elsewhere].map((reference) => ({
    entity: { reference },
  }))
  const named = { entity: { identifier: { system: 'https://example.com/mrn', value: '1' } } }
  const outer = await admin.create({ ...aGroup(), member: [...members, named] })
  const exported = await exportAll(client, `Group/${outer.id}/$export`)
  t.same(idsIn(exported, 'Patient'), [lonely.id])
  const lines = await fetchExportLines(client, exported.manifest.error)
  t.match(lines.get('OperationOutcome'), [/3 members of the Group are not there/])
})

t.test('accepts the same parameters in a POST body', async (t) => {
  const parameter = [{ name: '_type', valueString: 'Organization' }]
  const url = statusUrl(await client.post('$export', { resourceType: 'Parameters', parameter }))
  const { output } = await fetchManifest(client, url)
  t.ok(output.length === 1 && output[0]?.type === 'Organization')
  statusUrl(await client.post('Patient/$export?_type=Patient'))
  t.equal((await client.post('$export', clinic)).status, 400)
})

t.test('returns the request URL as the client wrote it', async (t) => {
  const asked = '$export?_type=Organization,Patient&_since=2999-01-01T00:00:00Z'
  for (const url of [statusUrl(await client.get(asked)), statusUrl(await client.post(asked))]) {
    const { request } = await fetchManifest(client, url)
    t.equal(request, `${botica.baseUrl}fhir/R4/${asked}`)
  }
  const entry = [{ request: { method: 'GET', url: '$export?_type=Patient' } }]
  const batch = { resourceType: 'Bundle', type: 'batch', entry }
  const { body } = await client.post<{ entry: { response: { outcome: Resource } }[] }>('', batch)
  t.equal(body.entry[0]?.response.outcome.id, 'accepted')
  const jobs = await client.get<{ entry: { resource: Resource }[] }>('BulkDataExport?_count=200')
  const requests = jobs.body.entry.map(({ resource }) => resource.request)
  t.ok(requests.includes(`${botica.baseUrl}fhir/R4/$export?_type=Patient`), requests.join())
})

t.test('exports only changes since _since, and loses none in a chain of exports', async (t) => {
  const first = await exportAll(client, '$export?_type=Organization')
  const since = encodeURIComponent(first.manifest.transactionTime)
  const added = await admin.create(anOrganization())
  const next = await exportAll(client, `$export?_type=Organization&_since=${since}`)
  t.same(idsIn(next, 'Organization'), [added.id])
  const future = await exportAll(client, '$export?_since=2999-01-01T00:00:00Z')
  t.same(future.manifest.output, [])
})

t.test('reports every error of a request, unless handling is lenient', async (t) => {
  const refused = await client.get<Resource & { issue: { expression: string[] }[] }>(
    '$export?_type=Nothing,AsyncJob&_since=yesterday&_outputFormat=csv&colour=red',
  )
  t.equal(refused.status, 400)
  const named = refused.body.issue.map(({ expression }) => expression[0])
  t.same(named.toSorted(), ['_outputFormat', '_since', '_type', '_type', 'colour'])
  t.equal((await client.get('Patient/$export?_type=Organization')).status, 400)
  const lenient = { Prefer: 'respond-async, handling=lenient' }
  const url = await kickOff(client, '$export?_type=Patient,Nothing&colour=red', lenient)
  const { error } = await fetchManifest(client, url)
  t.match(error, [{ type: 'OperationOutcome', count: 2 }])
  for (const since of ['yesterday', '0001-01-01T00:00:00%2B14:00', '9999-12-31T23:59:59-14:00']) {
    t.equal((await client.get(`$export?_since=${since}`, lenient)).status, 400, since)
  }
})

t.test('rejects a parameter without a readable value, even if handling is lenient', async (t) => {
  const lenient = { Prefer: 'handling=lenient' }
  const send = (parameter: object) =>
    client.post('Patient/$export', { resourceType: 'Parameters', parameter: [parameter] }, lenient)
  for (const parameter of [
    { name: 'patient', valueReference: { display: 'Peter' } },
    { name: 'patient', valueReference: { reference: '' } },
    { name: '_since', valueDate: '2026-01-31' },
    { name: '_type', valueInteger: 1 },
  ]) {
    t.match(
      await send(parameter),
      { status: 400, body: { issue: [{ expression: ['Parameters.parameter[0]'] }] } },
      JSON.stringify(parameter),
    )
  }
  statusUrl(await send({ name: 'colour', valueInteger: 1 }))
})

t.test('reports names with NUL and names that are cut within a character', async (t) => {
  const long = `${'x'.repeat(63)}${encodeURIComponent('😀')}`
  const lenient = { Prefer: 'handling=lenient' }
  const url = await kickOff(client, `$export?_type=Organization,${long}&col%00our=red`, lenient)
  const { error } = await fetchManifest(client, url)
  t.match(error, [{ type: 'OperationOutcome', count: 2 }])
})

t.test('reports the progress of a running export', async (t) => {
  const url = await kickOff(client, '$export')
  const answer = await client.get(url)
  if (answer.status === 202) {
    t.match(answer.headers.get('x-progress'), /^\d+% complete, \d+ of \d+ parts$/)
    t.match(answer.headers.get('retry-after'), /^\d+$/)
    t.equal(answer.text, '')
  }
  const done = await ended(client, url)
  t.ok(Date.parse(done.headers.get('expires') ?? '') > Date.now())
})

t.test('shows an export only to its owner and to project admins', async (t) => {
  const url = await kickOff(client, '$export?_type=Patient')
  const { output } = await fetchManifest(client, url)
  for (const caller of [other, stranger]) {
    t.equal((await caller.get(url)).status, 404)
    t.equal((await caller.del(url)).status, 404)
    t.equal((await caller.get(output[0]?.url ?? '')).status, 404)
  }
  t.equal((await admin.get(url)).status, 200)
})

t.test('returns 404 for a cancelled export', async (t) => {
  const url = await kickOff(client, '$export?_type=Patient')
  const { output } = await fetchManifest(client, url)
  t.equal((await client.del(url)).status, 202)
  for (const gone of [url, output[0]?.url ?? '']) t.equal((await client.get(gone)).status, 404)
  t.equal((await client.del(url)).status, 404)
  await until(async () => (await listFiles(url)).length === 0, 60_000)
})

t.test('returns 404 for an expired export and its files', async (t) => {
  const url = await kickOff(client, '$export?_type=Patient')
  const { output } = await fetchManifest(client, url)
  t.ok((await listFiles(url)).length > 0)
  await database.query({
    text: 'update export_job set expires = clock_timestamp() where id = $1',
    values: [exportId(url)],
  })
  for (const gone of [url, output[0]?.url ?? '']) t.equal((await client.get(gone)).status, 404)
  await until(async () => (await listFiles(url)).length === 0, 60_000)
})

async function listFiles(url: string): Promise<string[]> {
  const folder = join(storageUrl.slice('file:'.length), 'exports', botica.project.id ?? '')
  return await readdir(join(folder, exportId(url))).catch(() => [])
}

function aGroup(...members: string[]): Resource {
  return {
    resourceType: 'Group',
    type: 'person',
    actual: true,
    ...(members.length === 0
      ? {}
      : { member: members.map((reference) => ({ entity: { reference } })) }),
  }
}
