/**
 * Imports a hospital of 50,000 resources and a larger one into the same tables, and runs each search in both, one at a
 * time. It may cost twice as much in the larger one, and 250 ms at the most.
 */
import { Readable } from 'node:stream'
import { withClient } from '../postgres.ts'
import { exported } from './export.ts'
import { buildHospital, buildShapes, type Hospital } from './hospital.ts'
import { allowOwnIds, type Input, importInputs } from './import.ts'
import { type Figure, type Load, openWire, type Wire } from './load.ts'
import type { BenchProject, Stage } from './stage.ts'

const BASE = 50_000
/** Lines of one file, so that a worker reads several at once. */
const FILE = 250_000
const CHUNK = 500
const MOST_GROWTH = 2
const MOST_MS = 250
/** Share of the time for a first round, in which V8 compiles. */
const WARM_UP = 0.1

export async function large(
  stage: Stage,
  seconds: number,
  resources: number,
): Promise<readonly Figure[]> {
  await stage.start('worker')
  const base = await openHospital(stage, buildHospital(0, BASE))
  const all = await openHospital(stage, buildHospital(1, resources))
  for (const query of base.queries.values()) await measureSearch(base, query, seconds * WARM_UP)
  const figures: Figure[] = []
  for (const [name, query] of all.queries) {
    const before = await measureSearch(base, base.queries.get(name) ?? query, seconds)
    figures.push(compare(name, await measureSearch(all, query, seconds), before))
    const { what, ours, limit, required } = figures.at(-1) ?? {}
    console.error(`${what}: ${ours} (${limit}) ${required}`)
  }
  for (const one of [base, all]) {
    one.wire.close()
    const { rows, seconds: took } = await exported(stage, one.project.token, '$export')
    one.others.set('system export', `${Math.round(rows / took)} lines/s`)
  }
  for (const [what, ours] of all.others) {
    figures.push({ what, ours, limit: base.others.get(what) ?? '' })
  }
  return figures
}

interface Loaded {
  readonly base: string
  readonly project: BenchProject
  readonly wire: Wire
  readonly queries: ReadonlyMap<string, (n: number) => string>
  readonly others: Map<string, string>
}

async function openHospital(stage: Stage, hospital: Hospital): Promise<Loaded> {
  const project = await stage.openProject()
  await allowOwnIds(project)
  const base = `${stage.baseUrl}fhir/R4/`
  const count = Object.values(hospital.counts).reduce((sum, some) => sum + some, 0)
  const took = await importInputs(base, project.token, toInputs(hospital))
  const began = performance.now()
  // It may take longer than the limits of requests.
  await withClient({ connectionString: stage.config.databaseUrl }, (client) =>
    client.query('vacuum analyze'),
  )
  const vacuumed = (performance.now() - began) / 1000
  await stage.services.database.query({ text: 'checkpoint' })
  const others = new Map([
    ['import', `${Math.round(count / took)} resources/s`],
    ['vacuum analyze', `${vacuumed.toFixed(1)} s`],
    ...(await tableSizes(stage)),
  ])
  const wire = await openWire(stage.baseUrl, 1, project.token, 'application/fhir+json')
  return { base, project, wire, queries: new Map(buildShapes(hospital)), others }
}

function toInputs({ counts, generate }: Hospital): readonly Input[] {
  return (Object.keys(counts) as (keyof typeof counts)[]).flatMap((type) => {
    const files = Math.ceil(counts[type] / FILE)
    const lines = function* (first: number, end: number) {
      for (let n = first; n < end; n += CHUNK) {
        const some = Array.from({ length: Math.min(CHUNK, end - n) }, (_, i) =>
          generate(type, n + i),
        )
        yield some.map((one) => `${JSON.stringify(one)}\n`).join('')
      }
    }
    return Array.from({ length: files }, (_, i) => ({
      type,
      body: () =>
        Readable.toWeb(Readable.from(lines(i * FILE, Math.min((i + 1) * FILE, counts[type])))),
    }))
  })
}

/** Bytes of each table and its indexes for each resource of the database. */
async function tableSizes({ services }: Stage): Promise<readonly [string, string][]> {
  const rows = await services.database.query<{ name: string; rows: number; bytes: number }>({
    text: `select t.name, (select greatest(reltuples, 1)::float8 from pg_class
          where oid = 'resource'::regclass) as rows, t.bytes
      from (select relname as name, pg_table_size(oid)::float8 as bytes from pg_class
        where relkind = 'r' and relname in ('version', 'resource', 'idx_string', 'idx_range')
        union all select indexrelid::regclass::text, pg_relation_size(indexrelid)::float8 from pg_index
        where indrelid in ('version'::regclass, 'resource'::regclass, 'idx_string'::regclass,
          'idx_range'::regclass)) t
      where t.bytes > 1000000 order by t.name`,
  })
  return rows.map(({ name, rows: count, bytes }) => [
    `size of ${name}`,
    `${Math.round(bytes / count)} bytes a resource`,
  ])
}

interface Search {
  /** Undefined when a search failed. */
  readonly load: Load | undefined
  readonly found: string
}

async function measureSearch(
  { base, wire, project }: Loaded,
  query: (n: number) => string,
  seconds: number,
): Promise<Search> {
  let n = 0
  const load = await wire
    .load(seconds, () => ['GET', `/fhir/R4/${query(n++)}`])
    .catch(() => undefined)
  const answer = await fetch(base + query(0), {
    headers: { Authorization: `Bearer ${project.token}` },
  })
  const { entry = [], total } = (await answer.json()) as { entry?: unknown[]; total?: number }
  return { load, found: total === undefined ? `${entry.length}` : `${entry.length} of ${total}` }
}

function compare(what: string, all: Search, base: Search): Figure {
  const growth = sumCpuMs(all) / sumCpuMs(base)
  const isMet = growth <= MOST_GROWTH && (all.load?.p99Ms ?? Infinity) <= MOST_MS
  return {
    what,
    ours: formatSearch(all),
    limit: formatSearch(base),
    ratio: growth.toFixed(1),
    required: isMet ? '' : 'MISSED',
  }
}

function sumCpuMs({ load }: Search): number {
  return load === undefined ? Infinity : load.cpuMs.service + load.cpuMs.stores
}

function formatSearch({ load, found }: Search): string {
  if (load === undefined) return 'failed'
  const ms = `p50 ${load.p50Ms.toFixed(1)}, p99 ${load.p99Ms.toFixed(0)} ms`
  return `${ms}, CPU ${load.cpuMs.service.toFixed(1)}+${load.cpuMs.stores.toFixed(1)}, found ${found}`
}
