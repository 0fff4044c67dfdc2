/** Dates, numbers and quantities: columns of the row for the main date, else `idx_range`. */
import { mainDate } from '../../fhir/definitions.ts'
import type { Condition } from '../../fhir/search.ts'
import {
  type DateValue,
  type NumberValue,
  parseDateValue,
  parseNumberValue,
  parseQuantityValue,
} from '../../fhir/search-values.ts'
import { timestamp } from '../../fhir/values-date.ts'
import { keysLiteral } from '../keys.ts'
import type { Bind } from '../side-rows.ts'
import { filter, isMissing, parameterSql, type Scene, type Test } from './row-test.ts'

const UCUM = 'http://unitsofmeasure.org'

/** Undefined when the parameter is not the main date of the type. */
export function mainDateTest({ type }: Scene, condition: Condition): Test | undefined {
  if (mainDate(type) !== condition.code) return undefined
  if (condition.modifier === 'missing') {
    return filter(() => `r.d_lo is ${isMissing(condition.values) ? '' : 'not '}null`)
  }
  const values = dateValues(condition)
  return {
    kind: 'date',
    sql: (bind) => {
      const at = (ms: number) => bind(timestamp(Math.floor(ms)), 'timestamptz')
      return anyOf(values.map((value) => dateSql(value, 'r.d_lo', 'r.d_hi', at)))
    },
  }
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

export function dateTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  if (condition.modifier === 'missing') return missingRange(ps, condition)
  const values = dateValues(condition)
  return inRanges(scene, ps, (bind) => {
    const at = (ms: number) => bind(ms, 'float8')
    return anyOf(values.map((value) => dateSql(value, 'g.lo', 'g.hi', at)))
  })
}

export function numberTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  if (condition.modifier === 'missing') return missingRange(ps, condition)
  const values = condition.values.map((value) => parseNumberValue(value))
  return inRanges(scene, ps, (bind) => anyOf(values.map((value) => numberSql(value, bind))))
}

/** A unit without a system matches a UCUM code or a human unit. */
export function quantityTest(scene: Scene, ps: readonly bigint[], condition: Condition): Test {
  if (condition.modifier === 'missing') return missingRange(ps, condition)
  const { keys } = scene
  const values = condition.values.map((value) => parseQuantityValue(value))
  return inRanges(scene, ps, (bind) =>
    anyOf(
      values.map((value) => {
        const number = numberSql(value, bind)
        if (value.code === undefined) return number
        const systems = value.system === undefined ? ['', UCUM] : [value.system]
        const units = systems.map((system) => keys.unit(system, value.code ?? ''))
        return `(${number} and g.u = any(${bind(keysLiteral(units), 'bigint[]')}))`
      }),
    ),
  )
}

/** Of a `_filter`: `po` is what `ap` tests, without its margin. */
function dateValues({ values, modifier }: Condition): readonly DateValue[] {
  const parsed = values.map((value) => parseDateValue(value))
  return modifier === 'po' ? parsed.map((value) => ({ ...value, prefix: 'ap' })) : parsed
}

// The table of search.md A5, v = query range [low, high), r = resource range [lo, hi). The bounds on
// `lo` that follow from the others are spelled out: the index is ordered by it.
function dateSql(value: DateValue, lo: string, hi: string, at: (ms: number) => string): string {
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

function numberSql({ prefix, value, low, high }: NumberValue, bind: Bind): string {
  const at = (number: number) => bind(number, 'float8')
  const overlaps = () => `(g.lo < ${at(high)} and g.hi >= ${at(low)})`
  switch (prefix) {
    case 'eq':
    case 'ap':
      return overlaps()
    case 'ne':
      return `not ${overlaps()}`
    case 'gt':
      return `g.hi > ${at(value)}`
    case 'lt':
      return `g.lo < ${at(value)}`
    case 'ge':
      return `g.hi >= ${at(value)}`
    case 'le':
      return `g.lo <= ${at(value)}`
    case 'sa':
      return `g.lo > ${at(value)}`
    case 'eb':
      return `g.hi < ${at(value)}`
    default:
      return prefix satisfies never
  }
}

function inRanges({ project }: Scene, ps: readonly bigint[], sql: (bind: Bind) => string): Test {
  return {
    kind: 'ids',
    ids: (bind) => `select g.id from idx_range g where g.project = ${bind(project, 'int')}
      and ${parameterSql('g', ps, bind)} and ${sql(bind)}`,
  }
}

function missingRange(ps: readonly bigint[], { values }: Condition): Test {
  return filter((bind) => {
    const exists = `exists (select 1 from idx_range g where g.id = r.id
      and g.project = r.project and ${parameterSql('g', ps, bind)})`
    return isMissing(values) ? `not ${exists}` : exists
  })
}

function anyOf(alternatives: readonly string[]): string {
  return `(${alternatives.join(' or ')})`
}
