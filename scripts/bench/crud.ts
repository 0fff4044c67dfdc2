/**
 * The repository against one plain table with the same data in the same PostgreSQL. Both run alternately in this
 * process and share its client overhead.
 */
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import type { Resource } from '../../shared/fhir/resource.ts'
import { alternate, type Figure, measure } from './load.ts'
import { pickSample, syntheaResources } from './samples.ts'
import type { Stage } from './stage.ts'

const ROUNDS = 5
const FILL_SECONDS = 3
const AREAS = [
  ['create', 1, '0.65'],
  ['create', 16, '0.6'],
  ['create', 64, '0.9'],
  ['read', 1, '0.7'],
  ['read', 16, '0.7'],
  ['update', 1, '0.6'],
  ['update', 16, '0.6'],
] as const

type Call = () => Promise<boolean>
type Calls = Readonly<Record<'create' | 'read' | 'update', { ours: Call; limit: Call }>>

export async function crud(stage: Stage, seconds: number): Promise<readonly Figure[]> {
  const pool = new pg.Pool({ connectionString: stage.config.databaseUrl, max: 64 })
  const calls = await prepareCalls(stage, pool)
  const figures: Figure[] = []
  for (const [name, callers, required] of AREAS) {
    const rate = (call: Call) => async () => (await measure(callers, seconds, call)).perSecond
    const { ours, limit } = calls[name]
    const found = await alternate(ROUNDS, rate(ours), rate(limit))
    const show = (side: 'ours' | 'limit') => `${Math.round(found[side])}/s`
    figures.push({
      what: `${name}, ${callers} callers`,
      ours: show('ours'),
      limit: show('limit'),
      ratio: found.ratio,
      required,
    })
  }
  await pool.end()
  return figures
}

async function prepareCalls(stage: Stage, pool: pg.Pool): Promise<Calls> {
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
