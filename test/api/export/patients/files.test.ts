/** Imports the runner of parts, to interrupt an export at chosen lines. */
import { randomBytes, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import t from 'tap'
import { type Blocks, createBlocks } from '../../../../shared/export/block.ts'
import { partEnds } from '../../../../shared/export/rows/compartments.ts'
import { leaseExportPart } from '../../../../shared/export/rows/parts.ts'
import type { Exporting } from '../../../../shared/export/worker-services.ts'
import { openBotica, until } from '../../../fixtures/botica.ts'
import { exportId, fetchExportLines, kickOff } from '../../../fixtures/exports/exports.ts'
import { openGate } from '../../../fixtures/exports/gate.ts'
import {
  BY_PATIENT,
  exportByPatient,
  type Line,
  lineReference,
  namesIn,
  organizedAt,
  type PatientManifest,
  readPatientBlocks,
} from '../../../fixtures/exports/patient-exports.ts'
import { nextPart, openExporting, runTaken } from '../../../fixtures/exports/steps.ts'
import { anObservation, aPatient } from '../../../fixtures/resources.ts'
import { createDatabase } from '../../../fixtures/store/own-database.ts'
import { countStatements } from '../../../fixtures/store/store.ts'

const botica = await openBotica(t, {
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, services } = botica
const { database } = services
const usual = openExporting(t, services)
const DONE_MS = 60_000
/** Statements of a plan, including the transaction that sets its time. */
const PLANNING = 13

const [small, large, third] = [await patientWith(2), await patientWith(20), await patientWith(3)]
const whole = new Map<string, readonly string[]>()

t.test('plans many patients with the statements of one', async (t) => {
  // This process sometimes runs an unrelated statement in between.
  const planned = async (path: string) => {
    const counts: number[] = []
    for (let round = 0; round < 3; round++) {
      const url = await kickOff(admin, `${path}?${BY_PATIENT}`)
      counts.push(await countStatements(database, await nextPart(usual, 'plan')))
      t.equal((await admin.del(url)).status, 202)
    }
    return Math.min(...counts)
  }
  t.equal(await planned('Patient/$export'), PLANNING)
  t.equal(await planned(`${small}/$export`), PLANNING - 1, 'does not search for named patients')
})

t.test('splits an export into ranges of patients with similar line counts', async (t) => {
  const job = randomUUID()
  const patients = Array.from({ length: 8 }, () => randomUUID()).sort()
  for (const [i, lines] of [3, 3, 4, 1, 25, 2, 8, 1].entries()) {
    await database.query({
      text: `insert into export_compartment (job, patient, place, ids)
        select $1, $2, n % 3, array[gen_random_uuid()] from generate_series(1, $3) n`,
      values: [job, patients[i], lines],
    })
  }
  const ends = await partEnds(database, job, 10)
  t.same(
    ends,
    [2, 3, 5, 7].map((i) => patients[i]),
    'a patient larger than a part begins one',
  )
  t.same(await partEnds(database, randomUUID(), 10), [])
})

t.test('splits a patient only at a full file, and reports the continuation', async (t) => {
  const url = await kickOff(admin, `Patient/$export?${BY_PATIENT}`)
  const rows = 10
  await runAll(exportingWith({ fileLimits: { rows, bytes: 1e9 } }))
  const exported = await organizedAt(admin, url)
  for (const patient of [small, large, third]) {
    whole.set(patient, namesIn(exported, patient))
    t.equal(new Set(namesIn(exported, patient)).size, namesIn(exported, patient).length)
  }
  t.same(
    [...whole.values()].map(({ length }) => length),
    [3, 21, 4],
  )
  const { output } = exported.manifest
  for (const { count } of output) t.ok(count <= rows + 1, 'a header and one line beyond the limit')
  for (const [i, { continuesInFile }] of output.entries()) {
    const goesOn = exported.headers[i]?.at(-1) === exported.headers[i + 1]?.[0]
    t.equal(continuesInFile, goesOn ? output[i + 1]?.url : undefined)
  }
  t.ok(output.some(({ continuesInFile }) => continuesInFile !== undefined))
  const torn = exported.headers.flat().filter((one) => one !== large)
  t.equal(torn.length, new Set(torn).size, 'puts patients that fit into one file together')
})

t.test('resumes a part after its last stored line, wherever that line is', async (t) => {
  const url = await kickOff(admin, `Patient/$export?${BY_PATIENT}`)
  await (await nextPart(usual, 'plan'))()
  // Each lease stores this number of blocks, with this number of lines.
  for (const [stored, lines] of [
    [1, 1],
    [2, 1],
    [1, 2],
    [2, 3],
    [1, 5],
    [3, 1],
  ] as const) {
    const dying = exportingWith({ blocks: blocksOfLines(lines), dieAfter: stored })
    await t.rejects((await nextPart(dying, 'output'))(), { cause: { message: /gone/ } })
    await database.query({
      text: `update export_part set lease = clock_timestamp() where state = 'active'`,
      values: [],
    })
  }
  await runAll(exportingWith({ blocks: blocksOfLines(4) }))
  const exported = await organizedAt(admin, url)
  for (const [patient, names] of whole) t.same(namesIn(exported, patient), names, patient)
})

t.test('exports every line once when its worker is killed', async (t) => {
  const value = () => randomBytes(600_000).toString('base64')
  const heavy = lineReference((await admin.create(aPatient())) as Line)
  for (let i = 0; i < 9; i++) {
    const extension = [{ url: 'https://example.org/scan', valueString: value() }]
    await admin.create(anObservation(heavy, { extension }))
  }
  const gate = await openGate(database)
  const open = await gate.close(2)
  const url = await kickOff(admin, `Patient/$export?${BY_PATIENT}`)
  const worker = await botica.startWorker()
  await until(async () => {
    const rows = await database.query({
      text: 'select 1 from export_file where job = $1',
      values: [exportId(url)],
    })
    return rows.length > 0
  }, DONE_MS)
  const exited = once(worker, 'exit')
  worker.kill('SIGKILL')
  await exited
  await gate.dropWaiting()
  await open()
  await database.query({
    text: `update export_part set lease = clock_timestamp() where state = 'active'`,
    values: [],
  })
  const next = await botica.startWorker()
  const exported = await organizedAt(admin, url)
  for (const [patient, names] of whole) t.same(namesIn(exported, patient), names)
  t.equal(new Set(namesIn(exported, heavy)).size, 10)
  t.equal(namesIn(exported, heavy).length, 10)
  const [part] = await database.query<{ epoch: number }>({
    text: `select epoch from export_part where job = $1 and kind = 'output'`,
    values: [exportId(url)],
  })
  t.ok((part?.epoch ?? 0) > 1, 'two workers took part')
  const again = await exportByPatient(admin, 'Patient/$export')
  t.same(again.blocks, exported.blocks, 'matches the export of a single worker')
  const gone = once(next, 'exit')
  next.kill('SIGTERM')
  await gone
})

t.test('lists a file together with its continuations on one manifest page', async (t) => {
  const partial = `Patient/$export?${BY_PATIENT}&allowPartialManifests=true`
  const url = await kickOff(admin, partial)
  await (await nextPart(usual, 'plan'))()
  const limited = { blocks: blocksOfLines(3), fileLimits: { rows: 6, bytes: 1e9 } }
  const named = async () => {
    const rows = await database.query({
      text: 'select 1 from export_file where job = $1 and number is not null',
      values: [exportId(url)],
    })
    return rows.length > 0
  }
  // Blocks are stored in parallel: the first file may be named after the fourth.
  const lastWish = () => until(named, DONE_MS)
  const dying = exportingWith({ ...limited, dieAfter: 4, lastWish })
  await t.rejects((await nextPart(dying, 'output'))(), { cause: { message: /gone/ } })
  t.ok(await named())
  const running = await admin.get<string>(url)
  t.same([running.status, running.text], [202, ''], 'lists complete files of an incomplete part')
  await database.query({
    text: `update export_part set lease = clock_timestamp() where state = 'active'`,
    values: [],
  })
  await (await nextPart(exportingWith(limited), 'output'))()
  const page = await admin.get<PatientManifest>(url)
  t.equal(page.status, 202)
  t.equal(page.body.outputOrganizedBy, 'Patient')
  const { blocks } = await readPatientBlocks(admin, page.body.output)
  for (const [patient, names] of whole) t.same(namesIn({ blocks }, patient), names)
  const urls = page.body.output.map(({ url }) => url)
  for (const { continuesInFile } of page.body.output) {
    if (continuesInFile !== undefined) t.ok(urls.includes(continuesInFile))
  }
  await runAll(exportingWith({}))
  const first = await admin.get<PatientManifest>(`${url}?page=1`)
  t.same(first.body.output, page.body.output, 'the page is unchanged')
})

t.test('removes an unfinished plan of another worker', async (t) => {
  const url = await kickOff(admin, `Patient/$export?${BY_PATIENT}`)
  const first = await nextPart(usual, 'plan')
  await database.query({
    text: `insert into export_compartment (job, patient, place, ids)
      select $1, id, 0, array[id] from resource limit 2`,
    values: [exportId(url)],
  })
  await database.query({
    text: `update export_part set lease = clock_timestamp() where state = 'active'`,
    values: [],
  })
  await (await nextPart(usual, 'plan'))()
  await t.rejects(first())
  await runAll(exportingWith({}))
  const exported = await organizedAt(admin, url)
  for (const [patient, names] of whole) t.same(namesIn(exported, patient), names)
  t.equal((await admin.del(url)).status, 202)
})

t.test('reports and omits resources that would be in too many blocks', async (t) => {
  const patients = await Promise.all(Array.from({ length: 101 }, () => admin.create(aPatient())))
  const valueString = 'x'.repeat(900_000)
  const extension = Array(3).fill({ url: 'https://example.org/scan', valueString })
  const group = await admin.create({
    resourceType: 'Group',
    type: 'person',
    actual: true,
    extension,
    member: patients.map(({ id }) => ({ entity: { reference: `Patient/${id}` } })),
  })
  const url = await kickOff(admin, `Group/${group.id}/$export?${BY_PATIENT}`)
  await runAll(exportingWith({}))
  const exported = await organizedAt(admin, url)
  t.equal(exported.blocks.size, patients.length)
  for (const lines of exported.blocks.values()) t.match(lines, [{ resourceType: 'Patient' }])
  const [line = ''] =
    (await fetchExportLines(admin, exported.manifest.error)).get('OperationOutcome') ?? []
  t.match(line, `Group/${group.id} is in 101 compartments`)
})

interface Ways {
  readonly fileLimits?: Exporting['fileLimits']
  readonly blocks?: Blocks
  /** The storage accepts the first blocks of a lease, up to this number. */
  readonly dieAfter?: number
  /** Awaited before the storage fails. */
  readonly lastWish?: () => Promise<unknown>
}

function exportingWith({ fileLimits, blocks = usual.blocks, dieAfter, lastWish }: Ways): Exporting {
  const storage: Exporting['storage'] = {
    ...services.storage,
    async put(key, source) {
      // Blocks are packed at the same time, so they arrive in any order. Their number ends the key.
      if (dieAfter !== undefined && Number(key.split('-').at(-1)) >= dieAfter) {
        await lastWish?.()
        throw new Error('The worker is gone')
      }
      await services.storage.put(key, source)
    },
  }
  return { ...usual, storage, blocks, ...(fileLimits && { fileLimits }) }
}

/** Returns blocks that count as full after `lines` lines. */
function blocksOfLines(lines: number): Blocks {
  const usual = createBlocks(1)
  return {
    ...usual,
    take(first) {
      const block = usual.take(first)
      return Object.assign(block, { fits: () => block.rows < lines })
    },
  }
}

async function runAll(exporting: Exporting): Promise<void> {
  for (
    let taken = await leaseExportPart(database);
    taken;
    taken = await leaseExportPart(database)
  ) {
    await runTaken(exporting, taken)
  }
}

async function patientWith(observations: number): Promise<string> {
  const patient = lineReference((await admin.create(aPatient())) as Line)
  for (let i = 0; i < observations; i++) await admin.create(anObservation(patient))
  return patient
}
