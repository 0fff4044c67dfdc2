/** Positions among rows sorted by terms, as SQL and as cursors. */

import { badRequest } from '../../core/errors.ts'
import type { Bind } from '../../postgres/statement.ts'
import type { Order, Position, SortedRow, TermValue } from './position.ts'
import type { Term } from './sort-terms.ts'

/** First character of a cursor for the page that ends before its row. */
export const BACK = '<'

export const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
/** Longer than any indexed sort value; values read from content may be longer. */
const MAX_TEXT = 10_000

export function writeTermCursor(
  terms: readonly Term[],
  row: SortedRow,
  isBackwards: boolean,
): string {
  const values = terms.map(({ type }, i) => termValue(type, row[`s${i}`] ?? null))
  return encodeCursor([`${isBackwards ? BACK : ''}${joinTermNames(terms)}`, values, row.id])
}

/** Errors: 400 for a damaged cursor or a cursor of another order. */
export function readTermCursor(terms: readonly Term[], cursor: string): Position {
  const parts = decodeCursor(cursor)
  const names = [joinTermNames(terms), BACK + joinTermNames(terms)]
  if (Array.isArray(parts) && parts.length === 3 && names.includes(parts[0])) {
    const [start, values, id]: unknown[] = parts
    const isId = typeof id === 'string' && UUID.test(id)
    if (isId && Array.isArray(values) && values.length === terms.length) {
      const isSound = terms.every(({ type }, i) => isTermValue(type, values[i]))
      if (isSound) return { value: null, values, id, type: 0, isBackwards: start !== names[0] }
    }
  }
  throw badRequest('Invalid cursor', '_cursor')
}

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

const joinTermNames = (terms: readonly Term[]) => terms.map(({ name }) => name).join(',')

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

export function isTime(value: unknown): value is string {
  if (typeof value !== 'string') return false
  if (value === 'infinity' || value === '-infinity') return true
  return TIME.test(value) && !Number.isNaN(Date.parse(value))
}

export function encodeCursor(parts: readonly unknown[]): string {
  return Buffer.from(JSON.stringify(parts)).toString('base64url')
}

export function decodeCursor(cursor: string): unknown {
  try {
    return JSON.parse(Buffer.from(cursor, 'base64url').toString())
  } catch {
    return undefined
  }
}
