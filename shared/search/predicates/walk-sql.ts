/**
 * Rows along a B-tree of `resource` between two positions. Both bounds are row values that start with Project and
 * type: only the index of that order serves them, so PostgreSQL walks it regardless of statistics.
 */

import { timestamp } from '../../fhir/values.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import type { Bind } from '../../postgres/statement.ts'
import { FIRST_ID } from './order.ts'
import type { Predicate, TimeRange } from './predicate.ts'
import type { Order, Position, Query } from './query.ts'

export const KEY_COLUMNS = 'r.project, r.type, r.id, r.ver, r.lu, r.d_lo'

/** Columns of a row that its conditions and its order read. */
export const WALKED = `${KEY_COLUMNS}, r.d_hi, r.nref, r.keys`

const LAST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

type Walked = Pick<Query, 'project' | 'typeNumbers' | 'predicates' | 'after'> & {
  readonly order: Pick<Order, 'column' | 'descending'>
}

interface ColumnRange extends Pick<TimeRange, 'from' | 'to'> {
  readonly long?: TimeRange['long'] | undefined
  readonly isBounded: boolean
}

export function intersectRanges(
  predicates: readonly Predicate[],
  column: Order['column'],
): ColumnRange {
  const ranges = predicates.flatMap((predicate) =>
    'within' in predicate && predicate.within?.column === column ? [predicate.within] : [],
  )
  const from = Math.max(...ranges.map((range) => Math.floor(range.from)), -Infinity)
  const to = Math.min(...ranges.map((range) => Math.floor(range.to)), Infinity)
  const latest = ranges.find((range) => Math.floor(range.from) === from)
  const since = Math.max(...ranges.map((range) => range.long?.since ?? range.from), -Infinity)
  const long = latest?.long && { ...latest.long, since }
  return { from, to, long, isBounded: ranges.length > 0 }
}

/** Most dates are at most this long, with a day that a change of the clock lengthens. */
export const LONG_MS = 25 * 3_600_000
/** In the words of the index `resource_long`. */
const IS_LONG = `(r.d_hi at time zone 'UTC') > (r.d_lo at time zone 'UTC') + interval '25 hours'`
/** With more long rows that reach into a range, a walk begins before them: sorting them would cost more. */
const FEW_LONG = 500

/**
 * Selects the rows of a type in order, tested only by bounds of the order's column. Rows without a main date have a
 * separate index, and so do long ones that reach into a range, so a date order is several runs, each read once the one
 * before it is exhausted. Without `most`, rows are read on demand; a fence keeps outer predicates from using other
 * indexes.
 */
export function walkSql(walked: Walked, most: string | undefined, bind: Bind): string {
  const { predicates, order, after } = walked
  const { column, descending } = order
  const span = intersectRanges(predicates, column)
  const end = most === undefined ? 'offset 0' : `limit ${most}`
  if (column === 'id') return runSql(walked, { where: '', column: undefined, after }, end, bind)
  if (column === 'lu') return runSql(walked, { where: '', column, span, after }, end, bind)
  const isAmongDateless = after !== undefined && after.value === null
  const wantsDateless =
    !predicates.some((predicate) => predicate.kind === 'date') &&
    (after === undefined || isAmongDateless || !descending)
  const wantsDated = descending || !isAmongDateless
  const dated = wantsDated
    ? datedRuns({ ...walked, after: isAmongDateless ? undefined : after }, span, end, bind)
    : []
  const rest = isAmongDateless ? after : undefined
  const dateless = { where: ' and r.d_lo is null', column: undefined, after: rest }
  const runs = [...dated, ...(wantsDateless ? [runSql(walked, dateless, end, bind)] : [])]
  if (descending) runs.reverse()
  const [only, other] = runs
  // No dated row comes after one without a date.
  if (only === undefined) return `select ${WALKED} from resource r where false ${end}`
  if (other === undefined) return only
  return `select * from (${runs.map((run) => `(${run})`).join(' union all ')}) r ${end}`
}

