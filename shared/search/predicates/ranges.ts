/** Dates, numbers and quantities in `idx_range`. */

import { convert, UCUM } from '../../fhir/values.ts'
import { dialect } from '../../postgres/chosen-dialect.ts'
import { arrayLiteral, type Bind } from '../../postgres/statement.ts'
import type { ConditionOf } from '../language/search-request.ts'
import {
  type DateValue,
  type NearValue,
  type NumberValue,
  parseDateValue,
  parseNearValue,
  parseNumberValue,
  parseQuantityValue,
  type QuantityValue,
} from '../language/values.ts'
import { missingPredicate, type Predicate, parameterSql, type SearchScope } from './predicate.ts'

export function datePredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'date'>,
): Predicate {
  if (condition.modifier === 'missing') return missingPredicate('idx_range', scope, ps, condition)
  const values = dateValues(condition)
  return inRanges(scope, ps, (bind) => {
    const at = (ms: number) => bind(ms, 'float8')
    return [orSql(values.map((value) => dateSql(value, 'g.lo', 'g.hi', at)))]
  })
}

export function numberPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'number'>,
): Predicate {
  if (condition.modifier === 'missing') return missingPredicate('idx_range', scope, ps, condition)
  condition.modifier satisfies undefined
  const values = condition.values.map((value) => parseNumberValue(value))
  return inRanges(scope, ps, (bind, isRow) =>
    values.flatMap((value) => numberBounds(value, 'g', bind, isRow)),
  )
}

export function quantityPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'quantity'>,
): Predicate {
  if (condition.modifier === 'missing') return missingPredicate('idx_range', scope, ps, condition)
  condition.modifier satisfies undefined
  const values = condition.values.map((value) => parseQuantityValue(value))
  return inRanges(scope, ps, (bind, isRow) =>
    values.flatMap((value) => quantityBounds(scope, value, { alias: 'g', bind, isRow })),
  )
}

/** Returns alternatives on a row of idx_range; a UCUM unit is converted to every compatible unit of the data. */
export function quantityBounds(
  { keys, project, units, isPolicy }: SearchScope,
  value: QuantityValue,
  { alias, bind, isRow }: { readonly alias: string; readonly bind: Bind; readonly isRow: boolean },
): readonly string[] {
  const { code, system } = value
  if (code === undefined) {
    const bounds = numberBounds(value, alias, bind, isRow)
    if (system === undefined) return bounds
    const p = keys.units(project)
    const known = `select c.k from code c where c.project = ${bind(project, 'int')}
      and c.p = ${bind(p, 'bigint')} and c.system = ${bind(system, 'text')}`
    return bounds.map((one) => `${one} and ${alias}.u = any(array(${known}))`)
  }
  const withUnit = (number: NumberValue, among: readonly bigint[]) => {
    const isUnit = `${alias}.u = any(${bind(arrayLiteral(among), 'bigint[]')})`
    return numberBounds(number, alias, bind, isRow).map((bounds) => `${bounds} and ${isUnit}`)
  }
  const systems = system === undefined ? ['', UCUM] : [system]
  const converted = (system === UCUM ? units : []).flatMap((unit) => {
    const there = unit === code ? undefined : convertNumber(value, code, unit)
    return there ? withUnit(there, [keys.unit(UCUM, unit)]) : []
  })
  // The UCUM units in the data are known, except for policies, which were compiled earlier.
  if (system === UCUM && !isPolicy && !units.includes(code))
    return converted.length > 0 ? converted : ['false']
  const same = systems.map((one) => keys.unit(one, code))
  return [...withUnit(value, same), ...converted]
}

export function convertNumber(
  number: NumberValue,
  from: string,
  to: string,
): NumberValue | undefined {
  const [value, low, high] = [number.value, number.low, number.high].map((one) =>
    convert(one, from, to),
  )
  if (value === undefined || low === undefined || high === undefined) return undefined
  return { prefix: number.prefix, value, low, high }
}

/** `near`: `lo` is the latitude and `hi` the longitude; the latitude bounds the index. */
export function nearPredicate(
  scope: SearchScope,
  ps: readonly bigint[],
  condition: ConditionOf<'special'>,
): Predicate {
  const places = condition.values.map((value) => parseNearValue(value))
  return inRanges(scope, ps, (bind) =>
    places.map((place) => {
      if (place.km === Infinity) return 'true'
      const degrees = (place.km / EARTH_KM) * (180 / Math.PI)
      const [south, north] = [place.latitude - degrees, place.latitude + degrees]
      return `(g.lo between ${bind(south, 'float8')} and ${bind(north, 'float8')}
          and ${distanceSql(place, bind)} <= ${bind(place.km, 'float8')})`
    }),
  )
}

const EARTH_KM = 6371

/** Distance in kilometres on the sphere, by the haversine formula. */
export function distanceSql({ latitude, longitude }: NearValue, bind: Bind): string {
  const lat = bind(latitude, 'float8')
  return `${2 * EARTH_KM} * asin(least(1, sqrt(sin(radians(g.lo - ${lat}) / 2) ^ 2
    + cos(radians(${lat})) * cos(radians(g.lo))
    * sin(radians(g.hi - ${bind(longitude, 'float8')}) / 2) ^ 2)))`
}

