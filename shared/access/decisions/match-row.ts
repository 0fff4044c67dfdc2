/**
 * Evaluates criteria in memory, on the index rows of the SQL predicates. Chains, `_has` and the dictionary need
 * PostgreSQL.
 */
import { mainDate, searchParameter, storedParameters } from '../../fhir/definitions.ts'
import { comparedText, splitWindows } from '../../fhir/searched-text.ts'
import { UCUM } from '../../fhir/values.ts'
import {
  type Condition,
  type ConditionOf,
  type Criterion,
  isCondition,
} from '../../search/language/search-request.ts'
import {
  type DateValue,
  type NumberValue,
  parseNumberValue,
  parseQuantityValue,
  unescapeValue,
} from '../../search/language/values.ts'
import { compilePredicate } from '../../search/predicates/compile.ts'
import { isMissing, type SearchScope } from '../../search/predicates/predicate.ts'
import { convertNumber, dateValues } from '../../search/predicates/ranges.ts'
import { searchWords } from '../../search/predicates/strings.ts'
import type { IndexRows } from '../../store/index/indexes.ts'
import type { RangeRow, StringRow } from '../../store/index/keys.ts'
import { normalId } from '../../store/rows/context.ts'

export interface IndexedRow {
  readonly rowId: string
  readonly keys: ReadonlySet<bigint>
  readonly strings: readonly StringRow[]
  readonly ranges: readonly RangeRow[]
  readonly units: readonly string[]
  /** The main date in epoch ms: both or none. */
  readonly low: number | undefined
  readonly high: number | undefined
}

export function toIndexedRow(rowId: string, rows: IndexRows): IndexedRow {
  return {
    units: rows.units,
    rowId,
    keys: new Set(rows.keys),
    strings: rows.strings,
    ranges: rows.ranges,
    low: parseTimestamp(rows.dateLow),
    high: parseTimestamp(rows.dateHigh),
  }
}

function parseTimestamp(text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (text.endsWith('infinity')) return text.startsWith('-') ? -Infinity : Infinity
  return Date.parse(text)
}

export type RowMatcher = (row: IndexedRow) => boolean

/** Undefined when PostgreSQL is needed. Errors: 400 for unsearchable criteria. */
export function compileRowMatcher(
  scope: SearchScope,
  criterion: Criterion,
): RowMatcher | undefined {
  if (isCondition(criterion)) return conditionMatcher(scope, criterion)
  if (criterion.kind === 'and' || criterion.kind === 'or') {
    const parts = criterion.criteria.map((item) => compileRowMatcher(scope, item))
    if (!parts.every((part) => part !== undefined)) return undefined
    return criterion.kind === 'and'
      ? (row) => parts.every((part) => part(row))
      : (row) => parts.some((part) => part(row))
  }
  if (criterion.kind === 'not') return opposite(compileRowMatcher(scope, criterion.criterion))
  return byKeys(scope, criterion)
}

/** True for a criterion that depends only on the keys and the date of the resource. */
export function dependsOnRowOnly(scope: SearchScope, criterion: Criterion): boolean {
  if (!isCondition(criterion)) return criterion.kind === 'chain' || criterion.kind === 'has'
  if (criterion.code === '_lastUpdated') return true
  const plain = criterion.modifier === 'not' ? { ...criterion, modifier: undefined } : criterion
  return compilePredicate(scope, plain).kind === 'join'
}

function conditionMatcher(scope: SearchScope, condition: Condition): RowMatcher | undefined {
  const { code, modifier, values } = condition
  const { type, own, keys, project } = scope
  if (code === '_id') {
    const ids = new Set(values.map((value) => keys.rowId(type, idIn(type, value))))
    if (modifier === 'not') return (row) => !ids.has(row.rowId)
    return modifier === undefined ? (row) => ids.has(row.rowId) : undefined
  }
  if (code === '_lastUpdated') return undefined
  const ps = new Set(
    storedParameters(type, code).map((stored) => keys.param(project, type, stored)),
  )
  if (searchParameter(type, code, own)?.type !== condition.type)
    return keysMatcher(scope, condition)
  switch (condition.type) {
    case 'string':
      return stringMatcher(scope, ps, condition)
    case 'date':
      return mainDate(type) === code ? mainDateMatcher(condition) : dateMatcher(ps, condition)
    case 'number':
      return numberMatcher(ps, condition)
    case 'quantity':
      return quantityMatcher(scope, ps, condition)
    default:
      return keysMatcher(scope, condition)
  }
}