/** Returns the runs of rows with a date, ascending: the few long ones that reach into the range, then the range. */
function datedRuns(walked: Walked, span: ColumnRange, rows: string, bind: Bind): readonly string[] {
  const { project, typeNumbers, order, after } = walked
  const run = { where: ' and r.d_lo is not null', column: 'd_lo', span, after } as const
  if (span.long === undefined) return [runSql(walked, run, rows, bind)]
  const isPast = after !== undefined && !order.descending && epochMs(after.value) >= span.from
  if (isPast) return [runSql(walked, run, rows, bind)]
  const own = bind(project, 'int')
  const end = (ms: number) =>
    `(${own}, ${bind(typeNumbers[0], 'smallint')}, ${bind(timestamp(Math.floor(ms)), 'timestamptz')})`
  // The sum keeps PostgreSQL from reading all rows of the type in an index that begins with the Project.
  const place = '(r.project + 0, r.type, r.d_hi)'
  const long = `resource r where ${place} > ${end(span.long.endsAfter)} and ${place} <= ${end(Infinity)}
    and ${IS_LONG} and ${dialect.projectEquals('r', own)}`
  const few = bind(FEW_LONG, 'int')
  const areFew = `(select count(*) <= ${few} from (select 1 from ${long} limit ${few} + 1) l)`
  const from = bind(timestamp(span.from), 'timestamptz')
  const beyond =
    after === undefined
      ? ''
      : ` and (r.d_lo, r.id) ${order.descending ? '<' : '>'} (${bind(after.value, 'timestamptz')}, ${bind(after.id, 'uuid')})`
  const direction = order.descending ? ' desc' : ''
  const isBehind = after !== undefined && !order.descending
  const earliest = bind(
    isBehind ? after.value : timestamp(Math.floor(span.long.since)),
    'timestamptz',
  )
  const start = `case when ${areFew} then ${from} else ${earliest} end`
  return [
    `select ${WALKED} from (select r.* from ${long} offset 0) r
      where ${areFew} and r.d_lo < ${from}${beyond} order by r.d_lo${direction}, r.id${direction} ${rows}`,
    order.descending
      ? runSql(walked, { ...run, start }, rows, bind)
      : // If the long rows are few, a position before the range does not bound its index.
        runSql(walked, { ...run, start, after: undefined, where: run.where + beyond }, rows, bind),
  ]
}

function epochMs(time: string | null): number {
  if (time === 'infinity') return Infinity
  return time === null || time === '-infinity' ? -Infinity : Date.parse(time)
}

interface Run {
  /** Absent: ordered by id alone. */
  readonly column: 'lu' | 'd_lo' | undefined
  readonly span?: Pick<ColumnRange, 'from' | 'to'>
  /** SQL of the first time, instead of that of the range. */
  readonly start?: string
  readonly after: Position | undefined
  readonly where: string
}

function runSql({ project, typeNumbers, order }: Walked, run: Run, end: string, bind: Bind) {
  const { descending } = order
  const { column, span, start, after, where } = run
  const names = ['project', 'type', ...(column === undefined ? [] : [column]), 'id']
  const columns = names.map((name) => `r.${name}`)
  const time = (ms: number) => bind(timestamp(ms), 'timestamptz')
  const at = (value: () => string, id: string) => [
    bind(project, 'int'),
    bind(typeNumbers[0], 'smallint'),
    ...(column === undefined ? [] : [value()]),
    bind(id, 'uuid'),
  ]
  const behind =
    after === undefined ? undefined : at(() => bind(after.value, 'timestamptz'), after.id)
  const first = () => at(() => start ?? time(span?.from ?? -Infinity), FIRST_ID)
  const low =
    behind !== undefined && !descending
      ? dialect.walkFrom(columns, '>', behind)
      : dialect.walkFrom(columns, '>=', first())
  const high =
    behind !== undefined && descending
      ? `< (${behind.join(', ')})`
      : `<= (${at(() => time(span?.to ?? Infinity), LAST_ID).join(', ')})`
  const by = names.map((name) => `r.${name}${descending ? ' desc' : ''}`).join(', ')
  return `select ${WALKED} from resource r where ${low} and (${columns.join(', ')}) ${high}${where} order by ${by} ${end}`
}
