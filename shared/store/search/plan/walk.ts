/**
 * Rows along a B-tree of `resource`, from one position to another. Both ends are written as rows of values that begin
 * with Project and type. Only the index of that order can serve them and the order at once, so PostgreSQL walks it
 * whatever its statistics say, also while there are none.
 */
import { timestamp } from '../../../fhir/values.ts'
import type { Bind } from '../../rows/side-rows.ts'
import type { Order, Position } from '../order/position.ts'
import type { Test } from '../tests/test.ts'
import type { Query } from './query.ts'

export const COLUMNS = 'r.project, r.type, r.id, r.ver, r.lu, r.d_lo'

/** Columns that a test may look at. */
export const WALKED = `${COLUMNS}, r.d_hi, r.nref, r.keys`

const FIRST_ID = '00000000-0000-0000-0000-000000000000'
const LAST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

/** Values at which PostgreSQL does not look when it plans. */
export function behindSelect(bind: Bind): Bind {
  // The cast makes it a value, also where a select would be one of rows: `= any(…)`.
  return (value, type) => {
    const bound = bind(value, type)
    return bound.startsWith('(') ? bound : `(select ${bound})::${type}`
  }
}

type Walked = Pick<Query, 'project' | 'typeNumbers' | 'tests' | 'after'> & {
  readonly order: Pick<Order, 'column' | 'descending'>
}

/** The first and the last time of a column, in epoch ms. */
interface Span {
  readonly from: number
  readonly to: number
  readonly isBounded: boolean
}

/** Returns the range of the column that all tests leave. */
export function spanOf(tests: readonly Test[], column: Order['column']): Span {
  const spans = tests.flatMap((test) =>
    'within' in test && test.within?.column === column ? [test.within] : [],
  )
  const from = Math.max(...spans.map((span) => Math.floor(span.from)), -Infinity)
  const to = Math.min(...spans.map((span) => Math.floor(span.to)), Infinity)
  return { from, to, isBounded: spans.length > 0 }
}

/**
 * The rows of a type in order, tested by nothing but the bounds of the order's own column. Those without a main date
 * are in an index of their own, so an order by date is two runs, the second read only when the first is used up.
 * `most`: absent, as many as are read of it; a fence keeps the tests around it from finding rows by other indexes.
 */
export function walkSql(walked: Walked, most: string | undefined, bind: Bind): string {
  const { tests, order, after } = walked
  const { column, descending } = order
  const span = spanOf(tests, column)
  const end = most === undefined ? 'offset 0' : `limit ${most}`
  if (column === 'id') return runSql(walked, { where: '', column: undefined, after }, end, bind)
  if (column === 'lu') return runSql(walked, { where: '', column, span, after }, end, bind)
  const isAmongDateless = after !== undefined && after.value === null
  const wantsDateless =
    !tests.some((test) => test.kind === 'date') &&
    (after === undefined || isAmongDateless || !descending)
  const wantsDated = descending || !isAmongDateless
  const from = isAmongDateless ? undefined : after
  const dated = { where: ' and r.d_lo is not null', column, span, after: from }
  const rest = isAmongDateless ? after : undefined
  const dateless = { where: ' and r.d_lo is null', column: undefined, after: rest }
  const runs = [...(wantsDated ? [dated] : []), ...(wantsDateless ? [dateless] : [])]
  if (descending) runs.reverse()
  const [only, other] = runs
  if (only !== undefined && other === undefined) return runSql(walked, only, end, bind)
  const rows = runs.map((run) => `(${runSql(walked, run, end, bind)})`).join(' union all ')
  return `select * from (${rows}) r ${end}`
}

interface Run {
  /** Absent: by id alone. */
  readonly column: 'lu' | 'd_lo' | undefined
  readonly span?: Pick<Span, 'from' | 'to'>
  /** Its rows come behind this one. */
  readonly after: Position | undefined
  /** The condition of a partial index. */
  readonly where: string
}

function runSql({ project, typeNumbers, order }: Walked, run: Run, end: string, bind: Bind) {
  const { descending } = order
  const { column, span, after, where } = run
  const names = ['project', 'type', ...(column === undefined ? [] : [column]), 'id']
  const row = `(${names.map((name) => `r.${name}`).join(', ')})`
  const at = (time: string | null, id: string) => {
    const place = [bind(project, 'int'), bind(typeNumbers[0], 'smallint')]
    if (column !== undefined) place.push(bind(time, 'timestamptz'))
    return `(${[...place, bind(id, 'uuid')].join(', ')})`
  }
  const behind = after === undefined ? undefined : at(after.value, after.id)
  const low =
    behind !== undefined && !descending
      ? `> ${behind}`
      : `>= ${at(timestamp(span?.from ?? -Infinity), FIRST_ID)}`
  const high =
    behind !== undefined && descending
      ? `< ${behind}`
      : `<= ${at(timestamp(span?.to ?? Infinity), LAST_ID)}`
  const by = names.map((name) => `r.${name}${descending ? ' desc' : ''}`).join(', ')
  return `select ${WALKED} from resource r where ${row} ${low} and ${row} ${high}${where} order by ${by} ${end}`
}
