/** The main date of a type and `_lastUpdated`: columns of `resource`, each with its own index. */

import { mainDate, typeNumber } from '../../fhir/definitions.ts'
import { timestamp } from '../../fhir/values.ts'
import type { Bind } from '../../postgres/statement.ts'
import { plannedParameter } from '../../store/index/index-plan.ts'
import type { ConditionOf } from '../language/search-request.ts'
import type { DateValue } from '../language/values.ts'
import { filter, isMissing, type Predicate, type SearchScope, type TimeRange } from './predicate.ts'
import { dateSql, dateValues, orSql } from './ranges.ts'
import { LONG_MS } from './walk-sql.ts'

export function mainDatePredicate(
  scope: SearchScope,
  condition: ConditionOf<'date'>,
): Predicate | undefined {
  const { type, own } = scope
  if (mainDate(type) !== condition.code) return undefined
  if (condition.modifier === 'missing') {
    return isMissing(condition.values)
      ? datelessPredicate(scope)
      : filter(() => 'r.d_lo is not null', 'row')
  }
  const values = dateValues(condition)
  const types = plannedParameter(type, condition.code, own)?.types ?? []
  const isShort = types.length > 0 && types.every((one) => SHORT.has(one))
  const within = enclosingRange(values.map((value) => beginsWithin(value, isShort)))
  return {
    kind: 'date',
    ...(isBounded(within) ? { within } : {}),
    sql: (bind) => {
      const at = (ms: number) => bind(timestamp(Math.floor(ms)), 'timestamptz')
      return orSql(
        values.map((value) => {
          const sql = dateSql(value, 'r.d_lo', 'r.d_hi', at)
          const least = isShort ? leastEnd(value) : undefined
          return least === undefined ? sql : `(r.d_lo >= ${at(least - LONGEST_MS)} and ${sql})`
        }),
      )
    },
  }
}

/** Rows without a main date have a partial index, small for most types. */
function datelessPredicate({ project, type }: SearchScope): Predicate {
  const ids = (bind: Bind) => `select n.id from resource n where n.project = ${bind(project, 'int')}
    and n.type = ${bind(typeNumber(type), 'smallint')} and n.d_lo is null`
  return { kind: 'ids', ids, hasStablePlan: true }
}

/** Elements of at most a year, so that bounds on the end also bound the start. */
const SHORT: ReadonlySet<string> = new Set(['date', 'dateTime', 'instant'])
const LONGEST_MS = 366 * 86_400_000

interface Bounds {
  readonly from?: number
  readonly to?: number
  readonly long?: NonNullable<TimeRange['long']>
}

/** Returns the range in which matches begin, except longer ones that reach into it. */
function beginsWithin(value: DateValue, isShort = false): Bounds {
  const { prefix, low, high } = value
  const least = leastEnd(value)
  const since = isShort && least !== undefined ? least - LONGEST_MS : -Infinity
  const reaching =
    least === undefined ? {} : { from: least - LONG_MS, long: { since, endsAfter: least } }
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
    case 'gt':
      return reaching
    case 'ap':
      return { ...reaching, to: high }
    case 'ne':
      return {}
    default:
      return prefix satisfies never
  }
}

function enclosingRange(bounds: readonly Bounds[]): TimeRange {
  const from = Math.min(...bounds.map((bound) => bound.from ?? -Infinity))
  const to = Math.max(...bounds.map((bound) => bound.to ?? Infinity))
  const endsAfter = Math.min(...bounds.map(({ long }) => long?.endsAfter ?? Infinity))
  const since = Math.min(...bounds.map((bound) => bound.long?.since ?? bound.from ?? -Infinity))
  return {
    column: 'd_lo',
    from,
    to,
    ...(endsAfter < Infinity ? { long: { since, endsAfter } } : {}),
  }
}

function isBounded({ from, to }: TimeRange): boolean {
  return from > -Infinity || to < Infinity
}

/** Returns a lower bound of a match's end; undefined if the start is bounded or nothing is. */
function leastEnd({ prefix, low, high }: DateValue): number | undefined {
  if (prefix === 'gt') return high
  return prefix === 'ge' || prefix === 'ap' ? low : undefined
}

/** `_lastUpdated`: an instant, as a range of one millisecond. */
export function lastUpdatedPredicate(condition: ConditionOf<'date'>): Predicate {
  const within = enclosingRange(dateValues(condition).map(updatedWithin))
  const sql = lastUpdatedSql(condition)
  return { kind: 'filter', sql, within: { ...within, column: 'lu' }, reach: 'row' }
}

function updatedWithin(value: DateValue): Bounds {
  const { prefix, low, high } = value
  if (prefix === 'ge' || prefix === 'gt') return { from: low - 1 }
  return prefix === 'ap' ? { from: low - 1, to: high } : beginsWithin(value)
}

export function lastUpdatedSql(condition: ConditionOf<'date'>): (bind: Bind) => string {
  const parsed = dateValues(condition)
  return (bind) => {
    const at = (ms: number) => bind(timestamp(Math.floor(ms)), 'timestamptz')
    const high = `(r.lu + interval '1 millisecond')`
    return orSql(parsed.map((value) => dateSql(value, 'r.lu', high, at)))
  }
}
