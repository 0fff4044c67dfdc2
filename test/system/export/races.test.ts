/** Imports the steps of exports, to run them in every order. */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Registry } from 'prom-client'
import t from 'tap'
import { LeaseLost } from '../../../shared/core/errors.ts'
import { cutList } from '../../../shared/export/rows/compartments.ts'
import { cancelExport } from '../../../shared/export/rows/jobs.ts'
import { leaseExportPart, PARTS, partLease } from '../../../shared/export/rows/parts.ts'
import { startExports, sweepExport } from '../../../shared/export/worker.ts'
import { createExportMetrics } from '../../../shared/export/worker-services.ts'
import { typeNumber } from '../../../shared/fhir/definitions.ts'
import { renewPart } from '../../../shared/jobs/part-queue.ts'
import { openDisk } from '../../../shared/outbound/storage/disk.ts'
import type { Storage } from '../../../shared/outbound/storage/storage.ts'
import type { Services } from '../../../shared/request/services.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import { exportId, fetchManifest, isSwept, kickOff } from '../../fixtures/exports/exports.ts'
import { nextPart, openExporting, runTaken } from '../../fixtures/exports/steps.ts'
import { listen } from '../../fixtures/http/listening.ts'
import { aPatient } from '../../fixtures/resources.ts'
import { holdTable, waitingFor } from '../../fixtures/store/held-rows.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const silent = createServer((req) => req.resume())
const asked: Promise<unknown> = once(silent, 'request')
const port = await listen(t, silent)
const endpoint = encodeURIComponent(`http://127.0.0.1:${port}`)

const botica = await openBotica(t, {
  env: {
    DATABASE_URL: await createDatabase(t),
    STORAGE_URL: `s3://bucket/?endpoint=${endpoint}&forcePathStyle=true&timeout=600`,
    AWS_ACCESS_KEY_ID: 'a',
    AWS_SECRET_ACCESS_KEY: 'b',
  },
})
const { admin } = botica
const { database } = botica.services
const DONE_MS = 120_000

