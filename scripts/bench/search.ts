/**
 * Search over HTTP with 16 callers beside the bare statements of the same searches, sent to PostgreSQL by
 * this process; and how many buffers the plan of a page touches. The slowest plans are printed whole.
 */
import pg from 'pg'
import type { Principal } from '../../shared/access/principal.ts'
import { writeFeatures } from '../../shared/api/write-features.ts'
import type { Statement } from '../../shared/platform/postgres/statement.ts'
import { parseSearch } from '../../shared/query/search.ts'
import { openRepository } from '../../shared/store/open-repository.ts'
import type { Figure } from '../bench.ts'
import { type Load, measure, openWire, type Wire } from './load.ts'
import { type LoadedStage, onLoadedStage } from './loaded.ts'
import { type Shape, shapesOf } from './search-shapes.ts'
import type { Stage } from './stage.ts'

const CALLERS = 16
const SLOWEST = 5
const WARM_CALLS = 6000
const WARM_QUERIES = 20

interface Measured {
  readonly shape: Shape
  readonly ours: Load
  readonly bare: Load
  readonly buffers: number
  /** The plan of the page, as EXPLAIN prints it. */
  readonly plan: string
}

export async function search(seconds: number, resources: number): Promise<readonly Figure[]> {
  return onLoadedStage(resources, async (ready) => {
    const { databaseUrl } = ready.stage.config
    const pool = new pg.Pool({ connectionString: databaseUrl, max: CALLERS })
    try {
      return await measureAll(ready, pool, seconds)
    } finally {
      await pool.end()
    }
  })
}

async function measureAll(
  { stage, baseUrl, token, principal, loaded }: LoadedStage,
  pool: pg.Pool,
  seconds: number,
): Promise<readonly Figure[]> {
  console.log(await sizes(pool))
  const statements = await openRecorder(stage, principal)
  const wire = await openWire(baseUrl, CALLERS, token, 'application/fhir+json')
  const measured: Measured[] = []
  const shapes = shapesOf(loaded)
  await warmUp(shapes, wire)
  for (const shape of shapes) {
    measured.push(await measureShape(shape, wire, pool, statements, seconds))
  }
  wire.close()
  printSlowest(measured)
  return measured.map(figureOf)
}

/** Counted in calls and not in time: on a busy machine the first shapes would run in code that is not compiled yet. */
async function warmUp(shapes: readonly Shape[], wire: Wire): Promise<void> {
  const queries = shapes.flatMap((shape) => shape.queries.slice(0, WARM_QUERIES))
  await Promise.all(
    Array.from({ length: CALLERS }, async (_, caller) => {
      for (let i = caller; i < WARM_CALLS; i += CALLERS) {
        await wire.send(caller, 'GET', `/fhir/R4/${queries[i % queries.length]}`, '')
      }
    }),
  )
}

type StatementsOf = (query: string) => Promise<readonly Statement[]>

async function measureShape(
  shape: Shape,
  wire: Wire,
  pool: pg.Pool,
  statementsOf: StatementsOf,
  seconds: number,
): Promise<Measured> {
  const { queries } = shape
  const statements: (readonly Statement[])[] = []
  for (const query of queries) statements.push(await statementsOf(query))
  const any = () => Math.floor(Math.random() * queries.length)
  const bare = async () => {
    for (const { text, values } of statements[any()] ?? []) await pool.query(text, [...values])
    return true
  }
  const ours = async (caller: number) => {
    const { status } = await wire.send(caller, 'GET', `/fhir/R4/${queries[any()]}`, '')
    return status === 200
  }
  await measure(CALLERS, 0.5, ours)
  const limit = await measure(CALLERS, seconds, bare)
  const own = await measure(CALLERS, seconds, ours)
  if (own.failed > 0) throw new Error(`${shape.name}: ${own.failed} searches failed`)
  return { shape, ours: own, bare: limit, ...(await explain(pool, pageOf(statements[0]))) }
}

