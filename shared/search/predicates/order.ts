/** Page order and cursors: keyset paging with the id as tie-break. */

import { badRequest, notSupported } from '../../core/errors.ts'
import { mainDate, resourceTypes, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameters } from '../../fhir/definitions-data.ts'
import type { Bind } from '../../postgres/statement.ts'
import type { Keys } from '../../store/index/keys.ts'
import type { SearchRequest } from '../language/search-request.ts'
import type { Order, Position, SortedRow } from './position.ts'
import {
  BACK,
  decodeCursor,
  encodeCursor,
  isTime,
  readTermCursor,
  termOrderSql,
  UUID,
  writeTermCursor,
} from './sort-cursor.ts'
import { compileSortTerm } from './sort-terms.ts'

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
  if (order.terms.length > 0) return writeTermCursor(order.terms, row, isBackwards)
  const value =
    order.column === 'id' ? null : timestampLiteral(order.column === 'lu' ? row.lu : row.d_lo)
  const type = order.byType ? [row.type] : []
  return encodeCursor([`${isBackwards ? BACK : ''}${name(order)}`, value, row.id, ...type])
}

/** Errors: 400 for a damaged cursor or a cursor of another order. Cursors contain no secrets. */
export function readCursor(order: Order, cursor: string): Position {
  if (order.terms.length > 0) return readTermCursor(order.terms, cursor)
  const foreign = order.column === 'lu' && !order.descending ? FOREIGN.exec(cursor) : null
  if (foreign !== null) return foreignPosition(foreign)
  const parts = decodeCursor(cursor)
  const isOfOrder = Array.isArray(parts) && [name(order), BACK + name(order)].includes(parts[0])
  if (isOfOrder && parts.length === (order.byType ? 4 : 3)) {
    const [start, value, id, type = 0]: unknown[] = parts
    const isValue = value === null ? order.column !== 'lu' : isTime(value)
    const isId = typeof id === 'string' && UUID.test(id)
    if (isValue && isId && typeof type === 'number' && TYPE_NUMBERS.has(type)) {
      const isBackwards = start !== name(order)
      return { value: typeof value === 'string' ? value : null, values: [], id, type, isBackwards }
    }
  }
  throw badRequest('Invalid cursor', '_cursor')
}

/** Medplum cursors: `1-<ms>-<id>` starts at a time, `2-<ms>-<id>,<id>…` after those that share it. */
const FOREIGN = /^([12])-(\d{1,13})-([0-9a-f,-]*)$/
const FIRST_ID = '00000000-0000-0000-0000-000000000000'

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

const name = ({ column, descending, byType }: Order) =>
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
