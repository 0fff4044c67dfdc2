/**
 * Rows found by their main date, in another order. How many there are is only known when their index is read, so a
 * statement holds both ways: a capped walk along the order where they are many, else, or where it fills no page, all.
 */
import type { Bind } from '../../rows/side-rows.ts'
import { afterSql, orderAfterSql, orderSql } from '../order/order.ts'
import { oneRowSql, scopeSql, sqlOf } from '../tests/row-test.ts'
import type { Driver } from './driver.ts'
import type { Query } from './query.ts'
import { COLUMNS, ordered, type TestSql, WALKED, where } from './ways.ts'

type DatesDriver = Extract<Driver, { kind: 'dates' }>

/** Whatever else there is must not find the rows. */
const beside: TestSql = (test, bind) =>
  test.kind === 'date' ? sqlOf(test, bind) : `(${oneRowSql(test, bind)}) is true`

export function byDates(query: Query, { few, cap }: DatesDriver, most: string, bind: Bind): string {
  const { project, typeNumbers, tests, order, after } = query
  const beginning = tests.flatMap((test) =>
    test.kind === 'date' && test.beginning !== undefined ? test.beginning(bind) : [],
  )
  const begun = [...scopeSql(project, typeNumbers, bind, false), ...beginning].join(' and ')
  const walk = ordered(query, [], WALKED, String(cap), bind)
  const tested = tests.map((test) => beside(test, bind)).join(' and ')
  const later = after === undefined ? '' : ` and (${afterSql(order, after, bind)}) is true`
  const isFilled = `(select count(*) from w) >= ${most}`
  return `with c as materialized (
      select count(*) as n from (select 1 from resource r where ${begun} limit ${few + 1}) b),
    w as materialized (select ${COLUMNS} from (${walk}) r
      where (select n from c) > ${few} and ${tested} limit ${most})
    select * from (
      select * from w where ${isFilled}
      union all
      select * from (select ${COLUMNS} from resource r where ${where(query, tests, bind, beside, false)}${later}
        order by ${orderAfterSql(order, 'r')} limit ${most}) k where not (${isFilled})
    ) r order by ${orderSql(order, 'r')}`
}
