/**
 * Queries that read versions as of the time of an export without their rows: where nothing tests the rows, the versions
 * alone decide what is exported. The newest version of that time counts, unless it is a deletion.
 */
import { typeNumber } from '../../fhir/definitions.ts'
import { literal } from '../../postgres/copy.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { Range } from './jobs.ts'
import { listedIdsSql, listedRowsSql, listedWithFew } from './list.ts'
import { needsMeta } from './redact.ts'
import { IN_COMPARTMENT, rangeSql, type Selection } from './select.ts'

/**
 * A MiB takes PostgreSQL 0.6 ms when all versions are read, and 3.7 ms when each that is exported is looked
 * up; one that is read in vain costs the worker as much as PostgreSQL again. So many versions of so many rows,
 * the first and the last ones, stand for all.
 */
const MOST_VERSIONS = 625
const SAMPLE_ROWS = 250
/**
 * So few rows are found by their type and sorted. In the order of ids PostgreSQL goes through those of all types,
 * which took 4.4 ms for 36 rows among 70,000, and takes 0.6; where there are more rows it may be a fiftieth of them.
 */
const SORTED_ROWS = `(select greatest(2000, least(20000, reltuples / 50))::int from pg_class
  where oid = 'resource'::regclass)`
const ENDS = [
  { order: 'asc', test: '<=', end: 'ffffffff-ffff-ffff-ffff-ffffffffffff' },
  { order: 'desc', test: '>=', end: '00000000-0000-0000-0000-000000000000' },
]

interface PlainQuery {
  readonly sql: string
  /** Larger than what is sorted without a thought: its order is to be that of an index. */
  readonly isLarge: boolean
}

/**
 * Builds the query for COPY, with the columns of `copySql` that are needed: in the order of row ids, and of their
 * versions, of which the last one counts; without content it takes the resource out. Undefined when the rows are
 * tested, or when too many versions are not exported.
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
  // Little was written since, mostly, and it is found by its time.
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

/** Whether what was listed of the type is read by one statement. */
export function isListedAlone(selection: Selection): boolean {
  return selection.reach === 'listed' && !isTested(selection)
}

/** The rows of a type that are read, behind `range.low`. */
interface ListedType {
  readonly selection: Selection
  readonly range: Range
}

/** The same of what an export has listed of each of the types: the plan has listed what was changed meanwhile, too. */
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

/** The column is left out where it is not needed. */
function metaOf(selection: Selection): string {
  return needsMeta(selection) ? ', v.meta_ext' : ''
}

interface Sizes {
  readonly isFew: boolean
  readonly isLarge: boolean
}

/** Whether the versions are few for their rows, and the rows many. */
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
