/** The main date of a type, and when a row was written: columns of the row itself. */
import { mainDate } from '../../../fhir/definitions.ts'
import { timestamp } from '../../../fhir/values.ts'
import type { Condition } from '../../../query/search-request.ts'
import type { DateValue } from '../../../query/values.ts'
import { plannedParameter } from '../../index/index-plan.ts'
import type { Bind } from '../../rows/side-rows.ts'
import { anyOf, dateSql, dateValues } from './ranges.ts'
import { filter, isMissing, type Scene } from './row-test.ts'
import type { Test } from './test.ts'

/** Undefined when the parameter is not the main date of the type. */
export function mainDateTest({ type, own }: Scene, condition: Condition): Test | undefined {
  if (mainDate(type) !== condition.code) return undefined
  if (condition.modifier === 'missing') {
    return filter(() => `r.d_lo is ${isMissing(condition.values) ? '' : 'not '}null`)
  }
  const values = dateValues(condition)
  const types = plannedParameter(type, condition.code, own)?.types ?? []
  const isShort = types.length > 0 && types.every((one) => SHORT.has(one))
  const bounds = values.map((value) => beginningOf(value, isShort))
  const beginning = (bind: Bind) =>
    anyOf(bounds.map((bound) => (bound === undefined ? 'true' : beginsSql(bound, bind))))
  const from = Math.min(...bounds.map((bound) => bound?.from ?? -Infinity))
  const to = Math.max(...bounds.map((bound) => bound?.to ?? Infinity))
  return {
    kind: 'date',
    span: [from, to],
    ...(bounds.includes(undefined) ? {} : { beginning }),
    sql: (bind) => {
      const at = (ms: number) => bind(timestamp(Math.floor(ms)), 'timestamptz')
      return anyOf(
        values.map((value) => {
          const sql = dateSql(value, 'r.d_lo', 'r.d_hi', at)
          const least = isShort ? leastEnd(value) : undefined
          return least === undefined ? sql : `(r.d_lo >= ${at(least - LONGEST_MS)} and ${sql})`
        }),
      )
    },
  }
}

/** Elements that last a year at most, so that an index on where they begin is bounded by where they end. */
const SHORT: ReadonlySet<string> = new Set(['date', 'dateTime', 'instant'])
const LONGEST_MS = 366 * 86_400_000

interface Bounds {
  readonly from?: number
  readonly to?: number
}

/** Between what nearly all matches begin; undefined where they may begin anywhere. */
function beginningOf({ prefix, low, high }: DateValue, isShort: boolean): Bounds | undefined {
  switch (prefix) {
    case 'eq':
      return { from: low, to: high }
    case 'lt':
    case 'eb':
      return { to: low }
    case 'le':
      return { to: high }
    case 'sa':
      return { from: high }
    case 'ge':
      return isShort ? { from: low } : undefined
    case 'gt':
      return isShort ? { from: high } : undefined
    case 'ap':
      return isShort ? { from: low, to: high } : undefined
    case 'ne':
      return undefined
    default:
      return prefix satisfies never
  }
}

function beginsSql({ from, to }: Bounds, bind: Bind): string {
  const at = (ms: number) => bind(timestamp(Math.floor(ms)), 'timestamptz')
  const tests = [
    ...(from === undefined ? [] : [`r.d_lo >= ${at(from)}`]),
    ...(to === undefined ? [] : [`r.d_lo <= ${at(to)}`]),
  ]
  return `(${tests.join(' and ')})`
}

/** The lower bound of a match's end; undefined where its beginning is bounded anyway, or nothing is. */
function leastEnd({ prefix, low, high }: DateValue): number | undefined {
  if (prefix === 'gt') return high
  return prefix === 'ge' || prefix === 'ap' ? low : undefined
}

/** `_lastUpdated`: an instant, as a range of one millisecond. */
export function lastUpdatedTest(condition: Condition): (bind: Bind) => string {
  const parsed = dateValues(condition)
  return (bind) => {
    const at = (ms: number) => bind(timestamp(Math.floor(ms)), 'timestamptz')
    const high = `(r.lu + interval '1 millisecond')`
    return anyOf(parsed.map((value) => dateSql(value, 'r.lu', high, at)))
  }
}
