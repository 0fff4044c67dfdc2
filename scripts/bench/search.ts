/**
 * Search over HTTP with 16 callers beside the bare statements of the same searches, sent to PostgreSQL by
 * this process; and how many buffers the plan of a page touches.
 */
import pg from 'pg'
import type { Principal } from '../../shared/access/principal.ts'
import { writeFeatures } from '../../shared/api/write-features.ts'
import type { Statement } from '../../shared/platform/postgres/statement.ts'
import { parseSearch } from '../../shared/query/search.ts'
import { openRepository } from '../../shared/store/open-repository.ts'
import type { Figure } from '../bench.ts'
import { measure, openWire, type Wire } from './load.ts'
import { any, load } from './samples.ts'
import { type Shape, shapesOf } from './search-shapes.ts'
import { onStage, type Stage } from './stage.ts'

const CALLERS = 16
const WARM_CALLS = 6000
const WARM_QUERIES = 20

type StatementsOf = (query: string) => Promise<readonly Statement[]>

export function search(seconds: number, resources: number): Promise<readonly Figure[]> {
  return onStage(async (stage) => {
    const { token, principal } = await stage.openProject()
    const shapes = shapesOf(await load(stage.services, principal, resources))
    const pool = new pg.Pool({ connectionString: stage.config.databaseUrl, max: CALLERS })
    const wire = await openWire(stage.baseUrl, CALLERS, token, 'application/fhir+json')
    try {
      const statementsOf = await openRecorder(stage, principal)
      await warmUp(shapes, wire)
      const figures: Figure[] = []
      for (const shape of shapes) {
        const statements: (readonly Statement[])[] = []
        for (const query of shape.queries) statements.push(await statementsOf(query))
        figures.push(await figureOf(shape, statements, { wire, pool, seconds }))
      }
      return figures
    } finally {
      wire.close()
      await pool.end()
    }
  })
}

/** Counted in calls and not in time: on a busy machine the first shapes would run in code that is not compiled yet. */
async function warmUp(shapes: readonly Shape[], wire: Wire): Promise<void> {
  const queries = shapes.flatMap((shape) => shape.queries.slice(0, WARM_QUERIES))
  await Promise.all(
    Array.from({ length: CALLERS }, async (_, caller) => {
      for (let i = caller; i < WARM_CALLS; i += CALLERS) {
        await wire.send(caller, 'GET', `/fhir/R4/${queries[i % queries.length]}`)
      }
    }),
  )
}

async function figureOf(
  { name, queries }: Shape,
  statements: readonly (readonly Statement[])[],
  {
    wire,
    pool,
    seconds,
  }: { readonly wire: Wire; readonly pool: pg.Pool; readonly seconds: number },
): Promise<Figure> {
  const bare = async () => {
    for (const { text, values } of any(statements)) await pool.query(text, [...values])
    return true
  }
  const ours = async (caller: number) =>
    (await wire.send(caller, 'GET', `/fhir/R4/${any(queries)}`)) === 200
  await measure(CALLERS, 0.5, ours)
  const limit = await measure(CALLERS, seconds, bare)
  const own = await measure(CALLERS, seconds, ours)
  // Before the page a search may ask for units, beside it for a total, after it for includes.
  const page = statements[0]?.find(({ text }) => text.includes('from version'))
  const buffers = page === undefined ? 0 : await buffersOf(pool, page)
  const ms = (value: number) => value.toFixed(1)
  return {
    what: name,
    ours: `p50 ${ms(own.p50Ms)}, p99 ${ms(own.p99Ms)} ms, ${Math.round(own.perSecond)}/s`,
    limit: `p50 ${ms(limit.p50Ms)} ms, ${Math.round(limit.perSecond)}/s, ${buffers} buffers`,
    ratio: (own.perSecond / limit.perSecond).toFixed(2),
    required: '>= 0.5',
  }
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

/** The buffers of the topmost node of a plan are the whole statement's. */
async function buffersOf(pool: pg.Pool, { text, values }: Statement): Promise<number> {
  const { rows } = await pool.query<{ 'QUERY PLAN': string }>(
    `explain (analyze, buffers, timing off) ${text}`,
    [...values],
  )
  const plan = rows.map((row) => row['QUERY PLAN']).join('\n')
  const [, hit = '0', read = '0'] =
    /Buffers: shared(?: hit=(\d+))?(?: read=(\d+))?/.exec(plan) ?? []
  return Number(hit) + Number(read)
}
