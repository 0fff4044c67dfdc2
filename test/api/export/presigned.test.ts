import { createHash, createHmac } from 'node:crypto'
import { readdirSync } from 'node:fs'
import t from 'tap'
import { openBucket } from '../../fixtures/binaries.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import {
  fetchExportLines,
  fetchManifest,
  kickOff,
  type Manifest,
} from '../../fixtures/exports/exports.ts'
import { anObservation, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const bucket = await openBucket(t)
const storageUrl = bucket.env.STORAGE_URL ?? ''
const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t), STORAGE_URL: `${storageUrl}&presigned=true` },
})
const { admin, services } = botica
const endpoint = new URL(storageUrl).searchParams.get('endpoint') ?? ''
const DONE_MS = 60_000

const gone = await admin.create(aPatient())
const patients = [await admin.create(aPatient()), await admin.create(aPatient())]
await admin.del(`Patient/${gone.id}`)
const group = await admin.create({
  resourceType: 'Group',
  type: 'person',
  actual: true,
  member: ['unknown', ...patients.map(({ id }) => id)].map((id) => ({
    entity: { reference: `Patient/${id}` },
  })),
})
const asked = `Group/${group.id}/$export?_type=Patient`
const url = await kickOff(admin, asked)
const manifest = await fetchManifest(admin, url)
const id = url.slice(url.lastIndexOf('/') + 1)

t.test('serves the files of a manifest from the bucket without a token', async (t) => {
  t.equal(manifest.requiresAccessToken, false)
  t.match(manifest, { output: [{ type: 'Patient', count: 2 }], error: [{ count: 1 }] })
  for (const { url: address } of [...manifest.output, ...manifest.error]) {
    t.equal(new URL(address).origin, endpoint)
    t.equal(new URL(address).searchParams.get('X-Amz-Expires'), '300')
  }
  const file = await fetch(manifest.output[0]?.url ?? '')
  t.equal(file.status, 200)
  t.equal(file.headers.get('content-type'), 'application/fhir+ndjson')
  t.equal(file.headers.get('content-disposition'), 'attachment; filename=1.Patient.ndjson')
  const text = await file.text()
  const reads = await Promise.all(patients.map((one) => admin.get(`Patient/${one.id}`)))
  t.same(text.trimEnd().split('\n').sort(), reads.map((read) => read.text).sort())
  const some = await fetch(manifest.output[0]?.url ?? '', { headers: { Range: 'bytes=2-9' } })
  t.equal(some.status, 206)
  t.equal(await some.text(), text.slice(2, 10))
  const told = await (await fetch(manifest.error[0]?.url ?? '')).json()
  t.match(told, { resourceType: 'OperationOutcome' })
})

t.test('serves files organized by patient from the bucket without a token', async (t) => {
  const { output, error } = await fetchManifest(
    admin,
    await kickOff(admin, `${asked}&organizeOutputBy=Patient`),
  )
  t.equal(output.length, 1)
  t.equal(error.length, 1)
  const file = await fetch(output[0]?.url ?? '')
  const lines = (await file.text()).trimEnd().split('\n')
  t.equal(lines.length, 2 * patients.length)
  t.match(lines[0], '"name":"header"')
})

// https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html
t.test('signs URLs as the service expects', (t) => {
  const { host, pathname, search } = new URL(manifest.output[0]?.url ?? '')
  const pairs = search.slice(1).split('&')
  const signed = pairs.filter((pair) => !pair.startsWith('X-Amz-Signature=')).sort()
  const parameter = (name: string) =>
    decodeURIComponent(pairs.find((pair) => pair.startsWith(`${name}=`))?.split('=')[1] ?? '')
  const request = [
    'GET',
    pathname,
    signed.join('&'),
    `host:${host}`,
    '',
    'host',
    'UNSIGNED-PAYLOAD',
  ]
  const scope = parameter('X-Amz-Credential').split('/').slice(1)
  const digest = createHash('sha256').update(request.join('\n')).digest('hex')
  const text = ['AWS4-HMAC-SHA256', parameter('X-Amz-Date'), scope.join('/'), digest].join('\n')
  const hmac = (key: string | Buffer, data: string) =>
    createHmac('sha256', key).update(data).digest()
  const key = scope.reduce<string | Buffer>(hmac, 'AWS4S3RVER')
  t.same(scope.slice(1), ['us-east-1', 's3', 'aws4_request'])
  t.equal(parameter('X-Amz-Signature'), hmac(key, text).toString('hex'))
  t.end()
})