function idIn(type: string, value: string): string {
  const text = unescapeValue(value)
  return normalId(text.startsWith(`${type}/`) ? text.slice(type.length + 1) : text)
}

function keysMatcher(scope: SearchScope, condition: Condition): RowMatcher | undefined {
  const { modifier, values } = condition
  if (modifier === 'missing' && isMissing(values)) {
    return opposite(byKeys(scope, { ...condition, values: ['false'] }))
  }
  if (modifier === 'not') return opposite(byKeys(scope, { ...condition, modifier: undefined }))
  return byKeys(scope, condition)
}

function byKeys(scope: SearchScope, criterion: Criterion): RowMatcher | undefined {
  const predicate = compilePredicate(scope, criterion)
  if (predicate.kind !== 'keys') return undefined
  const { any } = predicate
  return ({ keys }) => any.some((key) => keys.has(key))
}

function opposite(matches: RowMatcher | undefined): RowMatcher | undefined {
  return matches && ((row) => !matches(row))
}

type Parameters = ReadonlySet<bigint>

function stringMatcher(
  scope: SearchScope,
  ps: Parameters,
  condition: ConditionOf<'string'>,
): RowMatcher | undefined {
  const { code, modifier, values } = condition
  const texts = values.map(unescapeValue).filter((text) => comparedText(text) !== '')
  switch (modifier) {
    case 'missing':
      return present(condition, (row) => row.strings.some(({ p }) => ps.has(p)))
    case 'exact':
      return byKeys(scope, condition)
    case 'contains':
    case 'text':
      return partMatcher(scope, ps, texts, false)
    case 'ew':
      return partMatcher(scope, ps, texts, true)
    case 'not':
      return opposite(wordStartsMatcher(scope, ps, texts, code))
    case undefined:
      return wordStartsMatcher(scope, ps, texts, code)
    default:
      return modifier satisfies never
  }
}

function wordStartsMatcher(
  { keys }: SearchScope,
  ps: Parameters,
  texts: readonly string[],
  code: string,
): RowMatcher {
  const anywhere = new Set([...ps, ...[...ps].map((p) => keys.words(p))])
  const wanted = texts.map((text) => searchWords(text, code))
  return ({ strings }) =>
    wanted.some((words) =>
      words.every((word) => strings.some(({ p, v }) => anywhere.has(p) && v.startsWith(word))),
    )
}

function partMatcher(
  { keys }: SearchScope,
  ps: Parameters,
  texts: readonly string[],
  isAtEnd: boolean,
): RowMatcher | undefined {
  const all = new Set([...ps, ...[...ps].map((p) => keys.chunks(p))])
  const wanted = texts.map((text) => splitWindows(comparedText(text)))
  return ({ strings }) => {
    const own = strings.filter(({ p }) => all.has(p))
    return wanted.some((windows) =>
      windows.every((window, i) =>
        isAtEnd && i === windows.length - 1
          ? own.some(({ v }) => v.endsWith(window))
          : own.some(({ v }) => v.includes(window)),
      ),
    )
  }
}

function mainDateMatcher(condition: ConditionOf<'date'>): RowMatcher | undefined {
  if (condition.modifier === 'missing') return present(condition, (row) => row.low !== undefined)
  const values = dateValues(condition)
  return ({ low, high }) =>
    low !== undefined &&
    high !== undefined &&
    values.some((value) =>
      dateHolds({ ...value, low: Math.floor(value.low), high: Math.floor(value.high) }, low, high),
    )
}

