/** The stages of a statement: a walk along the order, and the rest where that has not filled the page. */
import type { Bind } from '../../rows/side-rows.ts'
import { columnsOf, orderSql } from '../order/order.ts'
import { probeSql, sqlOf } from '../tests/row-test.ts'
import type { Test } from '../tests/test.ts'
import type { Query } from './query.ts'
import { COLUMNS, walkSql } from './walk.ts'

/** A walk of at most `cap` rows, where `when` holds. */
export interface Walk {
  readonly when?: string
  readonly cap: number
  readonly tested: readonly string[]
  /** A join that lets rows through, once for each target. */
  readonly targets?: string | undefined
}

interface Stages {
  readonly with: readonly string[]
  readonly walk: Walk | undefined
  readonly rest: string
}

/**
 * Selects what the walk finds if it fills the page, else the rest. The walk is in order already; to ask for that order
 * again would make PostgreSQL walk to the cap before it sorts.
 */
export function staged(
  query: Query,
  most: string,
  bind: Bind,
  { with: first, walk, rest }: Stages,
): string {
  if (walk === undefined) return `with ${first.join(', ')} ${rest}`
  const rows = `from (${walkSql(query, bind(walk.cap, 'int'), bind)}) r`
  const where = [...(walk.when === undefined ? [] : [walk.when]), ...walk.tested].join(' and ')
  const selected = `${rows} ${walk.targets ?? ''} where ${where || 'true'}`
  const walked =
    walk.targets === undefined
      ? `select ${COLUMNS} ${selected} limit ${most}`
      : `select distinct on (${placeOf(query, '')}) ${COLUMNS} ${selected}
        order by ${placeOf(query, query.order.descending ? ' desc' : '')} limit ${most}`
  const isFilled = `(select count(*) from w) >= ${most}`
  return `with ${[...first, `w as materialized (${walked})`].join(', ')}
    select * from (
      select * from w where ${isFilled}
      union all
      select * from (${rest}) k where not (${isFilled})
    ) r order by ${orderSql(query.order, 'r')}`
}

/** The columns of the walk's index, whose order PostgreSQL then need not make again. */
function placeOf({ order: { column, byType } }: Query, direction: string): string {
  const names = new Set(['project', 'type', ...columnsOf(column, byType)])
  return [...names].map((name) => `r.${name}${direction}`).join(', ')
}

/** To the end of the order, or until the page is full. */
export function walkedOn(
  query: Query,
  tested: readonly string[],
  most: string | undefined,
  bind: Bind,
): string {
  const where = tested.length === 0 ? '' : ` where ${tested.join(' and ')}`
  const end = most === undefined ? '' : ` limit ${most}`
  return `select ${COLUMNS} from (${walkSql(query, undefined, bind)}) r${where}${end}`
}

/** A test of a row that is walked past: many are, so what it leads to is not looked up for each. */
export function testedSql(test: Test, bind: Bind): string {
  if (test.kind === 'ids') return probeSql(test, bind)
  const look = test.kind === 'join' ? test.walk?.test?.(bind) : undefined
  return look ?? sqlOf(test, bind, true)
}

/** The tests of a walk; a join that leads to its targets by their own index is joined, where the order is known. */
export function led(
  tests: readonly Test[],
  { order }: Query,
  bind: Bind,
): Pick<Walk, 'tested' | 'targets'> {
  const first = tests.find((test) => test.kind === 'join' && test.walk?.targets !== undefined)
  // An order by date is two runs, of which PostgreSQL does not know that they are in order.
  const isLed = first?.kind === 'join' && order.column !== 'd_lo'
  const others = isLed ? tests.filter((test) => test !== first) : tests
  const targets = isLed ? first.walk?.targets?.(bind) : undefined
  return { targets, tested: others.map((test) => testedSql(test, bind)) }
}
