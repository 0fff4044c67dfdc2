import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { finished } from '../../fixtures/bots/bots.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { anObservation, anOrganization, aPatient } from '../../fixtures/resources.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  worker: true,
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, superAdmin, services } = botica

interface Found extends Resource {
  readonly entry?: readonly { readonly resource: Resource }[]
}

async function count(client: Client, path: string): Promise<number> {
  return (await client.get<Found>(path)).body.entry?.length ?? 0
}

async function damage(id: string): Promise<void> {
  const values = [id]
  await services.database.query({ text: 'delete from idx_string where id = $1', values })
  await services.database.query({ text: 'delete from idx_range where id = $1', values })
  await services.database.query({
    text: 'update resource set keys = keys[1:1], nref = 1, d_lo = null, d_hi = null where id = $1',
    values,
  })
}

function readJob(client: Client, { headers }: { headers: Headers }): Promise<unknown> {
  return finished(client, headers.get('content-location'))
}

t.test('reindexes one resource immediately', async (t) => {
  const patient = await admin.create(aPatient({ name: [{ family: 'Lostinger' }] }))
  const search = 'Patient?name=lostinger&birthdate=1974-12-25&gender=male'
  await damage(patient.id)
  t.equal(await count(admin, search), 0)
  const done = await admin.post(`Patient/${patient.id}/$reindex`)
  t.match(done, { status: 200, body: { id: 'ok' } })
  t.equal(await count(admin, search), 1)
  t.match(await admin.get(`Patient/${patient.id}`), { body: { meta: { versionId: '1' } } })
})

t.test('reindexes a type in every project by a worker', async (t) => {
  const other = await botica.createTenant()
  const organizations = await Promise.all(
    [admin, other.admin].map((client) => client.create(anOrganization({ name: 'Refound' }))),
  )
  for (const { id } of organizations) await damage(id)
  t.equal(await count(admin, 'Organization?name=refound'), 0)
  const job = await readJob(superAdmin, await superAdmin.post('Organization/$reindex'))
  t.match(job, { resourceType: 'AsyncJob', status: 'completed' })
  t.equal(await count(admin, 'Organization?name=refound'), 1)
  t.equal(await count(other.admin, 'Organization?name=refound'), 1)
})

t.test('lets a super admin select the resources to reindex', async (t) => {
  const [meant, left] = await Promise.all(
    ['Meantinger', 'Leftinger'].map((family) => admin.create(aPatient({ name: [{ family }] }))),
  )
  for (const patient of [meant, left]) await damage(patient?.id ?? '')
  const reindex = (body: Record<string, unknown>) =>
    superAdmin.post('/admin/super/reindex', body, { Prefer: 'respond-async' })
  const counts = () =>
    Promise.all(
      ['Patient?name=meantinger', 'Patient?name=leftinger'].map((path) => count(admin, path)),
    )
  const filter = 'name=meantinger&_lastUpdated=gt2020-01-01'
  const nothing = {
    resourceType: 'Patient',
    reindexType: 'specific',
    maxResourceVersion: 0,
    filter,
  }
  t.match(await readJob(superAdmin, await reindex(nothing)), { status: 'completed' })
  t.same(await counts(), [0, 0], 'no index is that old')
  const some = {
    resourceType: 'Patient',
    reindexType: 'specific',
    maxResourceVersion: 1000,
    filter,
  }
  t.match(await readJob(superAdmin, await reindex(some)), { status: 'completed' })
  t.same(await counts(), [1, 0])
  const one = { resourceType: '*', filter: `_id=${left?.id}` }
  t.match(await readJob(superAdmin, await reindex(one)), { status: 'completed' })
  t.same(await counts(), [1, 1])

  const bad = { '*': 'name=x', Patient: 'organization.name=x', Basic: 'nonsense=1' }
  for (const [resourceType, query] of Object.entries(bad)) {
    const refused = { status: 400, body: { issue: [{ expression: ['filter'] }] } }
    t.match(await reindex({ resourceType, filter: query }), refused, query)
  }
  for (const maxResourceVersion of [undefined, -1, 1.5, '1']) {
    const body = { resourceType: 'Basic', reindexType: 'specific', maxResourceVersion }
    const refused = { status: 400, body: { issue: [{ expression: ['maxResourceVersion'] }] } }
    t.match(await reindex(body), refused, String(maxResourceVersion))
  }
})