function dateMatcher(ps: Parameters, condition: ConditionOf<'date'>): RowMatcher | undefined {
  if (condition.modifier === 'missing') return missingRange(ps, condition)
  const values = dateValues(condition)
  return ({ ranges }) =>
    ranges.some(({ p, lo, hi }) => ps.has(p) && values.some((value) => dateHolds(value, lo, hi)))
}

function numberMatcher(ps: Parameters, condition: ConditionOf<'number'>): RowMatcher | undefined {
  if (condition.modifier === 'missing') return missingRange(ps, condition)
  condition.modifier satisfies undefined
  const values = condition.values.map((value) => parseNumberValue(value))
  return ({ ranges }) =>
    ranges.some(({ p, lo, hi }) => ps.has(p) && values.some((value) => numberHolds(value, lo, hi)))
}

/** Like `quantityPredicate`: a UCUM value is converted to the units of the row. */
function quantityMatcher(
  { keys }: SearchScope,
  ps: Parameters,
  condition: ConditionOf<'quantity'>,
): RowMatcher | undefined {
  if (condition.modifier === 'missing') return missingRange(ps, condition)
  condition.modifier satisfies undefined
  const wanted = condition.values.map((text) => parseQuantityValue(text))
  // Only the dictionary knows the units of a system.
  if (wanted.some(({ system, code }) => system !== undefined && code === undefined))
    return undefined
  const inUnits = (units: readonly string[]) =>
    wanted.flatMap((value): { value: NumberValue; u: bigint | undefined }[] => {
      const { code, system } = value
      if (code === undefined) return [{ value, u: undefined }]
      const systems = system === undefined ? ['', UCUM] : [system]
      const others = system === UCUM ? units.filter((unit) => unit !== code) : []
      return [
        ...systems.map((one) => ({ value, u: keys.unit(one, code) })),
        ...others.flatMap((unit) => {
          const there = convertNumber(value, code, unit)
          return there ? [{ value: there, u: keys.unit(UCUM, unit) }] : []
        }),
      ]
    })
  return ({ ranges, units }) => {
    const own = ranges.filter(({ p }) => ps.has(p))
    if (own.length === 0) return false
    const values = inUnits(units)
    return own.some(({ lo, hi, u }) =>
      values.some((one) => (one.u === undefined || one.u === u) && numberHolds(one.value, lo, hi)),
    )
  }
}

function missingRange(ps: Parameters, condition: Condition): RowMatcher | undefined {
  return present(condition, ({ ranges }) => ranges.some(({ p }) => ps.has(p)))
}

function present(
  { values }: Condition,
  isThere: (row: IndexedRow) => boolean,
): RowMatcher | undefined {
  return isMissing(values) ? (row) => !isThere(row) : isThere
}

function dateHolds({ prefix, low, high }: DateValue, lo: number, hi: number): boolean {
  const isEqual = lo >= low && lo <= high && hi <= high
  switch (prefix) {
    case 'eq':
      return isEqual
    case 'ne':
      return !isEqual
    case 'gt':
      return hi > high
    case 'lt':
      return lo < low
    case 'ge':
      return lo >= low || hi > high
    case 'le':
      return lo <= high && (hi <= high || lo < low)
    case 'sa':
      return lo >= high
    case 'eb':
      return lo <= low && hi <= low
    case 'ap':
      return lo < high && hi > low
    default:
      return prefix satisfies never
  }
}

function numberHolds(number: NumberValue, lo: number, hi: number): boolean {
  const { prefix, value, low, high } = number
  const overlaps = lo < high && hi >= low
  switch (prefix) {
    case 'eq':
      return overlaps
    case 'ap':
      return lo <= high && hi >= low
    case 'ne':
      return !overlaps
    case 'gt':
      return hi > value
    case 'lt':
      return lo < value
    case 'ge':
      return hi >= value
    case 'le':
      return lo <= value
    case 'sa':
      return lo > value
    case 'eb':
      return hi < value
    default:
      return prefix satisfies never
  }
}