t.test('stores types that share a part as separate objects', async (t) => {
  const [one] = patients
  const pulse = await admin.create(anObservation(`Patient/${one?.id}`))
  const path = `Group/${group.id}/$export?_type=Patient,Observation`
  const { output } = await fetchManifest(admin, await kickOff(admin, path))
  t.same(
    output.map(({ type, count }) => [type, count]),
    [
      ['Observation', 1],
      ['Patient', 2],
    ],
  )
  const [pulses, own] = await Promise.all(output.map(async ({ url }) => (await fetch(url)).text()))
  t.equal(pulses, `${(await admin.get(`Observation/${pulse.id}`)).text}\n`)
  t.equal(own?.split('\n').length, 3)
})

t.test('stores manifest URLs that require a token', async (t) => {
  const own = `${url}/files/1.Patient.ndjson`
  const record = await admin.get(`BulkDataExport/${id}`)
  t.match(record.body, { requiresAccessToken: true, output: [{ type: 'Patient', url: own }] })
  t.match((await admin.get(`AsyncJob/${id}`)).text, `"valueUri":"${own}"`)
  const file = await admin.get<string>(own)
  t.equal(file.text, await (await fetch(manifest.output[0]?.url ?? '')).text())
  const found = await admin.get(`AuditEvent?entity=BulkDataExport/${id}`)
  t.match(found.text, '"type":"files","valueString":"2"')
})

t.test('signs the URLs of a manifest for one hour', async (t) => {
  const set = (time: string) =>
    services.database.query({
      text: `update export_job set expires = clock_timestamp() + ${time} where id = $1`,
      values: [id],
    })
  await set("interval '10 minutes'")
  const again = await admin.get<Manifest>(url)
  t.same(withoutUrls(again.body), withoutUrls(manifest), 'the same list')
  const expires = await admin.get<Manifest>(url)
  t.ok(Date.parse(expires.headers.get('expires') ?? '') > Date.now() + 50 * 60_000)
})

t.test('lists URLs that require a token on manifest pages, which never change', async (t) => {
  const paged = await fetchManifest(
    admin,
    await kickOff(admin, '$export?_type=Patient&allowPartialManifests=true'),
  )
  t.equal(paged.requiresAccessToken, true)
  t.equal((await fetchExportLines(admin, paged.output)).get('Patient')?.length, 2)
})

t.test('deletes all objects of a cancelled export', async (t) => {
  t.ok(objects().length >= 4)
  t.equal((await admin.del(url)).status, 202)
  // Downloads that have begun may still end.
  await services.database.query({
    text: 'update export_job set downloaded = null where id = $1',
    values: [id],
  })
  await until(async () => objects().length === 0, DONE_MS)
  t.equal((await fetch(manifest.output[0]?.url ?? '')).status, 404)
})

function withoutUrls({ output, error, ...rest }: Manifest) {
  const files = [...output, ...error].map(({ url: address, ...file }) => ({
    ...file,
    path: new URL(address).pathname,
  }))
  return { ...rest, files }
}

function objects(): string[] {
  return readdirSync(bucket.directory, { recursive: true, encoding: 'utf8' }).filter(
    (name) => name.includes(`/${id}/`) && name.endsWith('._S3rver_object'),
  )
}