const folder = mkdtempSync(join(tmpdir(), 'botica-exports-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const disk = await openDisk(folder)
const exporting = openExporting(t, botica.services, { storage: disk })

const patient = await admin.create(aPatient())
const aGroup = { resourceType: 'Group', type: 'person', actual: true }
const group = await admin.create({
  ...aGroup,
  member: [{ entity: { reference: `Patient/${patient.id}` } }],
})

function run(storage: Storage = disk, isBusy = () => false): () => Promise<void> {
  const services: Services = { ...botica.services, storage }
  return startExports(services, createExportMetrics(new Registry()), isBusy).stop
}

t.test('deletes a block whose upload ends after its part was lost', async (t) => {
  const [putting, late] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const stop = run({
    ...disk,
    async put(key, source) {
      putting.resolve()
      await late.promise
      await disk.put(key, source)
    },
  })
  const url = await kickOff(admin, '$export?_type=Patient')
  await putting.promise
  t.equal((await admin.del(url)).status, 202)
  // Simulates a worker that is absent for longer than its lease.
  await until(async () => {
    await setLease(url, 'clock_timestamp()')
    await sweepExport({ ...botica.services, storage: disk })
    return isSwept(database, url)
  }, DONE_MS)
  late.resolve()
  await stop()
  t.same(await listFiles(url), [])
})

t.test('keeps the lease of a part until its pending work ends, even if aborted', async (t) => {
  const url = await kickOff(admin, '$export?_type=Patient')
  const taken = await leaseExportPart(database)
  if (taken === undefined) throw new Error('There is no part')
  await cancelExport(database, exportId(url))
  await setLease(url, 'clock_timestamp()')
  t.equal(await renewPart(database, PARTS, partLease(taken)), false, 'the worker is notified')
  const [row] = await database.query<{ isHeld: boolean }>({
    text: `select lease > clock_timestamp() as "isHeld" from export_part where job = $1`,
    values: [exportId(url)],
  })
  t.same(row, { isHeld: true })
  await setLease(url, 'clock_timestamp()')
  t.equal(await sweepExport({ ...botica.services, storage: disk }), true)
})

t.test('aborts a plan in progress', async (t) => {
  const url = await kickOff(admin, 'Patient/$export?organizeOutputBy=Patient')
  const taken = await leaseExportPart(database)
  if (taken?.part.kind !== 'plan') throw new Error('There is no plan')
  const held = await holdTable(database, 'resource')
  const controller = new AbortController()
  const planning = runTaken(exporting, taken, controller.signal)
  await until(async () => (await waitingFor(database, held.pid)).length > 0, DONE_MS)
  controller.abort(new Error('Nobody waits'))
  await t.rejects(planning, { message: 'Nobody waits' })
  await held.release()
  t.equal((await admin.del(url)).status, 202)
})

t.test('leaves a plan unchanged if another worker planned in the meantime', async (t) => {
  const url = await kickOff(admin, `Group/${group.id}/$export?_type=Patient`)
  const first = await nextPart(exporting, 'plan')
  await setLease(url, 'clock_timestamp()')
  const second = await nextPart(exporting, 'plan')
  await second()
  await nextPart(exporting, 'listed')
  await setLease(url, 'clock_timestamp()')
  t.ok((await first().catch((error: unknown) => error)) instanceof LeaseLost)
  const stop = run()
  const { output } = await fetchManifest(admin, url)
  await stop()
  t.match(output, [{ type: 'Patient', count: 1 }])
})

t.test('splits a long list into arrays that contain each row once', async (t) => {
  const job = randomUUID()
  const ids = Array.from({ length: 7 }, () => randomUUID()).sort()
  for (const some of [ids.slice(0, 5), ids.slice(3), ids.toReversed()]) {
    await database.query({
      text: `insert into export_compartment (job, patient, place, ruling, ids)
        select $1, $2, $3, x.ruling, array_agg(x.id) from unnest($4::uuid[]) with ordinality x(id, ruling)
        group by x.ruling`,
      values: [job, some[0], typeNumber('Observation'), some],
    })
  }
  t.same(await cutList(database, job, 'Observation', 3), [ids[2], ids[5], ids[6]])
  const listed = await database.query<{ patient: string; ids: string[] }>({
    text: `select patient, array_agg(id order by id) as ids
      from export_compartment c cross join lateral unnest(c.ids) id
      where job = $1 group by patient order by patient`,
    values: [job],
  })
  t.same(listed, [
    { patient: ids[2], ids: ids.slice(0, 3) },
    { patient: ids[5], ids: ids.slice(3, 6) },
    { patient: ids[6], ids: ids.slice(6) },
  ])
})

t.test('keeps files while a download of them begins', async (t) => {
  const stop = run()
  const url = await kickOff(admin, '$export?_type=Patient')
  await fetchManifest(admin, url)
  await stop()
  const values = [exportId(url)]
  const set = (expires: string) => ({
    text: `update export_job set expires = ${expires} where id = $1`,
    values,
  })
  await database.query(set('clock_timestamp()'))
  const sweep = () => sweepExport({ ...botica.services, storage: disk })
  await database.transaction(async (connection) => {
    await connection.query(set(`clock_timestamp() + interval '1 hour'`))
    t.equal(await sweep(), false)
  })
  t.equal(await sweep(), false)
  t.equal((await listFiles(url)).length, 1)
  await database.query(set('clock_timestamp()'))
  t.equal(await sweep(), true)
  t.same(await listFiles(url), [])
})

t.test('ends an export together with its records, or resumes it', async (t) => {
  const url = await kickOff(admin, '$export?_type=Patient')
  const path = `BulkDataExport/${exportId(url)}`
  await (await nextPart(exporting, 'plan'))()
  await (await nextPart(exporting, 'output'))()
  const close = await nextPart(exporting, 'close')
  await refuse('AuditEvent', '"code":"completed"')
  await t.rejects(close())
  await refuse('AuditEvent', undefined)
  t.equal((await admin.get(url)).status, 202)
  t.match((await admin.get(path)).body, { status: 'accepted' })
  await close()
  t.equal((await admin.get(url)).status, 200)
  t.match((await admin.get(path)).body, { status: 'completed' })
  const { body } = await admin.get<{ entry: unknown[] }>(`AuditEvent?entity=${path}`)
  t.equal(body.entry.length, 2, 'records its start and its end')
})

t.test('does not start an export that cannot be recorded', async (t) => {
  const count = async () => {
    const [row] = await database.query<{ jobs: number }>({
      text: 'select count(*)::int as jobs from export_job',
      values: [],
    })
    return row?.jobs
  }
  const before = await count()
  await refuse('BulkDataExport', '"accepted"')
  t.ok((await admin.get('$export?_type=Patient')).status >= 500)
  await refuse('BulkDataExport', undefined)
  t.equal(await count(), before)
})

t.test('limits a worker to one export part while callers wait for bots', async (t) => {
  const before = new Date().toISOString()
  const gone = await admin.create({ resourceType: 'Organization', name: 'Ward' })
  await admin.create({ resourceType: 'Organization', name: 'Ward' })
  await admin.del(`Organization/${gone.id}`)
  const seen: (number | undefined)[] = []
  const put: Storage['put'] = async (key, source) => {
    const [row] = await database.query<{ parts: number }>({
      text: `select count(*)::int as parts from export_part p join export_job j on j.id = p.job
        where p.state = 'active' and j.state = 'active'`,
      values: [],
    })
    seen.push(row?.parts)
    await disk.put(key, source)
  }
  const stop = run({ ...disk, put }, () => true)
  const path = `$export?_type=Patient,Organization,Group&_since=${before}`
  const { output, deleted } = await fetchManifest(admin, await kickOff(admin, path))
  await stop()
  t.same([...output, ...(deleted ?? [])].length, seen.length, 'deletions are a separate part')
  t.same(new Set(seen), new Set([1]))
})

t.test('stops a worker although its storage does not answer', async (t) => {
  const worker = await botica.startWorker()
  const url = await kickOff(admin, '$export?_type=Patient')
  await asked
  const exited = once(worker, 'exit')
  worker.kill('SIGTERM')
  t.same(await exited, [0, null])
  t.equal((await admin.get(url)).status, 202, 'other workers continue it')
})

/** Makes PostgreSQL reject versions of the type that contain the text; undefined ends this. */
async function refuse(type: string, text: string | undefined): Promise<void> {
  const query = (sql: string) => database.query({ text: sql, values: [] })
  await query('drop trigger if exists refusal on version')
  if (text === undefined) return
  await query(`create or replace function refuse() returns trigger language plpgsql as $$ begin
    if new.content like '{"resourceType":"${type}"%${text}%' then raise 'refused'; end if;
    return new; end $$`)
  await query(`create trigger refusal before insert on version
    for each row execute function refuse()`)
}

async function setLease(url: string, time: string): Promise<void> {
  await database.query({
    text: `update export_part set lease = ${time} where job = $1 and state = 'active'`,
    values: [exportId(url)],
  })
}

function listFiles(url: string): Promise<string[]> {
  const own = join(folder, 'exports', botica.project.id ?? '', exportId(url))
  return readdir(own).catch(() => [])
}
