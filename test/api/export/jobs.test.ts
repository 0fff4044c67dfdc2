/** Imports the sweep of exports, which a worker starts only after days. */
import { isDeepStrictEqual } from 'node:util'
import t from 'tap'
import { removeOldExports } from '../../../shared/export/announce.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Answer } from '../../fixtures/client.ts'
import {
  ended,
  exportAll,
  exportId,
  fetchExportLines,
  fetchManifest,
  kickOff,
  type Manifest,
} from '../../fixtures/exports/exports.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aSubscription } from '../../fixtures/http/receiver.ts'
import { anOrganization, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database } = botica.services
const member = await botica.createMember()
const { client } = member
const { client: other } = await botica.createMember()

const json = { 'Content-Type': 'application/fhir+json' }
const entry = Array.from({ length: 120 }, () => ({
  request: { method: 'POST', url: 'Organization' },
  resource: anOrganization(),
}))
await admin.post('', JSON.stringify({ resourceType: 'Bundle', type: 'batch', entry }), json)
await admin.create(aPatient())

t.test('queues at most ten exports of a project under parallel requests', async (t) => {
  const limited = await botica.createTenant()
  const answers = await Promise.all(
    Array.from({ length: 14 }, () => limited.admin.get('$export?_type=Patient')),
  )
  const statuses = answers.map(({ status }) => status).sort()
  t.same(statuses, [...Array(10).fill(202), ...Array(4).fill(429)])
  const refused = answers.find(({ status }) => status === 429)
  t.match(refused?.headers.get('retry-after'), /^\d+$/)
  t.equal(
    (await admin.get('$export?_type=Nothing')).status,
    400,
    'accepts exports of other projects',
  )

  const changed = await botica.createMember({
    accessPolicy: await createPolicy({ resourceType: 'Organization' }),
  })
  const narrowed = await kickOff(changed.client, '$export')
  await narrow(changed.id)
  await botica.startWorker()
  let most = 0
  const urls = answers.flatMap(({ headers }) => headers.get('content-location') ?? [])
  await until(async () => {
    const [row] = await database.query<{ active: number; open: number }>({
      text: `select count(*) filter (where state = 'active')::int as active,
        count(*) filter (where state in ('active', 'accepted'))::int as open
        from export_job where id = any($1)`,
      values: [urls.map(exportId)],
    })
    most = Math.max(most, row?.active ?? 0)
    return row?.open === 0
  }, 120_000)
  t.ok(most <= 2, 'two of them run')
  for (const url of urls) t.equal((await limited.admin.get(url)).status, 200)
  const failed = await ended(changed.client, narrowed)
  t.equal(failed.status, 403, 'stops an export whose access rights have changed')
})

t.test('shows an export as a BulkDataExport to its owner and to admins', async (t) => {
  const url = await kickOff(client, '$export?_type=Patient')
  const id = exportId(url)
  const { output, transactionTime, request } = await fetchManifest(client, url)
  for (const caller of [client, admin]) {
    const { body } = await caller.get<Resource>(`BulkDataExport/${id}`)
    t.match(body, { status: 'completed', transactionTime, request, requiresAccessToken: true })
    t.same(
      body.output,
      output.map(({ type, url }) => ({ type, url })),
    )
    const found = await caller.get<{ total: number }>(`BulkDataExport?_id=${id}&_total=accurate`)
    t.equal(found.body.total, 1)
  }
  t.equal((await other.get(`BulkDataExport/${id}`)).status, 404)
  t.equal((await other.get<{ total: number }>('BulkDataExport?_total=accurate')).body.total, 0)
  const { body } = await client.get<Resource>(`BulkDataExport/${id}`)
  const changed = { ...body, status: 'error' }
  for (const caller of [client, admin]) {
    t.equal((await caller.put(`BulkDataExport/${id}`, changed)).status, 403)
    t.equal((await caller.del(`BulkDataExport/${id}`)).status, 403)
    const made = { ...changed, id: undefined, meta: undefined }
    t.equal((await caller.post('BulkDataExport', made)).status, 403)
  }
  t.equal((await client.del(url)).status, 202)
  t.match((await admin.get(`BulkDataExport/${id}`)).body, { status: 'cancelled' })
})

