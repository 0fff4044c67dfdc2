/**
 * A system export to disk beside `COPY … TO STDOUT` of the same rows, round about; the worker's largest
 * memory with a tenth of the rows and with all; reads of another Project and runs of its bot alone and
 * while an export runs; and a Group of a tenth of the patients beside all of them.
 */
import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'
import { openCopySessions } from '../../shared/database-copy.ts'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { connect } from '../session.ts'
import { startWeb, startWorker, stopChild, untilReady } from './children.ts'
import { fillProject, patientsOf } from './export-rows.ts'
import { measure, median, openWire } from './load.ts'
import { openProject } from './project.ts'
import { openStage, type Stage } from './stage.ts'

const ROUNDS = 3
/** Of these each takes four times the seconds of a round. */
const NEIGHBOUR_ROUNDS = 2
const READERS = 4
/** More often, and one is told to slow down. */
const POLL_MS = 100
const MIB = 1024 * 1024
const GROUP_SHARE = 10

export async function exports(seconds: number, resources: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl })
  const web = startWeb(stage.env)
  let worker = startWorker(stage.env)
  try {
    await untilReady(baseUrl, true)
    const small = await openProject(stage, baseUrl)
    await fillProject(stage, small.projectId, Math.ceil(resources / 10))
    const few = await exported(stage, baseUrl, small.token, '$export')
    const fewMib = peakMib(worker.pid)
    await stopChild(worker)
    worker = startWorker(stage.env)
    await untilReady(baseUrl, true)
    const large = await openProject(stage, baseUrl)
    await fillProject(stage, large.projectId, resources)
    const rounds: { ours: number; limit: number }[] = []
    for (let round = 0; round <= ROUNDS; round++) {
      const limit = await copied(stage, large.projectId)
      const ours = await exported(stage, baseUrl, large.token, '$export')
      if (round > 0) rounds.push({ ours: ours.mibPerSecond, limit: limit.mibPerSecond })
    }
    const of = (name: 'ours' | 'limit') => median(rounds.map((round) => round[name])).toFixed(0)
    const manyMib = peakMib(worker.pid)
    const [plain, packed] = await downloads(baseUrl, large.token)
    return [
      {
        what: `system export of ${resources}, packed to disk`,
        ours: `${of('ours')} MiB/s of plain text`,
        limit: `${of('limit')} MiB/s`,
        ratio: median(rounds.map(({ ours, limit }) => ours / limit)).toFixed(2),
        required: '>= 0.7',
      },
      {
        what: 'download, unpacked on the way',
        ours: `${plain.toFixed(0)} MiB/s`,
        limit: `${packed.toFixed(0)} MiB/s of plain text as gzip`,
        ratio: (plain / packed).toFixed(2),
        required: '',
      },
      {
        what: `worker's peak memory, ${resources} rows beside ${few.rows}`,
        ours: `${manyMib} MiB`,
        limit: `${fewMib} MiB`,
        ratio: (manyMib / fewMib).toFixed(2),
        required: '<= 250 MiB',
      },
      await neighbour(stage, baseUrl, large.token, seconds),
      await group(stage, baseUrl, resources),
    ]
  } finally {
    await Promise.all([web, worker].map(stopChild))
    await stage.close()
  }
}

interface Run {
  readonly rows: number
  readonly bytes: number
  readonly seconds: number
  readonly mibPerSecond: number
}

const ask = (baseUrl: string, token: string, url: string, init: RequestInit = {}) =>
  fetch(new URL(url, `${baseUrl}fhir/R4/`), {
    ...init,
    headers: { Authorization: `Bearer ${token}`, ...Object(init.headers) },
  })

interface Manifest {
  readonly output: readonly { readonly url: string; readonly count: number }[]
}

interface Done extends Manifest {
  readonly id: string
}

async function manifestOf(baseUrl: string, token: string, path: string): Promise<Done> {
  const accepted = await ask(baseUrl, token, path)
  const status = accepted.headers.get('content-location') ?? ''
  for (;;) {
    const answer = await ask(baseUrl, token, status)
    if (answer.status === 200) {
      const manifest = (await answer.json()) as Manifest
      return { ...manifest, id: status.slice(status.lastIndexOf('/') + 1) }
    }
    if (answer.status === 429) await delay(1000)
    else if (answer.status !== 202) throw new Error(`The export answered ${answer.status}`)
    await delay(POLL_MS)
  }
}

/** From the kick-off until it was complete, as its row tells: who polls learns of it later. */
async function exported(
  { services }: Stage,
  baseUrl: string,
  token: string,
  path: string,
): Promise<Run> {
  const { output, id } = await manifestOf(baseUrl, token, path)
  const [job] = await services.database.query<{ seconds: number; bytes: number }>({
    text: `select extract(epoch from finished - requested)::float8 as seconds,
        (select sum(bytes)::float8 from export_file where job = id and kind = 'output') as bytes
      from export_job where id = $1`,
    values: [id],
  })
  if (job === undefined) throw new Error('The export is not there any more')
  const rows = output.reduce((sum, { count }) => sum + count, 0)
  return { rows, ...job, mibPerSecond: job.bytes / MIB / job.seconds }
}

/** The same texts, counted and forgotten. */
async function copied({ services }: Stage, projectId: string): Promise<Run> {
  const project = await services.principals.project(projectId)
  const sessions = openCopySessions(services.database)
  const session = await sessions.open(new AbortController().signal)
  let bytes = 0
  let rows = 0
  const began = performance.now()
  await session.copy(
    `select content from version where project = ${project?.number} and content is not null`,
    ([content]) => {
      if (content) bytes += content.end - content.start + 1
      rows += 1
      return undefined
    },
  )
  const seconds = (performance.now() - began) / 1000
  await session.close()
  await sessions.close()
  return { rows, bytes, seconds, mibPerSecond: bytes / MIB / seconds }
}