/** Parses dates of a `_filter`: `po` works like `ap` without its margin. */
export function dateValues({ values, modifier }: ConditionOf<'date'>): readonly DateValue[] {
  const parsed = values.map((value) => parseDateValue(value))
  switch (modifier) {
    case 'po':
      return parsed.map((value) => ({ ...value, prefix: 'ap' }))
    case 'missing':
      throw new Error('true and false of :missing are not dates')
    case undefined:
      return parsed
    default:
      return modifier satisfies never
  }
}

// Notation: v = query range [low, high), r = resource range [lo, hi). Implied bounds on `lo` are spelled out: the
// index is ordered by it.
export function dateSql(
  value: DateValue,
  lo: string,
  hi: string,
  at: (ms: number) => string,
): string {
  const { low, high } = value
  const equals = () => `(${lo} >= ${at(low)} and ${lo} <= ${at(high)} and ${hi} <= ${at(high)})`
  switch (value.prefix) {
    case 'eq':
      return equals()
    case 'ne':
      return `not ${equals()}`
    case 'gt':
      return `${hi} > ${at(high)}`
    case 'lt':
      return `${lo} < ${at(low)}`
    case 'ge':
      return `(${lo} >= ${at(low)} or ${hi} > ${at(high)})`
    case 'le':
      return `(${lo} <= ${at(high)} and (${hi} <= ${at(high)} or ${lo} < ${at(low)}))`
    case 'sa':
      return `${lo} >= ${at(high)}`
    case 'eb':
      return `(${lo} <= ${at(low)} and ${hi} <= ${at(low)})`
    case 'ap':
      return `(${lo} < ${at(high)} and ${hi} > ${at(low)})`
    default:
      return value.prefix satisfies never
  }
}

/** Most values are at most this wide; values above LARGE are not classified. */
const NARROW = 1
const LARGE = 1_000_000_000

/** Returns alternatives that bound `lo`: most values are narrow; wide ones are in idx_range_wide. */
export function numberBounds(
  number: NumberValue,
  alias: string,
  bind: Bind,
  /** True for a known row, which needs no index bounds. */
  isRow: boolean,
): readonly string[] {
  const test = numberSql(number, alias, bind)
  const least = lowestHigh(number)
  if (isRow || least === undefined || least > LARGE) return [test]
  // Adds half for rounding errors.
  const floor = bind(least - 1.5 * NARROW, 'float8')
  const isWide = `${alias}.hi - ${alias}.lo > ${NARROW} and ${alias}.lo < ${LARGE}`
  // Written so that the other index does not serve it.
  const isBelow = `(${alias}.lo < ${floor}) is true`
  return [`${alias}.lo >= ${floor} and ${test}`, `${isWide} and ${isBelow} and ${test}`]
}

function lowestHigh({ prefix, value, low }: NumberValue): number | undefined {
  if (prefix === 'eq' || prefix === 'ap') return low
  return prefix === 'gt' || prefix === 'ge' ? value : undefined
}

function numberSql(number: NumberValue, alias: string, bind: Bind): string {
  const { prefix, value, low, high } = number
  const at = (number: number) => bind(number, 'float8')
  const overlaps = () => `(${alias}.lo < ${at(high)} and ${alias}.hi >= ${at(low)})`
  switch (prefix) {
    case 'eq':
      return overlaps()
    case 'ap':
      return `(${alias}.lo <= ${at(high)} and ${alias}.hi >= ${at(low)})`
    case 'ne':
      return `not ${overlaps()}`
    case 'gt':
      return `${alias}.hi > ${at(value)}`
    case 'lt':
      return `${alias}.lo < ${at(value)}`
    case 'ge':
      return `${alias}.hi >= ${at(value)}`
    case 'le':
      return `${alias}.lo <= ${at(value)}`
    case 'sa':
      return `${alias}.lo > ${at(value)}`
    case 'eb':
      return `${alias}.hi < ${at(value)}`
    default:
      return prefix satisfies never
  }
}

/** Reads each alternative through the part of the index that it bounds. */
function inRanges(
  { project }: SearchScope,
  ps: readonly bigint[],
  alternatives: (bind: Bind, isRow: boolean) => readonly string[],
): Predicate {
  return {
    kind: 'ids',
    ids: (bind) => {
      const all = `select g.id from idx_range g
        where g.project = ${bind(project, 'int')} and ${parameterSql('g', ps, bind)}`
      return alternatives(bind, false)
        .map((sql) => `${all} and ${sql}`)
        .join(' union all ')
    },
    // Written so that no index serves it: the row id must find the row.
    few: (bind) => {
      const own = bind(project, 'int')
      const tests = `${parameterSql('g', ps, bind)} and ${orSql(alternatives(bind, true))}`
      return `select g.id from idx_range g where ${dialect.projectEquals('g', own, tests)}`
    },
    hasStablePlan: true,
  }
}

export function orSql(alternatives: readonly string[]): string {
  return `(${alternatives.join(' or ')})`
}
