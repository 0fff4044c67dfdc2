/** Imports the rows of imports, to add many at once and to read their progress. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { addImport, readImport } from '../../../shared/import/jobs.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Resource } from '../../fixtures/fhir.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { holdRow } from '../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t), HOOK_TARGETS: 'public' },
})
const { admin, services, superAdmin, createTenant, startWorker } = botica
const { database } = services
const other = await createTenant()
const DONE_MS = 120_000
/** Every process knows changed rights after this time. */
const RIGHTS_KNOWN_MS = 5000

const patients = (count: number): Resource[] =>
  Array.from({ length: count }, () => ({ ...aPatient(), id: randomUUID() }))

async function upload(resources: readonly unknown[], caller = admin): Promise<string> {
  const text = resources.map((resource) => `${JSON.stringify(resource)}\n`).join('')
  const answer = await caller.post('Binary', text, { 'Content-Type': 'application/fhir+ndjson' })
  return `Binary/${answer.body.id}`
}

const inputs = (...given: readonly (readonly [type: string, url: string])[]) => ({
  resourceType: 'Parameters',
  parameter: given.map(([type, url]) => ({
    name: 'input',
    part: [
      { name: 'type', valueCode: type },
      { name: 'url', valueUrl: url },
    ],
  })),
})

async function begin(type: string, url: string, caller: Client = admin): Promise<string> {
  const answer = await caller.post('$import', inputs([type, url]))
  t.equal(answer.status, 202, answer.text)
  return answer.headers.get('content-location') ?? ''
}

interface Status {
  readonly output: readonly { readonly created: number; readonly unchanged: number }[]
  readonly error: readonly { readonly url: string; readonly count: number }[]
}

async function ended(url: string, caller: Client = admin) {
  let answer = await caller.get<Status>(url)
  await until(async () => {
    answer = await caller.get<Status>(url)
    return answer.status !== 202 && answer.status !== 429
  }, DONE_MS)
  return answer
}

/** Returns patients to import; those at `places` are stored already, with other content. */
async function partlyStored(count: number, places: readonly number[], caller = admin) {
  const given = patients(count)
  const stored = places.map((at) => ({ ...given[at], active: false }))
  const first = await ended(await begin('Patient', await upload(stored, caller), caller), caller)
  t.match(first.body, { output: [{ created: places.length }] })
  return given
}

/** Blocks the import at the batches of these resources; two, since two are written in parallel. */
async function holdBatches(first: Resource | undefined, second: Resource | undefined) {
  const held = [await holdRow(database, first?.id), await holdRow(database, second?.id)]
  return () => Promise.all(held.map(({ release }) => release()))
}

async function committed(): Promise<number> {
  const [row] = await database.query<{ lines: number }>({
    text: 'select coalesce(sum(created), 0)::float8 as lines from import_part',
    values: [],
  })
  return row?.lines ?? 0
}

t.test('rejects invalid imports immediately', async (t) => {
  const { client: member } = await botica.createMember()
  const file = await upload(patients(1))
  const theirs = await upload(patients(1), other.admin)
  const cases: readonly (readonly [body: unknown, status: number, text: RegExp])[] = [
    [{ resourceType: 'Parameters' }, 400, /either/],
    [inputs(['Patient', 'http://example.com/a']), 400, /https/],
    [inputs(['Patient', 'https://me:secret@example.com/a']), 400, /password/],
    [inputs(['Patient', 'file:///etc/passwd']), 400, /https/],
    [inputs(['Patient', theirs]), 400, /no such Binary/],
    [inputs(['User', file]), 400, /cannot be imported/],
    [inputs(['ClientApplication', file]), 400, /cannot be imported/],
    [inputs(['Nothing', file]), 400, /cannot be imported/],
    [inputs(...Array.from({ length: 1001 }, () => ['Patient', file] as const)), 400, /1000/],
    [{ resourceType: 'Patient' }, 400, /Parameters/],
  ]
  for (const [body, status, text] of cases) {
    const answer = await admin.post('$import', body)
    t.equal(answer.status, status, answer.text)
    t.match(answer.text, text)
  }
  t.match(await member.post('$import', inputs(['Patient', file])), { status: 403 })
  t.match(await admin.get('$import'), { status: 405 })
})