/** MiB/s of plain text, of files that are unpacked on the way and of files that are not. */
async function downloads(baseUrl: string, token: string): Promise<readonly [number, number]> {
  const { output } = await manifestOf(baseUrl, token, '$export')
  const rate = async (encoding: string) => {
    let bytes = 0
    const began = performance.now()
    for (const { url } of output) {
      const answer = await ask(baseUrl, token, url, { headers: { 'Accept-Encoding': encoding } })
      for await (const chunk of answer.body ?? []) bytes += chunk.length
    }
    return bytes / MIB / ((performance.now() - began) / 1000)
  }
  return [await rate('identity'), await rate('gzip')]
}

/** Largest resident memory of a process since it began. */
function peakMib(pid: number | undefined): number {
  const text = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Math.round(Number(/VmHWM:\s*(\d+)/.exec(text)?.[1]) / 1024)
}

/** Reads of another Project, and runs of its bot, a second. */
async function neighbour(
  stage: Stage,
  baseUrl: string,
  exporter: string,
  seconds: number,
): Promise<Figure> {
  const { token } = await openProject(stage, baseUrl)
  const made = await ask(baseUrl, token, 'Patient', {
    method: 'POST',
    headers: { 'Content-Type': 'application/fhir+json' },
    body: JSON.stringify({ resourceType: 'Patient' }),
  })
  const { id } = (await made.json()) as { id: string }
  const bot = await deployBot()
  const wire = await openWire(baseUrl, READERS, token, 'application/fhir+json')
  const botWire = await openWire(baseUrl, READERS, bot.token, 'text/plain')
  const reads = () =>
    measure(READERS, seconds, async (caller) => {
      const { status } = await wire.send(caller, 'GET', `/fhir/R4/Patient/${id}`, '')
      return status === 200
    })
  const runs = () =>
    measure(READERS, seconds, async (caller) => {
      const path = `/fhir/R4/Bot/${bot.id}/$execute`
      return (await botWire.send(caller, 'POST', path, 'x')).status === 200
    })
  const rounds: { read: number; run: number; readBeside: number; runBeside: number }[] = []
  for (let round = 0; round <= NEIGHBOUR_ROUNDS; round++) {
    const alone = { read: (await reads()).perSecond, run: (await runs()).perSecond }
    const stop = keepExporting(baseUrl, exporter)
    const beside = { readBeside: (await reads()).perSecond, runBeside: (await runs()).perSecond }
    await stop()
    if (round > 0) rounds.push({ ...alone, ...beside })
  }
  wire.close()
  botWire.close()
  const of = (name: keyof (typeof rounds)[number]) =>
    Math.round(median(rounds.map((round) => round[name])))
  const lost = (beside: 'readBeside' | 'runBeside', alone: 'read' | 'run') =>
    median(rounds.map((round) => round[beside] / round[alone])).toFixed(2)
  return {
    what: 'reads and bot runs of another project during an export',
    ours: `${of('readBeside')} reads/s, ${of('runBeside')} runs/s`,
    limit: `${of('read')} reads/s, ${of('run')} runs/s`,
    ratio: `${lost('readBeside', 'read')}, ${lost('runBeside', 'run')}`,
    required: '>= 0.7',
  }
}

/** One export after the other; answers what ends it. */
function keepExporting(baseUrl: string, token: string): () => Promise<void> {
  let isOver = false
  const loop = async () => {
    while (!isOver) await manifestOf(baseUrl, token, '$export')
  }
  const running = loop()
  return async () => {
    isOver = true
    await running
  }
}

async function deployBot(): Promise<{ readonly id: string; readonly token: string }> {
  const admin = await connect()
  const project = await admin.post('admin/Project/', { resourceType: 'Project', name: 'Bots' })
  const home = `admin/projects/${project.id}`
  const client = await admin.post(`${home}/client`, { name: 'Caller' })
  const { token } = await connect({ id: String(client.id), secret: String(client.secret) })
  const bot = await admin.post(`${home}/bot`, { name: 'Beside an export' })
  const code = 'exports.handler = async (medplum, event) => event.input'
  await admin.post(`fhir/R4/Bot/${bot.id}/$deploy`, { code, filename: 'beside.js' })
  return { id: String(bot.id), token }
}

/** Time beside that which the share of bytes would suggest. */
async function group(stage: Stage, baseUrl: string, resources: number): Promise<Figure> {
  const { token, projectId } = await openProject(stage, baseUrl)
  const patients = await patientsOf(stage, projectId, GROUP_SHARE, resources)
  const rounds: number[] = []
  let last: { all: Run; some: Run } | undefined
  for (let round = 0; round <= ROUNDS; round++) {
    const all = await exported(stage, baseUrl, token, 'Patient/$export')
    const some = await exported(stage, baseUrl, token, `Group/${patients.group}/$export`)
    last = { all, some }
    if (round > 0) rounds.push(some.seconds / ((all.seconds * some.bytes) / all.bytes))
  }
  return {
    what: `group export of ${patients.members} of ${patients.count} patients`,
    ours: `${last?.some.seconds.toFixed(2)} s, ${last?.some.rows} rows`,
    limit: `${last?.all.seconds.toFixed(2)} s, ${last?.all.rows} rows of all`,
    ratio: `${median(rounds).toFixed(2)} of its share`,
    required: '<= 1.5',
  }
}
