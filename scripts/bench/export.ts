/**
 * A system export to disk, plain and compressed, against `COPY … TO STDOUT` of the same rows; the worker's peak memory;
 * reads of another Project with and without an export; and a Group with a tenth of the patients.
 */
import { randomUUIDv7 } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import type { Resource } from '../../shared/fhir/resource.ts'
import { openCopySessions } from '../../shared/postgres/copy.ts'
import type { Figure } from '../bench.ts'
import { alternate, measure, median, medianRatio, openWire } from './load.ts'
import { createAll, load, syntheaResources } from './samples.ts'
import { type BenchProject as Project, type Stage, stop, withStage } from './stage.ts'

const ROUNDS = 3
const MIB = 1024 * 1024
const PATIENTS = 1000
const GROUP_SHARE = 10
const READERS = 4
/** More frequent polls return 429. */
const POLL_MS = 100

interface Run {
  readonly rows: number
  readonly bytes: number
  readonly seconds: number
}

export function exports(seconds: number, resources: number): Promise<readonly Figure[]> {
  return withStage(async (stage) => {
    const project = await stage.openProject()
    await load(stage.services, project.principal, resources)
    const figures: Figure[] = []
    for (const level of [0, 1]) {
      // A new worker, so that its peak memory is this export's.
      const worker = await stage.start('worker', { EXPORT_COMPRESSION_LEVEL: String(level) })
      figures.push(await beside(stage, project, level), memory(worker.pid, level))
      if (level === 1) {
        figures.push(await readers(stage, project, seconds), await group(stage, resources))
      }
      await stop(worker)
    }
    return figures
  })
}

async function beside(stage: Stage, { token, principal }: Project, level: number): Promise<Figure> {
  let rows = 0
  const { ours, limit } = await alternate(ROUNDS, {
    limit: () => copied(stage, principal.project.number),
    ours: async () => {
      const run = await exported(stage, token, '$export')
      rows = run.rows
      return run.bytes / MIB / run.seconds
    },
  })
  return {
    what: `system export of ${rows} to disk, level ${level}`,
    ours: `${median(ours).toFixed(0)} MiB/s of plain text`,
    limit: `${median(limit).toFixed(0)} MiB/s`,
    ratio: medianRatio(ours, limit),
    required: level === 0 ? '>= 0.7' : '',
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
  return { what, ours: `${mib} MiB`, limit: '', ratio: '', required: '<= 250 MiB' }
}

async function readers(stage: Stage, { token }: Project, seconds: number): Promise<Figure> {
  const other = await stage.openProject()
  const { id } = await stage.services.repository.create(other.principal, {
    resourceType: 'Patient',
  })
  const wire = await openWire(stage.baseUrl, READERS, other.token, 'application/fhir+json')
  const rate = async () => {
    const read = async (caller: number) =>
      (await wire.send(caller, 'GET', `/fhir/R4/Patient/${id}`)) === 200
    return (await measure(READERS, seconds, read)).perSecond
  }
  const { ours, limit } = await alternate(ROUNDS, {
    limit: rate,
    ours: async () => {
      const running = exported(stage, token, '$export')
      const found = await rate()
      await running
      return found
    },
  })
  wire.close()
  const show = (rates: readonly number[]) => `${Math.round(median(rates))}/s`
  const what = 'reads of others beside an export'
  const ratio = medianRatio(ours, limit)
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
async function exported(stage: Stage, token: string, path: string): Promise<Run> {
  const ask = (url: string) =>
    fetch(new URL(url, `${stage.baseUrl}fhir/R4/`), {
      headers: { Authorization: `Bearer ${token}` },
    })
  const status = (await ask(path)).headers.get('content-location') ?? ''
  let answer = await ask(status)
  for (; answer.status !== 200; answer = await ask(status)) {
    if (answer.status !== 202 && answer.status !== 429) {
      throw new Error(`The export answered ${answer.status}`)
    }
    await delay(POLL_MS)
  }
  const { output } = (await answer.json()) as { output: readonly { readonly count: number }[] }
  const [job] = await stage.services.database.query<{ seconds: number; bytes: number }>({
    text: `select extract(epoch from finished - requested)::float8 as seconds,
        (select sum(bytes)::float8 from export_file where job = id and kind = 'output') as bytes
      from export_job where id = $1`,
    values: [status.slice(status.lastIndexOf('/') + 1)],
  })
  if (job === undefined) throw new Error('The export is not there any more')
  return { rows: output.reduce((sum, { count }) => sum + count, 0), ...job }
}