t.test('keeps the record of an export for 30 days', async (t) => {
  const [old, recent] = [await endedAt(31), await endedAt(29)]
  await removeOldExports(botica.services)
  t.equal((await client.get(`BulkDataExport/${old}`)).status, 404)
  t.equal((await client.get(`BulkDataExport/${recent}`)).status, 200)
  const left = await database.query<{ id: string }>({
    text: 'select id from export_job where id = any($1)',
    values: [[old, recent]],
  })
  t.same(left, [{ id: recent }])
})

/** Returns the id of an export that ended `days` ago and has no files left. */
async function endedAt(days: number): Promise<string> {
  const url = await kickOff(client, '$export?_type=Patient')
  await fetchManifest(client, url)
  t.equal((await client.del(url)).status, 202)
  const id = exportId(url)
  await until(async () => {
    const [job] = await database.query<{ swept: boolean }>({
      text: 'select swept from export_job where id = $1',
      values: [id],
    })
    return job?.swept === true
  }, 60_000)
  const age = `interval '${days} days'`
  await database.query({
    text: `update export_job set finished = finished - ${age} where id = $1`,
    values: [id],
  })
  await database.query({
    text: `update resource set lu = lu - ${age} where id = $1`,
    values: [id],
  })
  return id
}

t.test('cancels an export through its AsyncJob', async (t) => {
  const url = await kickOff(client, '$export?_type=Patient')
  const id = exportId(url)
  const { output } = await fetchManifest(client, url)
  const { body } = await client.get<Resource>(`AsyncJob/${id}`)
  t.match(body, {
    resourceType: 'AsyncJob',
    status: 'completed',
    output: {
      resourceType: 'Parameters',
      parameter: [
        {
          name: 'output',
          part: [
            { name: 'type', valueCode: 'Patient' },
            { name: 'url', valueUri: output[0]?.url },
          ],
        },
      ],
    },
  })
  t.equal((await other.get(`AsyncJob/${id}`)).status, 404)
  t.equal((await other.post(`AsyncJob/${id}/$cancel`, {})).status, 404)
  t.equal((await client.get('AsyncJob/nothing')).status, 404)
  t.equal((await client.post(`AsyncJob/${id}/$cancel`, {})).status, 200)
  t.equal((await client.get(url)).status, 404)
  t.equal((await client.get(`AsyncJob/${id}`)).status, 404)
})

t.test('audits the start, output, downloads and cancellation of an export', async (t) => {
  const url = await kickOff(client, '$export?_type=Organization')
  const { output } = await fetchManifest(client, url)
  await fetchExportLines(client, output)
  await admin.del(url)
  const found = await admin.get<{ entry: { resource: Resource }[] }>(
    `AuditEvent?entity=BulkDataExport/${exportId(url)}&_sort=_lastUpdated`,
  )
  const events = found.body.entry.map(({ resource }) => resource)
  const steps = events.map(({ subtype }) => (subtype as { code: string }[])[1]?.code)
  t.same(steps, ['kick-off', 'completed', 'download', 'cancel'])
  const [asked, done, fetched] = events
  t.match(JSON.stringify(asked), '_type=Organization')
  t.match(asked?.agent, [{ who: { reference: `ClientApplication/${member.id}` } }])
  t.match(JSON.stringify(done), '"resources","valueString":"120"')
  t.match(JSON.stringify(fetched), '1.Organization.ndjson')
})

t.test('notifies a Subscription of the end of an export only', async (t) => {
  const { id } = await admin.create(
    aSubscription('BulkDataExport', 'https://example.org/hook') as Resource,
  )
  const url = await kickOff(client, '$export?_type=Organization')
  await fetchManifest(client, url)
  await admin.del(`Subscription/${id}`)
  const events = await database.query<{ op: string }>({
    text: `delete from outbox o using tenant t where t.project = o.project and t.fhir_id = $1
      returning op`,
    values: [botica.project.id],
  })
  t.same(events, [{ op: 'u' }])
})