t.test('finds other resources despite damaged rows', async (t) => {
  const { admin: theirs } = await botica.createTenant()
  const spoilt = await theirs.create(anOrganization({ name: 'Spoilt' }))
  const whole = await theirs.create(anOrganization({ name: 'Wholesome' }))
  const setContent = (content: string) =>
    services.database.query({
      text: `update version set content = ${content} where id = $1`,
      values: [spoilt.id],
    })
  await setContent(`rtrim(content, '}')`)
  t.teardown(() => setContent(`content || '}'`))
  await damage(whole.id)
  const job = await readJob(superAdmin, await superAdmin.post('Organization/$reindex'))
  t.match(job, { status: 'completed' })
  t.equal(await count(theirs, 'Organization?name=wholesome'), 1)
})

t.test('removes every trace of an expunged resource', async (t) => {
  const { id } = await admin.create(aPatient({ name: [{ family: 'Expungewell' }] }))
  const path = `Patient/${id}`
  await admin.patch(path, [{ op: 'replace', path: '/gender', value: 'female' }])
  const other = await botica.createTenant()
  t.equal((await other.admin.post(`${path}/$expunge`)).status, 404)
  t.match(await admin.post(`${path}/$expunge`), { status: 200, body: { id: 'ok' } })
  t.equal((await admin.get(path)).status, 404)
  t.equal((await admin.get(`${path}/_history`)).status, 404)
  t.equal((await admin.get(`${path}/_history/1`)).status, 404)
  t.equal(await count(admin, 'Patient?name=expungewell'), 0)
  t.equal((await admin.post(`${path}/$expunge`)).status, 404)

  const deleted = await admin.create(aPatient())
  await admin.del(`Patient/${deleted.id}`)
  t.equal((await admin.post(`Patient/${deleted.id}/$expunge`)).status, 200)
  t.equal((await admin.get(`Patient/${deleted.id}`)).status, 404)
})

t.test('expunges everything of a patient, and nothing more', async (t) => {
  const patient = await admin.create(aPatient())
  const other = await admin.create(aPatient())
  const own = await admin.create(anObservation(`Patient/${patient.id}`))
  const kept = await admin.create(anObservation(`Patient/${other.id}`))
  const started = await admin.post(`Patient/${patient.id}/$expunge?everything=true`)
  t.match(await readJob(admin, started), { status: 'completed' })
  t.equal((await admin.get(`Patient/${patient.id}`)).status, 404)
  t.equal((await admin.get(`Observation/${own.id}`)).status, 404)
  t.equal((await admin.get(`Observation/${kept.id}`)).status, 200)
  t.equal((await admin.get(`Patient/${other.id}`)).status, 200)
})

t.test('lets a super admin expunge a whole project', async (t) => {
  const doomed = await botica.createTenant()
  const patient = await doomed.admin.create(aPatient())
  const path = `Project/${doomed.project.id}`
  t.equal((await doomed.admin.post(`${path}/$expunge`)).status, 403)
  const job = await readJob(superAdmin, await superAdmin.post(`${path}/$expunge`))
  t.match(job, { status: 'completed' })
  t.equal((await superAdmin.get(path)).status, 404)
  t.equal((await superAdmin.get(`Patient/${patient.id}`)).status, 404)
  t.equal(await count(superAdmin, `ProjectMembership?_project=${doomed.project.id}`), 0)
  t.equal((await admin.get('Patient?_count=1')).status, 200)
})

t.test('allows maintenance only to admins', async (t) => {
  const { id } = await admin.create(aPatient())
  const { client } = await botica.createMember()
  for (const path of [`Patient/${id}/$reindex`, `Patient/${id}/$expunge`]) {
    t.equal((await client.post(path)).status, 403, path)
  }
  for (const path of ['$reindex', 'Patient/$reindex']) {
    t.equal((await admin.post(path)).status, 403, path)
  }
  t.equal((await client.post(`Patient/${id}/$expunge?everything=true`)).status, 403)
  t.equal((await admin.post(`Patient/${id}/$expunge?everything=x`)).status, 400)
  t.equal((await admin.post('Organization/1/$expunge?everything=true')).status, 400)
  t.equal((await admin.post('Patient/none/$reindex')).status, 404)
  t.equal((await admin.post('Patient/none/$expunge?everything=true')).status, 404)
  t.equal((await admin.get(`Patient/${id}`)).status, 200)
})
