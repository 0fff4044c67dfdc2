/**
 * Rows found by the ids of a side table. How many match is only known when they are read, so a statement
 * holds every way and takes one of them.
 */
import type { Bind } from '../../rows/side-rows.ts'
import { orderSql } from '../order/order.ts'
import { probeSql, sqlOf } from '../tests/row-test.ts'
import type { IdsTest, Test } from '../tests/test.ts'
import type { Driver } from './driver.ts'
import type { Query } from './query.ts'
import { COLUMNS, forced, keysFirst, ordered, WALKED } from './ways.ts'

type IdsDriver = Extract<Driver, { kind: 'ids' }>

/** Not as a condition, which PostgreSQL would make a join. */
const AMONG = '(r.id in (select id from f)) is true'

export function byIds(asked: Query, driver: IdsDriver, most: string, bind: Bind): string {
  const { few, read, cap } = driver
  const query = driver.isKept ? { ...asked, tests: asked.tests.map(besideIds) } : asked
  const ids = query.tests.filter((test) => test.kind === 'ids')
  const [first] = ids
  if (first === undefined) throw new Error('There is no test on a side table')
  const tests = query.tests.filter(({ kind }) => kind !== 'ids')
  if (few === undefined) return keysFirst({ ...query, tests }, idsSql(ids, bind), most, bind)
  const isFew = `(select n from c) <= ${bind(few, 'int')}`
  const rows =
    read === undefined || cap === undefined
      ? ofFewRows({ ...query, tests }, ids, isFew, most, bind)
      : ofManyRows(query, first, { isFew, read, cap }, most, bind)
  return `with f(id) as materialized (${rows.ids}), c as materialized (select count(*) as n from f)
    ${rows.walk}
    select * from (
      select * from (${keysFirst(rows.query, 'select id from f', most, bind)}) a where ${isFew}
      union all
      ${rows.else}
    ) r order by ${orderSql(query.order, 'r')}`
}

/** Turns a date into a filter: a plan for all values must not look rows up by a date that most rows may have. */
function besideIds(test: Test): Test {
  if (test.kind !== 'date') return test
  return { kind: 'filter', sql: (bind) => `(${sqlOf(test, bind)}) is true`, reach: 'row' }
}

/** The ids of all tests together: PostgreSQL knows which of them is rare. */
export function idsSql(ids: readonly IdsTest[], bind: Bind): string {
  const [first = '', ...others] = ids.map((test) => test.ids(bind))
  if (others.length === 0) return first
  const among = others.map((sql) => `x.id in (${sql})`).join(' and ')
  return `select x.id from (${first}) x(id) where ${among}`
}

/** All ids; where they are not few, the whole order is walked. */
function ofFewRows(query: Query, ids: readonly IdsTest[], isFew: string, most: string, bind: Bind) {
  const among: Test = { kind: 'filter', sql: () => AMONG }
  const walk = ordered(query, [...query.tests, among], COLUMNS, most, bind)
  return {
    query,
    ids: idsSql(ids, bind),
    walk: '',
    else: `select * from (${walk}) w where not (${isFew})`,
  }
}

/**
 * At most `read` ids of the first test; where they are not few, a capped walk: it looks rows up among the
 * ids when those are all, else each in the side table. What does not fill the page is found by all the ids.
 */
function ofManyRows(
  query: Query,
  first: IdsTest,
  { isFew, read, cap }: { readonly isFew: string; readonly read: number; readonly cap: number },
  most: string,
  bind: Bind,
) {
  const isBound = (test: Test) => test.kind === 'date' && query.order.column === 'd_lo'
  // Numbers that PostgreSQL knows: from them follows that the order's own index is the way.
  const walk = ordered(query, query.tests.filter(isBound), WALKED, String(cap), bind)
  const isAll = `(select n from c) <= ${bind(read, 'int')}`
  const tested = query.tests
    .filter((test) => !isBound(test))
    .map((test) => {
      const sql = test.kind === 'ids' ? probeSql(test, bind) : forced(test, bind)
      return test === first ? `case when ${isAll} then ${AMONG} else ${sql} end` : sql
    })
  const isFilled = `(select count(*) from w) >= ${most}`
  return {
    query,
    ids: `select x.id from (${first.ids(bind)}) x(id) limit ${read + 1}`,
    walk: `, w as materialized (select ${COLUMNS} from (${walk}) r
      where not (${isFew}) and ${tested.join(' and ')} limit ${most})`,
    else: `select * from w where ${isFilled}
      union all
      select * from (${keysFirst(query, first.ids(bind), most, bind)}) k
      where not (${isFew}) and not (${isFilled})`,
  }
}
