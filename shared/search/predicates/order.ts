/** The order of a page and the cursor that continues it: keyset paging, with the id as tie-break. */

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

/** Newest first when nothing is asked. Errors: 400 for values that are not kept in any order. */
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

/** The same from its end to its beginning. */
export function reversed(order: Order): Order {
  const terms = order.terms.map((term) => ({ ...term, descending: !term.descending }))
  return { ...order, descending: !order.descending, terms }
}

/** The order over several types. Errors: 400 for what is not in the row of every type. */
export function orderOfTypes(request: SearchRequest, keys: Keys): Order {
  const order = resolveOrder(request, keys)
  if (order.column !== 'd_lo' && order.terms.length === 0) return { ...order, byType: true }
  throw notSupported('Several types are sorted by _lastUpdated or _id', '_sort')
}

/** The type numbers of cursors; 0 is that of an order without the type. */
const TYPE_NUMBERS = new Set([0, ...resourceTypes.map(typeNumber)])

/** `isBackwards`: of the page that ends before the row. */
export function writeCursor(order: Order, row: SortedRow, isBackwards = false): string {
  if (order.terms.length > 0) return writeTermCursor(order.terms, row, isBackwards)
  const value =
    order.column === 'id' ? null : timestampLiteral(order.column === 'lu' ? row.lu : row.d_lo)
  const type = order.byType ? [row.type] : []
  return encodeCursor([`${isBackwards ? BACK : ''}${name(order)}`, value, row.id, ...type])
}

/** Errors: 400 for a damaged cursor or one of another order. It tells a position and no secret. */
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

/** Medplum's: `1-<ms>-<id>` begins at a time, `2-<ms>-<id>,<id>…` after those that share it. */
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

/** `order by` that the B-tree of the order serves: rows without a date come last ascending. */
export function orderSql({ column, descending, byType, terms }: Order, alias: string): string {
  if (terms.length > 0) return termOrderSql(terms, descending, alias)
  const direction = descending ? ' desc' : ''
  return orderColumns(column, byType)
    .map((name) => `${alias}.${name}${direction}`)
    .join(', ')
}

/** The same order in words that no index serves, so that the rows are found by their keys. */
export function orderAfterSql(order: Order, alias: string): string {
  // The index of dates holds only rows that have one, so it cannot serve all of them anyway.
  if (order.column === 'd_lo') return orderSql(order, alias)
  const direction = order.descending ? 'desc nulls last' : 'asc nulls first'
  return orderColumns(order.column, order.byType)
    .map((name) => `${alias}.${name} ${direction}`)
    .join(', ')
}

/** The condition on rows after a position; rows without a date are after all ascending. */
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

/** The columns that no two rows share. */
export function orderColumns(column: Order['column'], byType: boolean): readonly string[] {
  return [...(column === 'id' ? [] : [column]), 'id', ...(byType ? ['type'] : [])]
}
