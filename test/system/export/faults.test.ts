/** Imports the loop of exports, to run it with failing storages. */
import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Redis } from 'ioredis'
import { Registry } from 'prom-client'
import t from 'tap'
import { startExports } from '../../../shared/export/worker.ts'
import { createExportMetrics } from '../../../shared/export/worker-services.ts'
import type { Storage } from '../../../shared/outbound/storage/storage.ts'
import { openBotica, until } from '../../fixtures/botica.ts'
import {
  ended,
  exportedAt,
  exportId,
  idsIn,
  isSwept,
  kickOff,
} from '../../fixtures/exports/exports.ts'
import { openGate } from '../../fixtures/exports/gate.ts'
import { anOrganization, aPatient } from '../../fixtures/resources.ts'
import { limitFiles } from '../../fixtures/services/full-disk.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin } = botica
const { database, config } = botica.services

/** More failures than a part may have. */
const FULL_TRIES = 3
const KILLS = 5
const DONE_MS = 120_000
/** Idle workers poll for exports more often than this. */
const LOOKS_MS = 5000
/** Rows per block: a file has more blocks than the test kills workers. */
const ROWS = 5
const large: Awaited<ReturnType<typeof admin.create>>[] = []
// Sequential, since parallel writes time out on a busy machine.
for (let made = 0; made < (KILLS + 3) * ROWS; made++) {
  const valueString = randomBytes(600_000).toString('base64')
  const extension = [{ url: 'https://example.org/scan', valueString }]
  large.push(await admin.create(anOrganization({ extension })))
}
const workers: ChildProcess[] = []
const patients = await Promise.all([1, 2, 3].map(() => admin.create(aPatient())))
const ids = large.map(({ id }) => id).sort()

const gate = await openGate(database)

t.test('continues an export after the last stored block when workers die', async (t) => {
  const url = await kickOff(admin, '$export?_type=Organization,Patient')
  for (let blocks = 1; blocks <= KILLS; blocks++) {
    const open = await gate.close(blocks + 1)
    const worker = await botica.startWorker()
    await untilWritten(url, blocks)
    await end(worker, 'SIGKILL')
    await gate.dropWaiting()
    await open()
    await database.query({
      text: `update export_part set lease = clock_timestamp() where job = $1 and state = 'active'`,
      values: [exportId(url)],
    })
  }
  const [before] = await written(url)
  t.equal(before?.blocks.length, KILLS)
  const open = await gate.close(KILLS + 2)
  const stopped = await botica.startWorker()
  await untilWritten(url, KILLS + 1)
  const gone = end(stopped, 'SIGTERM')
  await open()
  t.equal(await gone, 0, 'a stopped worker exits cleanly')
  workers.push(await botica.startWorker())
  const exported = await exportedAt(admin, url)
  t.same(idsIn(exported, 'Organization'), ids, 'exports each resource once')
  t.same(idsIn(exported, 'Patient'), patients.map(({ id }) => id).sort())
  const [after] = await written(url)
  t.ok((after?.epoch ?? 0) > KILLS, 'several workers took part')
  t.same(after?.blocks.slice(0, before?.blocks.length), before?.blocks, 'repeats no completed work')
})

t.test('leaves no file of an export cancelled while it runs', async (t) => {
  const open = await gate.close(2)
  const url = await kickOff(admin, '$export?_type=Organization')
  await untilWritten(url, 1)
  t.equal((await admin.del(url)).status, 202)
  t.equal((await admin.get(url)).status, 404)
  await open()
  await until(
    async () => (await listFiles(url)).length === 0 && (await isSwept(database, url)),
    DONE_MS,
  )
  t.pass('deletes everything')
})

t.test('deletes files whose upload ends after the export was cancelled', async (t) => {
  for (const worker of workers.splice(0)) t.equal(await end(worker, 'SIGTERM'), 0)
  const { services } = botica
  const late = Promise.withResolvers<void>()
  const storage: Storage = {
    ...services.storage,
    async put(key, source) {
      if (key.endsWith('-2')) await late.promise
      return services.storage.put(key, source)
    },
  }
  const exports = startExports(
    { ...services, storage },
    createExportMetrics(new Registry()),
    () => false,
  )
  const open = await gate.close(2)
  const url = await kickOff(admin, '$export?_type=Organization')
  await untilWritten(url, 1)
  t.equal((await admin.del(url)).status, 202)
  await open()
  await delay(LOOKS_MS)
  t.notOk(await isSwept(database, url), 'a worker is still writing')
  late.resolve()
  await until(() => isSwept(database, url), DONE_MS)
  await exports.stop()
  t.same(await listFiles(url), [])
  workers.push(await botica.startWorker())
})

t.test('completes an export after Redis lost its data', async (t) => {
  const url = await kickOff(admin, '$export?_type=Organization')
  const redis = new Redis(config.redisUrl)
  t.teardown(() => redis.disconnect())
  await redis.flushdb()
  t.same(idsIn(await exportedAt(admin, url), 'Organization'), ids)
})

t.test(
  'pauses an export while the storage is full',
  { skip: process.platform !== 'linux' },
  async (t) => {
    const limited = await botica.createTenant()
    const valueString = randomBytes(3000).toString('base64')
    await limited.admin.create(
      anOrganization({ extension: [{ url: 'https://example.org/scan', valueString }] }),
    )
    for (const worker of workers) await limitFiles(worker, '1000')
    const url = await kickOff(limited.admin, '$export?_type=Organization')
    await until(async () => (await countTries(url)) > FULL_TRIES, DONE_MS)
    t.equal((await limited.admin.get(url)).status, 202)
    for (const worker of workers) await limitFiles(worker, 'unlimited')
    t.equal((await ended(limited.admin, url)).status, 200)
  },
)

async function untilWritten(url: string, blocks: number): Promise<void> {
  await until(async () => (await written(url))[0]?.blocks.length === blocks, DONE_MS)
}

async function written(url: string) {
  return database.query<{ blocks: unknown[]; epoch: number }>({
    text: `select f.blocks, p.epoch from export_file f
      join export_part p on p.job = f.job and p.n = f.part where f.job = $1 and f.type = $2`,
    values: [exportId(url), 'Organization'],
  })
}

async function countTries(url: string): Promise<number> {
  const [row] = await database.query<{ tries: number }>({
    text: 'select max(epoch) as tries from export_part where job = $1',
    values: [exportId(url)],
  })
  return row?.tries ?? 0
}

async function end(worker: ChildProcess, signal: NodeJS.Signals): Promise<number | null> {
  const exited = once(worker, 'exit')
  worker.kill(signal)
  const [code] = await exited
  return code
}

async function listFiles(url: string, project = botica.project.id): Promise<string[]> {
  const folder = join(
    config.storageUrl.slice('file:'.length),
    'exports',
    project ?? '',
    exportId(url),
  )
  return readdir(folder, { recursive: true }).catch(() => [])
}
