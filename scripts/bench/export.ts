/**
 * A system export to disk, plain and packed, beside `COPY … TO STDOUT` of the same rows, round about; the
 * worker's largest memory with a tenth of the rows and with all; reads of another Project and runs of its bot
 * alone and while an export runs; and a Group of a tenth of the patients beside all of them.
 */
import { readFileSync } from 'node:fs'
import { openCopySessions } from '../../shared/platform/postgres/copy.ts'
import { settleIndexRevision } from '../../shared/store/migrate.ts'
import type { Figure } from '../bench.ts'
import { freePort } from '../service.ts'
import { startWeb, startWorker, stopChild, untilReady } from './children.ts'
import { exported, MIB, type Run } from './export-job.ts'
import { neighbour } from './export-neighbour.ts'
import { fillProject, patientsOf } from './export-rows.ts'
import { median } from './load.ts'
import { openProject } from './project.ts'
import { openStage, type Stage } from './stage.ts'

const ROUNDS = 3
const GROUP_SHARE = 10
/** Nothing is packed by 0. */
const DEFAULT_LEVEL = 1
const LEVELS = [0, DEFAULT_LEVEL]

export async function exports(seconds: number, resources: number): Promise<readonly Figure[]> {
  const port = await freePort()
  const baseUrl = `http://127.0.0.1:${port}/`
  const stage = await openStage({ PORT: String(port), BASE_URL: baseUrl })
  const web = startWeb(stage.env)
  try {
    await untilReady(baseUrl, false)
    // The first worker would go through all rows that are there, to index them anew.
    await settleIndexRevision(stage.services.database)
    const [small, large] = [await openProject(stage, baseUrl), await openProject(stage, baseUrl)]
    await fillProject(stage, small.projectId, Math.ceil(resources / 10))
    await fillProject(stage, large.projectId, resources)
    const figures: Figure[] = []
    for (const level of LEVELS) {
      const fewer = await withWorker(stage, baseUrl, level, async (pid) => {
        const { rows } = await exported(stage, baseUrl, small.token, '$export')
        return { rows, mib: peakMib(pid) }
      })
      figures.push(
        ...(await withWorker(stage, baseUrl, level, (pid) =>
          beside(stage, baseUrl, large, level, fewer, pid),
        )),
      )
    }
    const others = await withWorker(stage, baseUrl, DEFAULT_LEVEL, async () => [
      await neighbour(stage, baseUrl, large.token, seconds),
      await group(stage, baseUrl, resources),
    ])
    return [...figures, ...others]
  } finally {
    await stopChild(web)
    await stage.close()
  }
}

/** A worker that has done nothing before. */
async function withWorker<T>(
  { env }: Stage,
  baseUrl: string,
  level: number,
  work: (pid: number | undefined) => Promise<T>,
): Promise<T> {
  const worker = startWorker({ ...env, EXPORT_COMPRESSION_LEVEL: String(level) })
  try {
    await untilReady(baseUrl, true)
    return await work(worker.pid)
  } finally {
    await stopChild(worker)
  }
}

/** Exports of all beside `COPY`, round about, and what they took of memory. */
async function beside(
  stage: Stage,
  baseUrl: string,
  { token, projectId }: { readonly token: string; readonly projectId: string },
  level: number,
  fewer: { readonly rows: number; readonly mib: number },
  pid: number | undefined,
): Promise<readonly Figure[]> {
  const rounds: { ours: number; limit: number }[] = []
  let rows = 0
  for (let round = 0; round <= ROUNDS; round++) {
    const limit = await copied(stage, projectId)
    const ours = await exported(stage, baseUrl, token, '$export')
    rows = ours.rows
    if (round > 0) rounds.push({ ours: ours.mibPerSecond, limit: limit.mibPerSecond })
  }
  const of = (name: 'ours' | 'limit') => median(rounds.map((round) => round[name])).toFixed(0)
  const mib = peakMib(pid)
  return [
    {
      what: `system export of ${rows} to disk, level ${level}`,
      ours: `${of('ours')} MiB/s of plain text`,
      limit: `${of('limit')} MiB/s`,
      ratio: median(rounds.map(({ ours, limit }) => ours / limit)).toFixed(2),
      required: level === 0 ? '>= 0.7' : '',
    },
    {
      what: `worker's peak memory, ${rows} rows beside ${fewer.rows}, level ${level}`,
      ours: `${mib} MiB`,
      limit: `${fewer.mib} MiB`,
      ratio: (mib / fewer.mib).toFixed(2),
      required: '<= 250 MiB',
    },
  ]
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

/** Largest resident memory of a process since it began. */
function peakMib(pid: number | undefined): number {
  const text = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Math.round(Number(/VmHWM:\s*(\d+)/.exec(text)?.[1]) / 1024)
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
