/**
 * Searches with one way to their rows, whatever is looked for: PostgreSQL keeps their plan. To plan them anew took
 * four times as long as to run them. All values stand behind a select, where PostgreSQL does not look, so that the
 * plan it makes for one search is the one for all; and what must not find rows is in words that no index serves. A
 * walk along an order is one way, too, as its cap is told, and so is what comes after it when it fills no page.
 */
import type { Bind } from '../side-rows.ts'
import { idsSql } from './by-ids.ts'
import type { Part, Query } from './compile.ts'
import type { Driver } from './driver.ts'
import { keptBy } from './kept.ts'
import { afterSql, orderAfterSql } from './order.ts'
import { fewSql, type IdsTest, scopeSql, sqlOf, type Test } from './row-test.ts'
import type { KeyStatistics } from './statistics.ts'
import { COLUMNS } from './ways.ts'

/** Of fewer rows a plan would read them all, and be kept when there are many more. */
const FEWEST_ROWS = 10_000
/** Ids that are looked up one by one. */
const MOST_IDS = 100
const CAPS = [2000, 4000, 8000, 16_000, 20_000]
/** Of the texts that a connection keeps, together: about 150 bytes a letter. */
const MOST_LETTERS = 120_000

/** The driver with its one way, where there is no other to choose, or as one whose plan is kept all the same. */
export function settledBy(statistics: Known, part: Part): Driver {
  const driver = oneWay(statistics, part)
  if (driver.kind === 'settled' || statistics.rows < FEWEST_ROWS) return driver
  return keptBy(statistics, part)
}

type Known = Pick<KeyStatistics, 'rows' | 'rowsOf' | 'startingWith'>

function oneWay(statistics: Known, { query, driver }: Part): Driver {
  const { tests, order, score } = query
  if (statistics.rows < FEWEST_ROWS || order.terms.length > 0 || score !== undefined) return driver
  const isByKeys =
    tests.some(({ kind }) => kind === 'keys') &&
    tests.every(({ kind }) => kind === 'keys' || kind === 'date')
  if (driver.kind === 'keys') return isByKeys ? { kind: 'settled' } : driver
  if (driver.kind === 'walk') {
    const isWalked = tests.every(({ kind }) => kind === 'keys') && order.column !== 'id'
    return isWalked ? { kind: 'settled', cap: roundedCap(driver.cap) } : driver
  }
  const isById =
    driver.kind === 'ids' &&
    driver.few === undefined &&
    tests.every((test) => {
      if (test.kind !== 'ids' || test.isPlain !== true) return false
      return test.expected !== undefined && test.expected(statistics) <= MOST_IDS
    })
  return isById ? { kind: 'settled' } : driver
}

/** One of few: each is a statement of its own. */
function roundedCap(cap: number): number {
  return CAPS.find((one) => one >= cap) ?? cap
}

export function isSettled(parts: readonly Part[]): boolean {
  return parts.every(({ driver }) => driver.kind === 'settled' || driver.isKept === true)
}

export function behindSelect(bind: Bind): Bind {
  // The cast makes it a value, also where a select would be one of rows: `= any(…)`.
  return (value, type) => `(select ${bind(value, type)})::${type}`
}

/** Rows in order, at most `most` of them. */
export function settledSql(query: Query, most: string, bind: Bind): string {
  const { project, typeNumbers, tests, order, after } = query
  const ids = tests.filter((test): test is IdsTest => test.kind === 'ids')
  const rows =
    ids.length === 0
      ? foundByKeys(query, tests, bind)
      : `select r.* from unnest(array(select distinct id from (${idsSql(ids, bind)}) f(id))) f(id)
          cross join lateral (select ${COLUMNS} from resource r
            where ${scopeSql(project, typeNumbers, bind, false).join(' and ')} and r.id = f.id offset 0) r
          where true`
  const later = after === undefined ? '' : ` and (${afterSql(order, after, bind)}) is true`
  return `${rows}${later} order by ${orderAfterSql(order, 'r')} limit ${most}`
}

function foundByKeys({ project, typeNumbers }: Query, tests: readonly Test[], bind: Bind): string {
  const conditions = [
    ...scopeSql(project, typeNumbers, bind, true),
    ...tests.map((test) =>
      test.kind === 'keys' ? sqlOf(test, bind) : `(${fewSql(test, bind)}) is true`,
    ),
  ]
  return `select ${COLUMNS} from resource r where ${conditions.join(' and ')}`
}

const names = new Map<string, string>()
let letters = 0

/** The first shapes that are asked for have names; others are planned each time. */
export function settledName(text: string): string | undefined {
  const known = names.get(text)
  if (known !== undefined || letters + text.length > MOST_LETTERS) return known
  const name = `search-${names.size}`
  names.set(text, name)
  letters += text.length
  return name
}