t.test('shows an import to its owner and to project admins', async (t) => {
  const url = await begin('Patient', await upload(patients(1)))
  const { client: member } = await botica.createMember()

  t.equal((await admin.get(url)).status, 202)
  t.equal((await superAdmin.get(url)).status, 202)
  for (const stranger of [member, other.admin]) {
    t.equal((await stranger.get(url)).status, 404)
    t.equal((await stranger.del(url)).status, 404)
    t.equal((await stranger.get(`${url}/files/1.OperationOutcome.ndjson`)).status, 404)
  }
  t.equal((await admin.get(`${url}/files/1.OperationOutcome.ndjson`)).status, 404)
  t.equal((await admin.get('bulkdata/import/nothing')).status, 404)
  t.equal((await admin.post(url, {})).status, 405)
  t.equal((await admin.del(url)).status, 202)
  t.equal((await admin.get(url)).status, 404)
  t.equal((await admin.del(url)).status, 404)
})

t.test('allows twelve running imports per Project', async (t) => {
  const { admin: caller } = await createTenant()
  const file = await upload(patients(1), caller)
  const urls: string[] = []
  for (let i = 0; i < 12; i++) urls.push(await begin('Patient', file, caller))

  const refused = await caller.post('$import', inputs(['Patient', file]))
  t.equal(refused.status, 429)
  t.match(refused.headers.get('retry-after'), /^\d+$/)
  for (const url of urls) t.equal((await caller.del(url)).status, 202)
  t.equal((await caller.post('$import', inputs(['Patient', file]))).status, 202)
})

t.test('writes each line once although its worker is killed repeatedly', async (t) => {
  const places = [1200, 2700, 4200]
  const first = await startWorker()
  const stored = places.flatMap((at) => [at, at + 500])
  const given = await partlyStored(6000, stored)
  first.kill('SIGTERM')
  await once(first, 'exit')
  const before = await committed()
  const url = await begin('Patient', await upload(given))
  for (const at of places) {
    const release = await holdBatches(given[at], given[at + 500])
    const worker = await startWorker()
    await until(async () => (await committed()) - before >= at - 500, DONE_MS)
    worker.kill('SIGKILL')
    await once(worker, 'exit')
    await release()
    t.equal((await admin.get(url)).status, 202, 'the worker was killed before the end')
    // Expires the lease.
    await database.query({ text: 'update import_part set due = clock_timestamp()', values: [] })
  }
  await startWorker()

  const { body } = await ended(url)

  t.match(body, { output: [{ created: 5994, updated: 6, unchanged: 0 }], error: { length: 0 } })
  const ids = given.map(({ id }) => id)
  const [row] = await database.query<{ versions: number; newest: number }>({
    text: `select count(*)::int as versions, max(ver) as newest from version
      where id = any($1::uuid[])`,
    values: [ids],
  })
  t.same(row, { versions: 6006, newest: 2 })
})

t.test('loses no line before committed lines when a worker is killed', async (t) => {
  const given = patients(3)
  const [first = 0, second = 0] = given.map((one) => JSON.stringify(one).length + 1)
  const file = await upload(given)
  const other = await begin('Patient', await upload(patients(1)))
  const before = await readImport(database, other.split('/').at(-1) ?? '')
  if (before === undefined) throw new Error('There is no import')
  const id = randomUUID()
  const { caller, project, request } = before.job
  await services.database.transaction(async (connection) => {
    const inputs = [{ type: 'Patient', url: file }]
    const mode = 'upsert'
    await addImport(connection, { id, project, request, caller, mode, inOrder: false, inputs }, 12)
    await connection.query({
      text: `update import_part set bytes = int8multirange(int8range($2, $3)),
        lines = int8multirange(int8range(2, 3)), created = 1 where job = $1`,
      values: [id, first, first + second],
    })
  })

  const { body } = await ended(`bulkdata/import/${id}`)

  t.match(body, { output: [{ created: 3 }], error: { length: 0 } })
  const [row] = await database.query<{ bytes: string }>({
    text: 'select bytes::text from import_part where job = $1',
    values: [id],
  })
  t.match(row?.bytes, /^\{\[0,\d+\)\}$/)
})