/** Records the statements that the repository sends for a search, in this process. */
async function openRecorder({ services }: Stage, principal: Principal): Promise<StatementsOf> {
  const { database } = services
  let seen: Statement[] = []
  const repository = await openRepository(
    {
      knex: database.knex,
      statements: 0,
      roundTrips: 0,
      query: (statement) => {
        // Not what the repository asks for itself, now and then.
        if (statement.values.length > 0) seen.push(statement)
        return database.query(statement)
      },
      transaction: (work, options) => database.transaction(work, options),
      lane: () => database.lane(),
      ping: () => database.ping(),
      close: async () => undefined,
    },
    writeFeatures(),
  )
  const statementsOf = async (query: string) => {
    const [type = '', parameters = ''] = query.split(/\?(.*)/s)
    seen = []
    await repository.search(principal, parseSearch(type, parameters))
    return seen
  }
  // The first search starts to read the statistics that choose the plans.
  await statementsOf('Patient?_count=1')
  await services.database.query({ text: 'select pg_sleep(0.5)', values: [] })
  return statementsOf
}

/** Before the page a search may ask for units, beside it for a total, after it for includes. */
function pageOf(statements: readonly Statement[] = []): Statement | undefined {
  return statements.find(({ text }) => text.includes('from version'))
}

async function explain(
  pool: pg.Pool,
  statement: Statement | undefined,
): Promise<Pick<Measured, 'buffers' | 'plan'>> {
  if (statement === undefined) return { buffers: 0, plan: '' }
  const { rows } = await pool.query<{ 'QUERY PLAN': string }>(
    `explain (analyze, buffers, timing off) ${statement.text}`,
    [...statement.values],
  )
  const lines = rows.map((row) => row['QUERY PLAN'])
  // The buffers of the topmost node are the whole statement's.
  const [, hit = '0', read = '0'] =
    /Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/.exec(lines.join('\n')) ?? []
  return { buffers: Number(hit) + Number(read), plan: executed(lines).join('\n') }
}

/** Without the branches that did not run: a statement holds the ways it may not take. */
function executed(lines: readonly string[]): string[] {
  const depthOf = (line: string) => line.search(/\S/)
  let skipped = Number.POSITIVE_INFINITY
  return lines.filter((line) => {
    if (depthOf(line) > skipped || /^\s*(Index Searches|Storage):/.test(line)) return false
    skipped = line.includes('(never executed)') ? depthOf(line) : Number.POSITIVE_INFINITY
    return skipped === Number.POSITIVE_INFINITY
  })
}

async function sizes(pool: pg.Pool): Promise<string> {
  const { rows } = await pool.query<{ name: string; bytes: string }>(
    `select relname as name, pg_total_relation_size(oid) as bytes from pg_class
     where relname in ('version', 'resource', 'idx_string', 'idx_range', 'code')`,
  )
  const { rows: content } = await pool.query<{ bytes: string }>(
    "select pg_table_size('version') as bytes",
  )
  const megabytes = (bytes: string | undefined) => `${(Number(bytes) / 1e6).toFixed(1)} MB`
  const whole = rows.reduce((sum, { bytes }) => sum + Number(bytes), 0)
  const ratio = (whole / Number(content[0]?.bytes)).toFixed(2)
  const each = rows.map(({ name, bytes }) => `${name} ${megabytes(bytes)}`).join(', ')
  return `${each}; all ${ratio} x the content (${megabytes(content[0]?.bytes)})`
}

function figureOf({ shape, ours, bare, buffers }: Measured): Figure {
  const ms = (value: number) => value.toFixed(1)
  return {
    what: shape.name,
    ours: `p50 ${ms(ours.p50Ms)}, p99 ${ms(ours.p99Ms)} ms, ${Math.round(ours.perSecond)}/s`,
    limit: `p50 ${ms(bare.p50Ms)} ms, ${Math.round(bare.perSecond)}/s, ${buffers} buffers`,
    ratio: (ours.perSecond / bare.perSecond).toFixed(2),
    required: '>= 0.5',
  }
}

function printSlowest(measured: readonly Measured[]): void {
  const slowest = measured.toSorted((a, b) => b.bare.p50Ms - a.bare.p50Ms).slice(0, SLOWEST)
  for (const { shape, plan } of slowest) {
    console.log(`\n${shape.name}: ${shape.queries[0]}\n${plan}`)
  }
}
