/**
 * The repository against one plain table with the same data in the same PostgreSQL. Both run alternately in this
 * process and share its client overhead.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Figure } from '../bench.ts'
import { type Load, measure, median } from './load.ts'
import { pickSample, syntheaResources } from './samples.ts'
import { type Stage, withStage } from './stage.ts'

const ROUNDS = 5
const FILL_SECONDS = 3
/** V8 needs some thousand calls to reach a steady state. */
const WARM_UP = { callers: 16, seconds: 2 }
const AREAS = [
  { name: 'create', callers: 1, required: '0.65' },
  { name: 'create', callers: 16, required: '0.6' },
  { name: 'create', callers: 64, required: '0.9' },
  { name: 'read', callers: 1, required: '0.7' },
  { name: 'read', callers: 16, required: '0.7' },
  { name: 'update', callers: 1, required: '0.6' },
  { name: 'update', callers: 16, required: '0.6' },
] as const

type Call = () => Promise<boolean>
type Calls = Readonly<Record<'create' | 'read' | 'update', { ours: Call; limit: Call }>>

export function crud(seconds: number): Promise<readonly Figure[]> {
  return withStage(async (stage) => {
    const pool = new pg.Pool({ connectionString: stage.config.databaseUrl, max: 64 })
    try {
      const calls = await prepare(stage, pool)
      const figures: Figure[] = []
      for (const { name, callers, required } of AREAS) {
        const figure = await compare(callers, seconds, calls[name])
        figures.push({ what: `${name}, ${callers} callers`, ...figure, required })
      }
      return figures
    } finally {
      await pool.end()
    }
  })
}

async function compare(
  callers: number,
  seconds: number,
  calls: Calls['create'],
): Promise<Pick<Figure, 'ours' | 'limit' | 'ratio'>> {
  await measure(WARM_UP.callers, WARM_UP.seconds, calls.limit)
  await measure(WARM_UP.callers, WARM_UP.seconds, calls.ours)
  const rounds: { ours: Load; limit: Load }[] = []
  for (let round = 0; round < ROUNDS; round++) {
    const limit = await measure(callers, seconds, calls.limit)
    rounds.push({ limit, ours: await measure(callers, seconds, calls.ours) })
  }
  const middle = (side: 'ours' | 'limit', key: keyof Load) =>
    median(rounds.map((round) => round[side][key]))
  const show = (side: 'ours' | 'limit') =>
    `${Math.round(middle(side, 'perSecond'))}/s, p99 ${middle(side, 'p99Ms').toFixed(1)} ms`
  const ratio = median(rounds.map(({ ours, limit }) => ours.perSecond / limit.perSecond))
  return { ours: show('ours'), limit: show('limit'), ratio: ratio.toFixed(2) }
}

async function prepare(stage: Stage, pool: pg.Pool): Promise<Calls> {
  const { repository } = stage.services
  const { principal } = await stage.openProject()
  const all = await syntheaResources()
  const resources = all.filter(({ resourceType }) => resourceType === 'Observation')
  const texts = resources.map((resource) => JSON.stringify(resource))
  await pool.query('create table bench_raw (id uuid primary key, content text not null)')
  const statement = async (name: string, text: string, values: readonly string[]) =>
    (await pool.query({ name, text, values: [...values] })).rowCount === 1
  const stored: { readonly id: string; readonly resource: Resource }[] = []
  const raw: string[] = []
  let turn = 0
  const calls: Calls = {
    create: {
      async ours() {
        const resource = pickSample(resources)
        const { id } = await repository.create(principal, resource)
        return stored.push({ id, resource }) > 0
      },
      async limit() {
        const id = randomUUID()
        const text = 'insert into bench_raw values ($1, $2)'
        return (await statement('bench_insert', text, [id, pickSample(texts)])) && raw.push(id) > 0
      },
    },
    read: {
      async ours() {
        const version = await repository.read(principal, 'Observation', pickSample(stored).id)
        return version.content !== undefined
      },
      limit: () =>
        statement('bench_read', 'select content from bench_raw where id = $1', [pickSample(raw)]),
    },
    update: {
      /** Changes one element, like most real updates. */
      async ours() {
        const { id, resource } = pickSample(stored)
        const next = { ...resource, id, language: `x-${turn++}` }
        return (await repository.update(principal, next)).outcome === 'updated'
      },
      limit: () =>
        statement('bench_update', 'update bench_raw set content = $2 where id = $1', [
          pickSample(raw),
          pickSample(texts),
        ]),
    },
  }
  await measure(64, FILL_SECONDS, calls.create.ours)
  await measure(16, FILL_SECONDS, calls.create.limit)
  await pool.query('analyze')
  return calls
}