t.test('stops a cancelled import within one batch', async (t) => {
  const given = await partlyStored(4000, [1200, 1700])
  const before = await committed()
  const release = await holdBatches(given[1200], given[1700])
  const url = await begin('Patient', await upload(given))
  await until(async () => (await committed()) > before, DONE_MS)

  t.equal((await admin.del(url)).status, 202)
  await release()

  t.equal((await admin.get(url)).status, 404)
  const next = await begin('Patient', await upload(patients(1)))
  t.match((await ended(next)).body.output, [{ created: 1 }])
  const [row] = await database.query<{ count: number }>({
    text: 'select count(*)::int from version where id = any($1::uuid[])',
    values: [given.map(({ id }) => id)],
  })
  t.ok(row && row.count > 0 && row.count < given.length, `imports ${row?.count} lines`)
})

t.test('writes lines under the current policy of the requester', async (t) => {
  const { project, admin: theirs } = await createTenant()
  const policy = await theirs.create({
    resourceType: 'AccessPolicy',
    resource: [
      { resourceType: 'Binary' },
      { resourceType: 'Patient', criteria: 'Patient?gender=female' },
    ],
  })
  const body = { accessPolicy: { reference: `AccessPolicy/${policy.id}` } }
  const member = await botica.createMember(body, project.id)
  const stored = await superAdmin.get(`Project/${project.id}`)
  const systemSetting = [{ name: 'updateAsCreate', valueBoolean: true }]
  await superAdmin.put(`Project/${project.id}`, { ...stored.body, systemSetting })
  await until(async () => {
    const answer = await member.client.post('$import', { resourceType: 'Parameters' })
    return answer.status === 400
  }, DONE_MS)
  const lines = patients(40).map((patient, i) => ({
    ...patient,
    gender: i % 10 === 3 ? 'male' : 'female',
  }))

  const denied = await member.client.post('$import', inputs(['Observation', 'Binary/1']))
  const url = await begin('Patient', await upload(lines, member.client), member.client)
  const { body: status } = await ended(url, member.client)

  t.equal(denied.status, 403)
  t.match(status, { output: [{ created: 36 }], error: [{ count: 4 }] })
  const { text } = await member.client.get(status.error[0]?.url ?? '')
  t.same(
    text.match(/Line \d+/g),
    [4, 14, 24, 34].map((line) => `Line ${line}`),
  )
})

t.test('rejects non-public addresses', async (t) => {
  const { status, body } = await ended(await begin('Patient', 'https://127.0.0.1/patients'))

  t.equal(status, 200)
  t.match(body, { output: [{ created: 0 }], error: [{ count: 1 }] })
  const { text } = await admin.get(body.error[0]?.url ?? '')
  t.match(text, '127.0.0.1 is not a public address')
})

t.test('ends an import when its member is deleted', async (t) => {
  const { project, admin: theirs } = await createTenant()
  const { id, client } = await botica.createMember({}, project.id)
  const found = await superAdmin.get<{ entry: { resource: Resource }[] }>(
    `ProjectMembership?profile=ClientApplication/${id}`,
  )
  const membership = found.body.entry[0]?.resource
  const place = `ProjectMembership/${membership?.id}`
  await superAdmin.put(place, { ...membership, admin: true })
  await until(async () => {
    const answer = await client.post('$import', { resourceType: 'Parameters' })
    return answer.status === 400
  }, DONE_MS)
  const given = await partlyStored(4000, [1200, 1700], client)
  const before = await committed()
  const release = await holdBatches(given[1200], given[1700])
  const url = await begin('Patient', await upload(given, client), client)
  await until(async () => (await committed()) > before, DONE_MS)
  await superAdmin.put(place, { ...membership, admin: true, active: false })
  await delay(RIGHTS_KNOWN_MS)
  await release()

  const { status, body } = await ended(url, theirs)

  t.equal(status, 403)
  t.match(body, { resourceType: 'OperationOutcome', id: 'forbidden' })
})
