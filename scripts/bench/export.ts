/**
 * A system export to disk, plain and compressed, against `COPY … TO STDOUT` of the same rows; the worker's peak memory;
 * reads of another Project with and without an export; and a Group with a tenth of the patients.
 */
import { randomUUIDv7 } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { Resource } from '../../shared/fhir/resource.ts'
import { openCopySessions } from '../../shared/postgres/copy.ts'
import { alternate, awaitJob, type Figure, median, openWire } from './load.ts'
import { createAll, load, syntheaResources } from './samples.ts'
import type { BenchProject as Project, Stage } from './stage.ts'

type Run = Awaited<ReturnType<typeof exported>>

const ROUNDS = 3
const MIB = 1024 * 1024
const PATIENTS = 1000
const GROUP_SHARE = 10
const READERS = 4

export async function exports(
  stage: Stage,
  seconds: number,
  resources: number,
): Promise<readonly Figure[]> {
  const project = await stage.openProject()
  await load(stage.services, project.principal, resources)
  const figures: Figure[] = []
  for (const level of [0, 1]) {
    // A new worker, so that its peak memory is this export's.
    const worker = await stage.start('worker', { EXPORT_COMPRESSION_LEVEL: String(level) })
    figures.push(await compareWithCopy(stage, project, level), memory(worker.pid, level))
    if (level === 1) {
      figures.push(await readers(stage, project, seconds), await group(stage, resources))
    }
    await worker.stop()
  }
  return figures
}

async function compareWithCopy(
  stage: Stage,
  { token, principal }: Project,
  level: number,
): Promise<Figure> {
  let rows = 0
  const { ours, limit, ratio } = await alternate(
    ROUNDS,
    async () => {
      const run = await exported(stage, token, '$export')
      rows = run.rows
      return run.bytes / MIB / run.seconds
    },
    () => copied(stage, principal.project.number),
  )
  return {
    what: `system export of ${rows} to disk, level ${level}`,
    ours: `${ours.toFixed(0)} MiB/s of plain text`,
    limit: `${limit.toFixed(0)} MiB/s`,
    ratio,
    ...(level === 0 ? { required: '>= 0.7' } : {}),
  }
}

/** Returns MiB per second of the same texts, counted and discarded. */
async function copied({ services }: Stage, project: number): Promise<number> {
  const sessions = openCopySessions(services.database)
  const session = await sessions.open(new AbortController().signal)
  let bytes = 0
  const began = performance.now()
  await session.copy(
    `select content from version where project = ${project} and content is not null`,
    ([content]) => {
      if (content) bytes += content.end - content.start + 1
      return undefined
    },
  )
  const seconds = (performance.now() - began) / 1000
  await session.close()
  await sessions.close()
  return bytes / MIB / seconds
}

function memory(pid: number | undefined, level: number): Figure {
  const text = readFileSync(`/proc/${pid}/status`, 'utf8')
  const mib = Math.round(Number(/VmHWM:\s*(\d+)/.exec(text)?.[1]) / 1024)
  const what = `worker's peak memory, level ${level}`
  return { what, ours: `${mib} MiB`, required: '<= 250 MiB' }
}

async function readers(stage: Stage, { token }: Project, seconds: number): Promise<Figure> {
  const other = await stage.openProject()
  const { id } = await stage.services.repository.create(other.principal, {
    resourceType: 'Patient',
  })
  const wire = await openWire(stage.baseUrl, READERS, other.token, 'application/fhir+json')
  const rate = async () =>
    (await wire.load(seconds, () => ['GET', `/fhir/R4/Patient/${id}`])).perSecond
  const { ours, limit, ratio } = await alternate(
    ROUNDS,
    async () => {
      const running = exported(stage, token, '$export')
      const found = await rate()
      await running
      return found
    },
    rate,
  )
  wire.close()
  const show = (perSecond: number) => `${Math.round(perSecond)}/s`
  const what = 'reads of others during an export'
  return { what, ours: show(ours), limit: show(limit), ratio, required: '>= 0.7' }
}

/** Compares the time of a Group export with its share of the bytes. */
async function group(stage: Stage, resources: number): Promise<Figure> {
  const project = await stage.openProject()
  const id = await fillPatients(stage, project, Math.max(9, Math.floor(resources / PATIENTS)))
  const runs: { all: Run; some: Run }[] = []
  for (let round = 0; round <= ROUNDS; round++) {
    const all = await exported(stage, project.token, 'Patient/$export')
    runs.push({ all, some: await exported(stage, project.token, `Group/${id}/$export`) })
  }
  const shares = runs.slice(1).map(({ all, some }) => {
    return some.seconds / ((all.seconds * some.bytes) / all.bytes)
  })
  const show = (run: Run | undefined) => `${run?.seconds.toFixed(2)} s, ${run?.rows} rows`
  return {
    what: `group export of a tenth of ${PATIENTS} patients`,
    ours: show(runs.at(-1)?.some),
    limit: `${show(runs.at(-1)?.all)} of all`,
    ratio: `${median(shares).toFixed(2)} of its share`,
    required: '<= 1.5',
  }
}

async function fillPatients({ services }: Stage, { principal }: Project, each: number) {
  const samples = await syntheaResources()
  const [patient, observation] = ['Patient', 'Observation'].map((type) =>
    samples.find(({ resourceType }) => resourceType === type),
  )
  if (!patient || !observation) throw new Error('There are no samples')
  const { encounter: _encounter, performer: _performer, ...rest } = observation
  const patients = Array.from({ length: PATIENTS }, () => ({ ...patient, id: randomUUIDv7() }))
  const of = ({ id }: Resource) =>
    Array.from({ length: each - 1 }, () => ({
      ...(rest as Resource),
      id: randomUUIDv7(),
      subject: { reference: `Patient/${id}` },
    }))
  const member = patients
    .filter((_, place) => place % GROUP_SHARE === 0)
    .map(({ id }) => ({ entity: { reference: `Patient/${id}` } }))
  const group = { resourceType: 'Group', id: randomUUIDv7(), type: 'person', actual: true, member }
  await createAll(services, principal, [...patients, ...patients.flatMap(of), group])
  return group.id
}

/** Measures from kick-off to the completion time in the row, which polls see later. */
export async function exported(stage: Stage, token: string, path: string) {
  const accepted = await fetch(`${stage.baseUrl}fhir/R4/${path}`, {
    headers: { Authorization: `Bearer ${token}` },
  })
  type Manifest = { output: readonly { readonly count: number }[] }
  const { id, manifest } = await awaitJob<Manifest>(token, accepted)
  const [job] = await stage.services.database.query<{ seconds: number; bytes: number }>({
    text: `select extract(epoch from finished - requested)::float8 as seconds,
        (select sum(bytes)::float8 from export_file where job = id and kind = 'output') as bytes
      from export_job where id = $1`,
    values: [id],
  })
  if (job === undefined) throw new Error('The export is not there any more')
  return { rows: manifest.output.reduce((sum, { count }) => sum + count, 0), ...job }
}
