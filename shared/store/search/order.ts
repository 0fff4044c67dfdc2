/** The order of a page and the cursor that continues it: keyset paging, with the id as tie-break. */
import { badRequest, notSupported } from '../../errors.ts'
import { mainDate } from '../../fhir/definitions.ts'
import type { SearchRequest } from '../../fhir/search.ts'
import type { VersionRow } from '../rows.ts'
import type { Bind } from '../side-rows.ts'

export interface Order {
  readonly column: 'lu' | 'd_lo' | 'id'
  readonly descending: boolean
}

/** The last row of the page before; `value` null is a row without a date. */
export interface Position {
  readonly value: string | null
  readonly id: string
}

export interface SortedRow extends VersionRow {
  /** Infinite for the open end of a period. */
  readonly d_lo: Date | number | null
}

/** Newest first when nothing is asked. Errors: 400 for orders that no index serves. */
export function orderOf({ type, sort }: SearchRequest): Order {
  const [rule, second] = sort
  if (rule === undefined) return { column: 'lu', descending: true }
  if (second !== undefined) throw notSupported('Sorting by several parameters is not supported')
  const { code, descending } = rule
  if (code === '_lastUpdated') return { column: 'lu', descending }
  if (code === '_id') return { column: 'id', descending }
  if (code === mainDate(type)) return { column: 'd_lo', descending }
  throw notSupported(`Sorting ${type} by ${code} is not supported`)
}

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/

export function writeCursor(order: Order, row: SortedRow): string {
  const value = order.column === 'id' ? null : timeOf(order.column === 'lu' ? row.lu : row.d_lo)
  return Buffer.from(JSON.stringify([name(order), value, row.id])).toString('base64url')
}

/** Errors: 400 for a damaged cursor or one of another order. It tells a position and no secret. */
export function readCursor(order: Order, cursor: string): Position {
  const parts: unknown = parse(cursor)
  if (Array.isArray(parts) && parts.length === 3 && parts[0] === name(order)) {
    const [, value, id]: unknown[] = parts
    const isValue = value === null ? order.column !== 'lu' : isTime(value)
    if (isValue && typeof id === 'string' && UUID.test(id)) {
      return { value: typeof value === 'string' ? value : null, id }
    }
  }
  throw badRequest('Invalid cursor')
}

function parse(cursor: string): unknown {
  try {
    return JSON.parse(Buffer.from(cursor, 'base64url').toString())
  } catch {
    return undefined
  }
}

function isTime(value: unknown): value is string {
  if (typeof value !== 'string') return false
  if (value === 'infinity' || value === '-infinity') return true
  return TIME.test(value) && !Number.isNaN(Date.parse(value))
}

function timeOf(time: Date | number | null): string | null {
  if (time === null) return null
  if (typeof time === 'number') return time > 0 ? 'infinity' : '-infinity'
  return time.toISOString()
}

const name = ({ column, descending }: Order) => `${descending ? '-' : ''}${column}`

/** `order by` that the B-tree of the order serves: rows without a date come last ascending. */
export function orderSql({ column, descending }: Order, alias: string): string {
  const direction = descending ? ' desc' : ''
  if (column === 'id') return `${alias}.id${direction}`
  return `${alias}.${column}${direction}, ${alias}.id${direction}`
}

/** The same order in words that no index serves, so that the rows are found by their keys. */
export function orderAfterSql({ column, descending }: Order, alias: string): string {
  const direction = descending ? 'desc nulls last' : 'asc nulls first'
  // The index of dates holds only rows that have one, so it cannot serve all of them anyway.
  if (column === 'd_lo') return orderSql({ column, descending }, alias)
  if (column === 'id') return `${alias}.id ${direction}`
  return `${alias}.lu ${direction}, ${alias}.id ${direction}`
}

/** What comes after a position, as one condition; rows without a date are after all ascending. */
export function afterSql({ column, descending }: Order, position: Position, bind: Bind): string {
  const beyond = descending ? '<' : '>'
  const id = bind(position.id, 'uuid')
  if (column === 'id') return `r.id ${beyond} ${id}`
  if (position.value === null) {
    const sameIds = `(r.d_lo is null and r.id ${beyond} ${id})`
    return descending ? `(${sameIds} or r.d_lo is not null)` : sameIds
  }
  const value = bind(position.value, 'timestamptz')
  const later = `(r.${column}, r.id) ${beyond} (${value}, ${id})`
  return column === 'd_lo' && !descending ? `(${later} or r.d_lo is null)` : later
}