t.test('reports the export status in a separate header as well', async (t) => {
  const prefer = { Prefer: 'respond-async, separate-export-status' }
  const accepted = await client.get('$export?_type=Patient', prefer)
  t.equal(accepted.headers.get('preference-applied'), prefer.Prefer)
  const url = accepted.headers.get('content-location') ?? ''
  const others: number[] = []
  await until(async () => {
    const { status, headers } = await client.get(url)
    if (status !== 200 && status !== 429) others.push(status)
    return headers.get('x-export-status') === '200'
  }, 60_000)
  t.same(others, [])
  t.equal((await other.get(url)).status, 404)
  const parameter = await client.get('$export?_type=Patient', {
    Prefer: 'respond-async; separate-export-status',
  })
  t.equal(parameter.headers.get('preference-applied'), 'respond-async')
})

t.test('lists finished files in pages while others are written', async (t) => {
  const url = await kickOff(client, '$export?_type=Organization,Patient&allowPartialManifests=true')
  const first: Manifest[] = []
  await until(async () => {
    const { status, body, text } = await client.get<Manifest>(url)
    if (status !== 429 && text !== '') first.push(body)
    return status === 200
  }, 60_000)
  const pages: Manifest[] = []
  for (let next: string | undefined = url; next !== undefined; ) {
    const { body }: Answer<Page> = await client.get<Page>(next)
    pages.push(body)
    next = body.link?.[0]?.url
  }
  const changed = first.filter(({ output }) => !isDeepStrictEqual(output, pages[0]?.output))
  t.same(changed, [], 'never changes a page')
  const types = pages.flatMap(({ output }) => output.map(({ type }) => type))
  t.same(types.toSorted(), ['Organization', 'Patient'])
  t.equal((await client.get(`${url}?page=${pages.length + 1}`)).status, 404)
  t.equal((await client.get(`${url}?page=x`)).status, 404)
  t.equal((await client.get('$export?allowPartialManifests=perhaps')).status, 400)
})

t.test('counts exported resources', async (t) => {
  const metrics = async () => (await botica.anonymous.get<string>('/metrics')).text
  t.match(await metrics(), /^export_parts\{state="waiting"\} \d+$/m)
  await until(async () => /^export_rows_total [1-9]/m.test(await metrics()), 60_000)
  t.match(await metrics(), /^export_bytes_total\{form="packed"\} [1-9]/m)
})

t.test('reports unreadable rows, and ends an export with too many', async (t) => {
  const spoil = (count: number) =>
    database.query({
      text: `update version set content = rtrim(content, '}') where (project, type, id, ver) in (
        select project, type, id, ver from version
        where content like '{"resourceType":"Organization"%}' and meta_ext like $1 limit $2)`,
      values: [`"project":"${botica.project.id}"%`, count],
    })
  t.teardown(() =>
    database.query({
      text: `update version set content = content || '}' where content is not json`,
      values: [],
    }),
  )
  await spoil(1)
  const { manifest, resources } = await exportAll(client, '$export?_type=Organization')
  t.equal(resources.get('Organization')?.length, 119)
  const [told] = (await fetchExportLines(client, manifest.error)).get('OperationOutcome') ?? []
  t.match(JSON.parse(told ?? ''), { issue: [{ severity: 'error' }] })
  t.equal(manifest.error[0]?.count, 1)
  await spoil(1)
  const url = await kickOff(client, '$export?_type=Organization')
  const failed = await ended(client, url)
  t.equal(failed.status, 500)
  t.match(failed.body, { resourceType: 'OperationOutcome', issue: [{ code: 'exception' }] })
  await until(async () => {
    const { body } = await admin.get<{ status?: string }>(`BulkDataExport/${exportId(url)}`)
    return body.status === 'error'
  }, 60_000)
})

interface Page extends Manifest {
  readonly link?: readonly { readonly url: string }[]
}

async function createPolicy(...resource: unknown[]) {
  const policy = await admin.create({ resourceType: 'AccessPolicy', resource })
  return { reference: `AccessPolicy/${policy.id}` }
}

async function narrow(clientId: string): Promise<void> {
  const accessPolicy = await createPolicy({ resourceType: 'Patient' })
  const { body } = await admin.get<{ entry: { resource: Resource }[] }>(
    `ProjectMembership?profile=ClientApplication/${clientId}`,
  )
  const [found] = body.entry
  const { id } = found?.resource ?? {}
  await admin.put(`ProjectMembership/${id}`, { ...found?.resource, accessPolicy })
}
