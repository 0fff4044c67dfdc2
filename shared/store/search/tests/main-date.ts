/** The main date of a type, and when a row was written: columns of the row itself. */
import { mainDate, typeNumber } from '../../../fhir/definitions.ts'
import { timestamp } from '../../../fhir/values.ts'
import type { Condition } from '../../../query/search-request.ts'
import type { DateValue } from '../../../query/values.ts'
import { plannedParameter } from '../../index/index-plan.ts'
import type { Bind } from '../../rows/side-rows.ts'
import { anyOf, dateSql, dateValues } from './ranges.ts'
import { filter, isMissing, type Scene } from './row-test.ts'
import type { Test, Within } from './test.ts'

/** Undefined when the parameter is not the main date of the type. */
export function mainDateTest(scene: Scene, condition: Condition): Test | undefined {
  const { type, own } = scene
  if (mainDate(type) !== condition.code) return undefined
  if (condition.modifier === 'missing') {
    return isMissing(condition.values)
      ? datelessTest(scene)
      : filter(() => 'r.d_lo is not null', 'row')
  }
  const values = dateValues(condition)
  const types = plannedParameter(type, condition.code, own)?.types ?? []
  const isShort = types.length > 0 && types.every((one) => SHORT.has(one))
  const bounds = values.map((value) => beginningOf(value, isShort))
  const known = bounds.filter((bound) => bound !== undefined)
  return {
    kind: 'date',
    within: around(values.map((value) => beginsWithin(value, isShort))),
    ...(known.length < bounds.length ? {} : { begins: around(known) }),
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

/** Rows without a main date have an index of their own; few of most types are in it. */
function datelessTest({ project, type }: Scene): Test {
  const ids = (bind: Bind) => `select n.id from resource n where n.project = ${bind(project, 'int')}
    and n.type = ${bind(typeNumber(type), 'smallint')} and n.d_lo is null`
  return { kind: 'ids', ids, isSteady: true }
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

/** Between what all matches begin. */
function beginsWithin(value: DateValue, isShort: boolean): Bounds {
  const { prefix, high } = value
  const least = isShort ? leastEnd(value) : undefined
  if (least !== undefined) {
    const from = least - LONGEST_MS
    return prefix === 'ap' ? { from, to: high } : { from }
  }
  if (prefix === 'ge' || prefix === 'gt') return {}
  return beginningOf(value, isShort) ?? (prefix === 'ap' ? { to: high } : {})
}

/** Returns the range that holds all of the bounds. */
function around(bounds: readonly Bounds[]): Within {
  const from = Math.min(...bounds.map((bound) => bound.from ?? -Infinity))
  const to = Math.max(...bounds.map((bound) => bound.to ?? Infinity))
  return { column: 'd_lo', from, to }
}

/** The lower bound of a match's end; undefined where its beginning is bounded anyway, or nothing is. */
function leastEnd({ prefix, low, high }: DateValue): number | undefined {
  if (prefix === 'gt') return high
  return prefix === 'ge' || prefix === 'ap' ? low : undefined
}

/** `_lastUpdated`: an instant, as a range of one millisecond. */
export function lastUpdatedTest(condition: Condition): Test {
  const within = around(dateValues(condition).map(updatedWithin))
  const sql = lastUpdatedSql(condition)
  return { kind: 'filter', sql, within: { ...within, column: 'lu' }, reach: 'row' }
}

function updatedWithin(value: DateValue): Bounds {
  const { prefix, low, high } = value
  if (prefix === 'ge' || prefix === 'gt') return { from: low - 1 }
  return prefix === 'ap' ? { from: low - 1, to: high } : (beginningOf(value, false) ?? {})
}

export function lastUpdatedSql(condition: Condition): (bind: Bind) => string {
  const parsed = dateValues(condition)
  return (bind) => {
    const at = (ms: number) => bind(timestamp(Math.floor(ms)), 'timestamptz')
    const high = `(r.lu + interval '1 millisecond')`
    return anyOf(parsed.map((value) => dateSql(value, 'r.lu', high, at)))
  }
}
