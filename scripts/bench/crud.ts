/**
 * The repository against the same PostgreSQL holding the same bytes in one plain table. Both run in this
 * process, round about, so that the client's CPU is part of both.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { type Principal, systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Figure } from '../bench.ts'
import { type Load, measure, median } from './load.ts'
import { syntheaResources } from './samples.ts'
import { openStage, type Stage } from './stage.ts'

const ROUNDS = 5
const FILL_SECONDS = 3
/** V8 needs some thousand calls before the code is what it stays. */
const WARM_UP = { callers: 16, seconds: 2 }

export async function crud(seconds: number): Promise<readonly Figure[]> {
  const stage = await openStage()
  try {
    const bench = await prepare(stage)
    const figures: Figure[] = []
    for (const [callers, required] of [
      [1, '0.65'],
      [16, '0.6'],
      [64, '0.9'],
    ] as const) {
      figures.push(
        await compare(`create, ${callers} callers`, required, callers, seconds, {
          ours: bench.create,
          limit: bench.rawInsert,
        }),
      )
    }
    for (const callers of [1, 16]) {
      figures.push(
        await compare(`read, ${callers} callers`, '0.7', callers, seconds, {
          ours: bench.read,
          limit: bench.rawRead,
        }),
      )
      figures.push(
        await compare(`update, ${callers} callers`, '0.6', callers, seconds, {
          ours: bench.update,
          limit: bench.rawUpdate,
        }),
      )
      figures.push(
        await compare(`read, then update, ${callers} callers`, '0.6', callers, seconds, {
          ours: bench.change,
          limit: bench.rawChange,
        }),
      )
    }
    await bench.close()
    return figures
  } finally {
    await stage.close()
  }
}

type Call = (caller: number) => Promise<boolean>

/** Alternating rounds; the median of the rounds' ratios is the one that counts. */
async function compare(
  what: string,
  required: string,
  callers: number,
  seconds: number,
  calls: { ours: Call; limit: Call },
): Promise<Figure> {
  await measure(WARM_UP.callers, WARM_UP.seconds, calls.limit)
  await measure(WARM_UP.callers, WARM_UP.seconds, calls.ours)
  const rounds: { ours: Load; limit: Load }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const limit = await measure(callers, seconds, calls.limit)
    const ours = await measure(callers, seconds, calls.ours)
    if (ours.failed + limit.failed > 0) throw new Error(`${what}: calls failed`)
    rounds.push({ ours, limit })
  }
  const rate = (side: 'ours' | 'limit') =>
    `${Math.round(median(rounds.map((round) => round[side].perSecond)))}/s, p99 ${median(
      rounds.map((round) => round[side].p99Ms),
    ).toFixed(1)} ms`
  const ratio = median(rounds.map(({ ours, limit }) => ours.perSecond / limit.perSecond))
  return { what, ours: rate('ours'), limit: rate('limit'), ratio: ratio.toFixed(2), required }
}

async function prepare({ services, config }: Stage) {
  const { repository } = services
  const principal = await benchPrincipal(services)
  const all = await syntheaResources()
  const resources = all.filter(({ resourceType }) => resourceType === 'Observation')
  const texts = resources.map((resource) => JSON.stringify(resource))
  const pool = new pg.Pool({ connectionString: config.databaseUrl, max: 64 })
  await pool.query('create table bench_raw (id uuid primary key, content text not null)')
  const any = <T>(list: readonly T[]): T => {
    const item = list[Math.floor(Math.random() * list.length)]
    if (item === undefined) throw new Error('There is nothing to choose from')
    return item
  }

  const stored: { readonly id: string; readonly resource: Resource }[] = []
  const raw: string[] = []
  const create: Call = async () => {
    const resource = any(resources)
    const { id } = await repository.create(principal, resource)
    stored.push({ id, resource })
    return true
  }
  const rawInsert: Call = async () => {
    const id = randomUUID()
    await pool.query({
      name: 'bench_insert',
      text: 'insert into bench_raw values ($1, $2)',
      values: [id, any(texts)],
    })
    raw.push(id)
    return true
  }
  const readOf = async (id: string) => {
    const version = await repository.read(principal, 'Observation', id)
    return version.content !== undefined
  }
  const rawReadOf = async (id: string) => {
    const { rows } = await pool.query({
      name: 'bench_read',
      text: 'select content from bench_raw where id = $1',
      values: [id],
    })
    return rows.length === 1
  }
  const read: Call = () => readOf(any(stored).id)
  const rawRead: Call = () => rawReadOf(any(raw))
  let turn = 0
  /** Both sides begin with rows and with statistics of them, as any server in use has. */
  async function fill(): Promise<void> {
    await measure(64, FILL_SECONDS, create)
    await measure(16, FILL_SECONDS, rawInsert)
    await pool.query('analyze')
  }
  /** One element changes, as in most updates of a hospital's day. */
  const updateOf = async ({ id, resource }: (typeof stored)[number]) => {
    const next = { ...resource, id, language: `x-${turn++}` }
    return (await repository.update(principal, next)).outcome === 'updated'
  }
  const rawUpdateOf = async (id: string) => {
    const { rowCount } = await pool.query({
      name: 'bench_update',
      text: 'update bench_raw set content = $2 where id = $1',
      values: [id, any(texts)],
    })
    return rowCount === 1
  }
  const update: Call = () => updateOf(any(stored))
  const rawUpdate: Call = () => rawUpdateOf(any(raw))
  /** As a client that changes what it has just looked at. */
  const change: Call = async () => {
    const row = any(stored)
    return (await readOf(row.id)) && (await updateOf(row))
  }
  const rawChange: Call = async () => {
    const id = any(raw)
    return (await rawReadOf(id)) && (await rawUpdateOf(id))
  }
  await fill()
  const close = () => pool.end()
  return { create, rawInsert, read, rawRead, update, rawUpdate, change, rawChange, close }
}

export async function benchPrincipal(services: Stage['services']): Promise<Principal> {
  const { id } = await services.repository.create(systemPrincipal(SYSTEM_PROJECT), {
    resourceType: 'Project',
    name: 'Bench',
    strictMode: true,
  })
  const project = await services.principals.project(id)
  if (!project) throw new Error('The bench project was not made')
  return { ...systemPrincipal(project), isSuperAdmin: false }
}
