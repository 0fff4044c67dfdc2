/** Page order and cursors: keyset paging with the id as tie-break. */

import { attempt, badRequest, notSupported } from '../../core/errors.ts'
import { mainDate, resourceTypes, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Bind } from '../../postgres/statement.ts'
import type { Keys } from '../../store/index/keys.ts'
import type { SearchRequest } from '../language/search-request.ts'
import type { Order, Position, SortedRow, TermValue } from './query.ts'
import { compileSortTerm, type Term } from './sort-terms.ts'

/** First character of a cursor for the page that ends before its row. */
const BACK = '<'

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
const FIRST_TIME = Date.parse('0001-01-01T00:00:00.000Z')
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
/** Longer than any indexed sort value; values read from content may be longer. */
const MAX_TEXT = 10_000

/** Newest first by default. Errors: 400 for parameters that cannot be sorted by. */
export function resolveOrder(request: SearchRequest, keys: Keys, own?: OwnParameters): Order {
  const { type, sort, conditions } = request
  const [rule = { code: '_lastUpdated', descending: true }, second] = sort
  const { code, descending } = rule
  const plain = { descending, byType: false, terms: [] }
  if (second === undefined || code === '_id') {
    if (code === '_lastUpdated') return { ...plain, column: 'lu' }
    if (code === '_id') return { ...plain, column: 'id' }
    if (code === mainDate(type)) return { ...plain, column: 'd_lo' }
  }
  const terms = sort.map((one) => compileSortTerm(keys, type, one, { own, conditions }))
  return { column: 'id', descending: false, byType: false, terms }
}

export function reversed(order: Order): Order {
  const terms = order.terms.map((term) => ({ ...term, descending: !term.descending }))
  return { ...order, descending: !order.descending, terms }
}

/** Order over several types. Errors: 400 for columns that some types lack. */
export function orderOfTypes(request: SearchRequest, keys: Keys): Order {
  const order = resolveOrder(request, keys)
  if (order.column !== 'd_lo' && order.terms.length === 0) return { ...order, byType: true }
  throw notSupported('Several types are sorted by _lastUpdated or _id', '_sort')
}

/** Type numbers in cursors; 0 for an order without types. */
const TYPE_NUMBERS = new Set([0, ...resourceTypes.map(typeNumber)])

/** `isBackwards`: the page ends before the row. */
export function writeCursor(order: Order, row: SortedRow, isBackwards = false): string {
  const { column, byType, terms } = order
  const time = column === 'id' ? null : timestampLiteral(column === 'lu' ? row.lu : row.d_lo)
  const values = terms.map(({ type }, i) => termValue(type, row[`s${i}`] ?? null))
  const place = terms.length > 0 ? values : time
  const start = `${isBackwards ? BACK : ''}${name(order)}`
  const parts = [start, place, row.id, ...(byType ? [row.type] : [])]
  return Buffer.from(JSON.stringify(parts)).toString('base64url')
}

/** Errors: 400 for a damaged cursor or a cursor of another order. Cursors contain no secrets. */
export function readCursor(order: Order, cursor: string): Position {
  const { column, descending, byType, terms } = order
  const foreign = column === 'lu' && !descending ? FOREIGN.exec(cursor) : null
  if (foreign !== null) return foreignPosition(foreign)
  const parts: unknown = attempt(() => JSON.parse(Buffer.from(cursor, 'base64url').toString()))
  if (Array.isArray(parts) && parts.length === (byType ? 4 : 3)) {
    const [start, place, id, type = 0]: unknown[] = parts
    const isBackwards = start === BACK + name(order)
    const isId = typeof id === 'string' && UUID.test(id)
    const isType = typeof type === 'number' && TYPE_NUMBERS.has(type)
    if ((isBackwards || start === name(order)) && isId && isType) {
      if (terms.length === 0 && ((place === null && column !== 'lu') || isTime(place))) {
        return { value: place, values: [], id, type, isBackwards }
      }
      if (terms.length > 0 && areTermValues(terms, place)) {
        return { value: null, values: place, id, type, isBackwards }
      }
    }
  }
  throw badRequest('Invalid cursor', '_cursor')
}

function areTermValues(terms: readonly Term[], values: unknown): values is readonly TermValue[] {
  if (!Array.isArray(values) || values.length !== terms.length) return false
  return terms.every(({ type }, i) => isTermValue(type, values[i]))
}

/** Medplum cursors: `1-<ms>-<id>` starts at a time, `2-<ms>-<id>,<id>…` after those that share it. */
const FOREIGN = /^([12])-(\d{1,13})-([0-9a-f,-]*)$/
export const FIRST_ID = '00000000-0000-0000-0000-000000000000'

function foreignPosition([, version, ms, ids = '']: RegExpExecArray): Position {
  const seen = version === '2' ? ids.split(',').filter((id) => UUID.test(id)) : []
  const id = seen.sort().at(-1) ?? FIRST_ID
  const value = new Date(Number(ms)).toISOString()
  return { value, values: [], id, type: 0, isBackwards: false }
}

