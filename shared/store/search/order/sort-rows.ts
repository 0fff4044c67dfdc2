/** Rows in an order that no B-tree of `resource` serves: by what the terms of a `_sort` give. */
import type { Bind } from '../../rows/side-rows.ts'
import type { Order } from './position.ts'
import { afterTermsSql, termOrderSql } from './sort-cursor.ts'
import type { Term } from './sort-terms.ts'

export interface Sorting {
  readonly project: number
  readonly order: Order
  readonly after: Parameters<typeof afterTermsSql>[1] | undefined
  /** The columns of `resource r`. */
  readonly columns: string
  /** The search narrows its rows to few. */
  readonly isNarrow: boolean
  /** Tests of `resource r`; forced: looked at for a row that is at hand. */
  readonly tests: (isForced: boolean) => string
}

/**
 * Beside its rows a walk looks at others: values of rows that do not match, and further values of those
 * that do. Measured: 10 µs each.
 */
const WALKED_A_ROW = 6
const WALKED = 500

export function sortedRows(sorting: Sorting, most: string, bind: Bind): string {
  const walk = sorting.isNarrow ? undefined : walkOf(sorting, most, bind)
  if (walk === undefined) return allSorted(sorting, most, bind)
  const by = termOrderSql(sorting.order.terms, false, 'r')
  return `with w as materialized (${walk} limit ${most})
    select * from (
      select * from w where (select count(*) from w) >= ${most}
      union all
      select * from (${allSorted(sorting, most, bind)}) a where (select count(*) from w) < ${most}
    ) r order by ${by}`
}

/**
 * All matches with what they are sorted by. Few of them look it up one by one; where nothing narrows
 * the search, all values are read at once. `offset 0` keeps a value from being looked up twice.
 */
function allSorted(sorting: Sorting, most: string, bind: Bind): string {
  const { order, after, project, columns, isNarrow, tests } = sorting
  const values = order.terms.map(({ one, all }, i) => {
    if (isNarrow || all === undefined) return { value: `${one(project, bind)} as s${i}`, join: '' }
    const join = ` left join (${all(project, bind)}) t${i} on t${i}.id = r.id`
    return { value: `t${i}.v as s${i}`, join }
  })
  const rows = `select ${[columns, ...values.map(({ value }) => value)].join(', ')}
    from resource r${values.map(({ join }) => join).join('')}
    where ${tests(false)} offset 0`
  const rest = after === undefined ? '' : ` where ${afterTermsSql(order, after, bind)}`
  const by = termOrderSql(order.terms, order.descending, 'r')
  return `select * from (${rows}) r${rest} order by ${by} limit ${most}`
}

/** By the values themselves where one term ascends: rows without one come last, behind the walk. */
function walkOf(sorting: Sorting, most: string, bind: Bind): string | undefined {
  const { project, order, after, columns, tests } = sorting
  const [term, second] = order.terms
  if (term?.walk === undefined || second !== undefined) return undefined
  if (term.descending || order.descending) return undefined
  const from = fromSql(term, after, bind)
  if (from === undefined) return undefined
  const values = `${term.walk(project, bind)}${from} order by s.v, s.id`
  const cap = `${most} * ${WALKED_A_ROW} + ${WALKED}`
  return `select r.*, s.v as s0 from (${values} limit ${cap}) s
    cross join lateral (select ${columns} from resource r
      where ${tests(true)} and r.id = s.id and ${term.one(project, bind)} = s.v offset 0) r`
}

/** Undefined behind the last value. */
function fromSql(term: Term, after: Sorting['after'], bind: Bind): string | undefined {
  if (after === undefined) return ''
  const [value = null] = after.values
  if (value === null) return undefined
  return ` and (s.v, s.id) > (${bind(value, term.type)}, ${bind(after.id, 'uuid')})`
}
