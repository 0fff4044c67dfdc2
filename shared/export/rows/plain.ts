/** Queries on versions alone, where no row condition applies. The newest version as of the export's time counts. */
import { typeNumber } from '../../fhir/definitions.ts'
import { literal } from '../../postgres/copy.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { Range } from './jobs.ts'
import { listedIdsSql, listedRowsSql, listedWithFew } from './list.ts'
import { needsMeta } from './redact.ts'
import { IN_COMPARTMENT, rangeSql, type Selection } from './select.ts'

/** Sample size: scanning all versions beats lookups unless too many are discarded. */
const MOST_VERSIONS = 625
const SAMPLE_ROWS = 250
/** Up to this many rows are found by type and sorted; with more, PostgreSQL walks the index across all types. */
const SORTED_ROWS = `(select greatest(2000, least(20000, reltuples / 50))::int from pg_class
  where oid = 'resource'::regclass)`
const ENDS = [
  { order: 'asc', test: '<=', end: 'ffffffff-ffff-ffff-ffff-ffffffffffff' },
  { order: 'desc', test: '>=', end: '00000000-0000-0000-0000-000000000000' },
]

interface PlainQuery {
  readonly sql: string
  /** Too large to sort: must be read in index order. */
  readonly isLarge: boolean
}

/**
 * Builds the COPY query, ordered by row id and version; a version without content removes the resource. Undefined when
 * rows have conditions, or too many versions are discarded.
 */
export async function plainQuery(
  connection: Connection,
  selection: Selection,
  range: Range,
): Promise<PlainQuery | undefined> {
  const { reach, at, since } = selection
  if (isTested(selection)) return undefined
  if (reach === 'listed') {
    const [sql = ''] = await listedQueries(connection, [{ selection, range }])
    return { sql, isLarge: true }
  }
  // Usually few rows changed since then, and the index on time finds them.
  if (since !== undefined) return undefined
  const { isFew, isLarge } = await sizesOf(connection, selection, range)
  if (!isFew) return undefined
  const ofPatients = `case when ${IN_COMPARTMENT} then v.content end as content`
  const sql = `select v.id, ${reach === 'patients' ? ofPatients : 'v.content'}${metaOf(selection)}
    from version v where ${ofType('v', selection, range)} and v.lu <= ${literal(at, 'timestamptz')}
    order by v.id, v.ver`
  return { sql, isLarge }
}

function isTested({ scene: scope, ruled, filter, reach, isPast }: Selection): boolean {
  const hasTests = scope.visible.length > 0 || ruled !== undefined || filter !== undefined
  return hasTests || (reach === 'listed' && isPast)
}

export function isListedAlone(selection: Selection): boolean {
  return selection.reach === 'listed' && !isTested(selection)
}

interface ListedType {
  readonly selection: Selection
  readonly range: Range
}

/** Like `plainQuery`, for the listed rows of each type; the plan also listed concurrent changes. */
export async function listedQueries(
  connection: Connection,
  types: readonly ListedType[],
): Promise<readonly string[]> {
  const numbers = types.map(({ selection }) => typeNumber(selection.scene.type))
  const [job = ''] = types.map(({ selection }) => selection.job)
  const few = await listedWithFew(connection, job, numbers, MOST_VERSIONS / SAMPLE_ROWS)
  return types.map(({ selection, range }) => {
    const { scene: scope, at, since } = selection
    const type = typeNumber(scope.type)
    const meta = metaOf(selection)
    const written = [
      `${ofType('v', selection)} and v.lu <= ${literal(at, 'timestamptz')}`,
      ...(since === undefined ? [] : [`v.lu > ${literal(since, 'timestamptz')}`]),
    ].join(' and ')
    if (few.has(type)) {
      return `select v.id, v.content${meta} from version v where ${written}
        and v.id = any(array(${listedRowsSql(job, type, range, literal)})) order by v.id, v.ver`
    }
    return `select e.id, v.content${meta}
      from (${listedIdsSql(job, type, range, literal)} offset 0) e cross join lateral
        (select v.* from version v where ${written} and v.id = e.id order by v.ver desc limit 1) v
      order by e.id`
  })
}

function metaOf(selection: Selection): string {
  return needsMeta(selection) ? ', v.meta_ext' : ''
}

interface Sizes {
  readonly isFew: boolean
  readonly isLarge: boolean
}

async function sizesOf(connection: Connection, selection: Selection, range: Range): Promise<Sizes> {
  const counts = ENDS.map(({ order, test, end }) => {
    const last = `select r.id from resource r where ${ofType('r', selection, range)}
      order by r.id ${order} offset ${SAMPLE_ROWS - 1} limit 1`
    return `select count(*) as versions from (select 1 from version v
      where ${ofType('v', selection, range)}
        and v.id ${test} coalesce((${last}), ${literal(end, 'uuid')}) limit ${MOST_VERSIONS + 1}) v`
  })
  const [found] = await connection.query<Sizes>({
    text: `select max(versions) <= ${MOST_VERSIONS} as "isFew",
        exists (select 1 from resource r where ${ofType('r', selection, range)}
          order by r.id offset ${SORTED_ROWS}) as "isLarge"
      from (${counts.join(' union all ')}) c`,
    values: [],
  })
  return found ?? { isFew: false, isLarge: true }
}

function ofType(table: string, { scene: scope }: Selection, range?: Range): string {
  const tests = [
    `${table}.project = ${literal(scope.project, 'int')}`,
    `${table}.type = ${literal(typeNumber(scope.type), 'smallint')}`,
    ...(range === undefined ? [] : rangeSql(`${table}.id`, range, literal)),
  ]
  return tests.join(' and ')
}