function timestampLiteral(time: Date | number | null): string | null {
  if (time === null) return null
  if (typeof time === 'number') return time > 0 ? 'infinity' : '-infinity'
  return time.toISOString()
}

const name = ({ column, descending, byType, terms }: Order) =>
  terms.map((term) => term.name).join(',') ||
  `${descending ? '-' : ''}${column}${byType ? ',type' : ''}`

/** `order by` served by the B-tree of the order: rows without a date come last ascending. */
export function orderSql({ column, descending, byType, terms }: Order, alias: string): string {
  if (terms.length > 0) return termOrderSql(terms, descending, alias)
  const direction = descending ? ' desc' : ''
  return orderColumns(column, byType)
    .map((name) => `${alias}.${name}${direction}`)
    .join(', ')
}

/** The order in a form that no index serves, so that rows are found by their keys. */
export function orderAfterSql(order: Order, alias: string): string {
  // The date index is partial (rows with a date), so it cannot serve the full order anyway.
  if (order.column === 'd_lo') return orderSql(order, alias)
  const direction = order.descending ? 'desc nulls last' : 'asc nulls first'
  return orderColumns(order.column, order.byType)
    .map((name) => `${alias}.${name} ${direction}`)
    .join(', ')
}

/** Condition on rows after a position; rows without a date come last ascending. */
export function afterSql(order: Order, position: Position, bind: Bind): string {
  const { column, descending, byType } = order
  const beyond = descending ? '<' : '>'
  const id = bind(position.id, 'uuid')
  if (position.value === null && column !== 'id') {
    const sameIds = `(r.d_lo is null and r.id ${beyond} ${id})`
    return descending ? `(${sameIds} or r.d_lo is not null)` : sameIds
  }
  const place = [
    ...(column === 'id' ? [] : [bind(position.value, 'timestamptz')]),
    id,
    ...(byType ? [bind(position.type, 'smallint')] : []),
  ]
  const columns = orderColumns(column, byType).map((name) => `r.${name}`)
  const later = `(${columns.join(', ')}) ${beyond} (${place.join(', ')})`
  return column === 'd_lo' && !descending ? `(${later} or r.d_lo is null)` : later
}

export function orderColumns(column: Order['column'], byType: boolean): readonly string[] {
  return [...(column === 'id' ? [] : [column]), 'id', ...(byType ? ['type'] : [])]
}

// Positions among rows sorted by terms

/** `order by` of rows with the terms as s0, s1, …; rows without a value come last, first descending. */
export function termOrderSql(terms: readonly Term[], idDescending: boolean, alias: string): string {
  const each = terms.map(({ descending }, i) => `${alias}.s${i}${descending ? ' desc' : ''}`)
  return [...each, `${alias}.id${idDescending ? ' desc' : ''}`].join(', ')
}

export function afterTermsSql(
  { terms, descending: idDescending }: Order,
  { id, values }: Position,
  bind: Bind,
): string {
  return terms.reduceRight(
    (rest, { descending, type }, i) => {
      const column = `r.s${i}`
      const value = values[i] ?? null
      if (value === null) {
        const isAlso = `(${column} is null and ${rest})`
        return descending ? `(${column} is not null or ${isAlso})` : isAlso
      }
      const bound = bind(value, type)
      const beyond = descending
        ? `${column} < ${bound}`
        : `(${column} > ${bound} or ${column} is null)`
      return `(${beyond} or (${column} = ${bound} and ${rest}))`
    },
    `r.id ${idDescending ? '<' : '>'} ${bind(id, 'uuid')}`,
  )
}

function termValue(type: Term['type'], value: SortedRow['s0']): TermValue {
  if (value instanceof Date) return value.toISOString()
  if (typeof value !== 'number' || Number.isFinite(value)) return value ?? null
  const isTime = type === 'timestamptz'
  return `${value < 0 ? '-' : ''}${isTime ? 'infinity' : 'Infinity'}`
}

function isTermValue(type: Term['type'], value: unknown): value is TermValue {
  if (value === null) return true
  switch (type) {
    case 'float8':
      return typeof value === 'number' || value === 'Infinity' || value === '-Infinity'
    case 'uuid':
      return typeof value === 'string' && UUID.test(value)
    case 'timestamptz':
      return isTime(value)
    case 'text':
      return typeof value === 'string' && value.length <= MAX_TEXT && !value.includes('\0')
    default:
      return type satisfies never
  }
}

function isTime(value: unknown): value is string {
  if (typeof value !== 'string') return false
  if (value === 'infinity' || value === '-infinity') return true
  const time = TIME.test(value) ? new Date(value).getTime() : Number.NaN
  // PostgreSQL rejects the year 0 and days that a month does not have.
  return time >= FIRST_TIME && new Date(time).toISOString() === value
}
