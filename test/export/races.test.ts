import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { readdir } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Registry } from 'prom-client'
import t from 'tap'
import { createBlocks } from '../../shared/export/block.ts'
import type { Exporting } from '../../shared/export/exporting.ts'
import { createExportMetrics, createPace } from '../../shared/export/exporting.ts'
import { cancelExport } from '../../shared/export/rows/jobs.ts'
import { cutList, listedIdsSql, listingSql } from '../../shared/export/rows/list.ts'
import { leaseExportPart, renewLease } from '../../shared/export/rows/parts.ts'
import { runPart, startExports, sweepExport } from '../../shared/export/run.ts'
import { activePrincipal } from '../../shared/export/status.ts'
import { LeaseLost } from '../../shared/jobs/loop.ts'
import { openDisk } from '../../shared/outbound/storage/disk.ts'
import type { Storage } from '../../shared/outbound/storage/storage.ts'
import { openCopySessions } from '../../shared/postgres/copy.ts'
import type { Services } from '../../shared/request/services.ts'
import { binder } from '../../shared/store/rows/side-rows.ts'
import { openBotica, until } from '../fixtures/botica.ts'
import { fetchManifest, kickOff } from '../fixtures/exports/exports.ts'
import { aPatient } from '../fixtures/resources.ts'
import { holdTable, waitingFor } from '../fixtures/store/held-rows.ts'
import { createDatabase } from '../fixtures/store/own-database.ts'

const silent = createServer((req) => req.resume())
const asked: Promise<unknown> = once(silent, 'request')
silent.listen(0, '127.0.0.1')
await once(silent, 'listening')
t.teardown(() => {
  silent.closeAllConnections()
  silent.close()
})
const { port } = silent.address() as AddressInfo
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
const copies = openCopySessions(botica.services.database)
t.teardown(() => copies.close())
const metrics = createExportMetrics(new Registry())
const exporting: Exporting = {
  ...botica.services,
  storage: disk,
  metrics,
  copies,
  blocks: createBlocks(1),
  pace: createPace(() => false),
  wake: () => undefined,
}

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
    return isSwept(url)
  }, DONE_MS)
  late.resolve()
  await stop()
  t.same(await filesOf(url), [])
})

t.test('keeps the lease of a part until its pending work ends, even if aborted', async (t) => {
  const url = await kickOff(admin, '$export?_type=Patient')
  const taken = await leaseExportPart(database)
  if (taken === undefined) throw new Error('There is no part')
  await cancelExport(database, idOf(url))
  await setLease(url, 'clock_timestamp()')
  t.equal(await renewLease(database, idOf(url), taken.part), false, 'the worker is notified')
  const [row] = await database.query<{ isHeld: boolean }>({
    text: `select lease > clock_timestamp() as "isHeld" from export_part where job = $1`,
    values: [idOf(url)],
  })
  t.same(row, { isHeld: true })
  await setLease(url, 'clock_timestamp()')
  t.equal(await sweepExport({ ...botica.services, storage: disk }), true)
})

t.test('aborts a plan in progress', async (t) => {
  const url = await kickOff(admin, 'Patient/$export?organizeOutputBy=Patient')
  const taken = await leaseExportPart(database)
  if (taken?.part.kind !== 'plan') throw new Error('There is no plan')
  const principal = await activePrincipal(botica.services, taken.job.input)
  if (principal === undefined) throw new Error('There is no member')
  const held = await holdTable(database, 'resource')
  const controller = new AbortController()
  const planning = runPart(exporting, principal, taken, controller.signal)
  await until(async () => (await waitingFor(database, held.pid)).length > 0, DONE_MS)
  controller.abort(new Error('Nobody waits'))
  await t.rejects(planning, { message: 'Nobody waits' })
  await held.release()
  t.equal((await admin.del(url)).status, 202)
})

t.test('leaves a plan unchanged if another worker planned in the meantime', async (t) => {
  const url = await kickOff(admin, `Group/${group.id}/$export?_type=Patient`)
  const first = await nextPart('plan')
  await setLease(url, 'clock_timestamp()')
  const second = await nextPart('plan')
  await second()
  await nextPart('output')
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
    const text = listingSql(
      '$1::uuid',
      'select 112 as type, id, 2 as ver from unnest($2::uuid[]) id',
    )
    await database.query({ text, values: [job, some] })
  }
  const listed = async (low?: string, high?: string) => {
    const { values, bind } = binder()
    const text = listedIdsSql(job, 112, { low, high }, bind)
    const rows = await database.query<{ id: string }>({ text, values })
    return rows.map(({ id }) => id)
  }
  t.same(await listed(), ids)
  t.same(await cutList(database, job, 112, 3), [ids[2], ids[5], ids[6]])
  t.same(await listed(), ids)
  t.same(await listed(ids[2], ids[5]), ids.slice(3, 6))
  t.same(await listed(ids[5]), ids.slice(6))
})

t.test('keeps files while a download of them begins', async (t) => {
  const stop = run()
  const url = await kickOff(admin, '$export?_type=Patient')
  await fetchManifest(admin, url)
  await stop()
  const values = [idOf(url)]
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
  t.equal((await filesOf(url)).length, 1)
  await database.query(set('clock_timestamp()'))
  t.equal(await sweep(), true)
  t.same(await filesOf(url), [])
})

t.test('ends an export together with its records, or resumes it', async (t) => {
  const url = await kickOff(admin, '$export?_type=Patient')
  const path = `BulkDataExport/${idOf(url)}`
  await (await nextPart('plan'))()
  await (await nextPart('output'))()
  const close = await nextPart('close')
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

async function nextPart(kind: string): Promise<() => Promise<void>> {
  const taken = await leaseExportPart(database)
  if (taken?.part.kind !== kind) throw new Error(`There is no ${kind}`)
  const principal = await activePrincipal(botica.services, taken.job.input)
  if (principal === undefined) throw new Error('There is no member')
  return () => runPart(exporting, principal, taken, new AbortController().signal)
}

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
    values: [idOf(url)],
  })
}

async function isSwept(url: string): Promise<boolean> {
  const [row] = await database.query<{ swept: boolean }>({
    text: 'select swept from export_job where id = $1',
    values: [idOf(url)],
  })
  return row?.swept === true
}

function idOf(url: string): string {
  return url.slice(url.lastIndexOf('/') + 1)
}

function filesOf(url: string): Promise<string[]> {
  const own = join(folder, 'exports', botica.project.id ?? '', idOf(url))
  return readdir(own).catch(() => [])
}
