/**
 * The one place that writes values into the text of a statement: COPY takes no parameters. Every value is
 * quoted by the driver's own function and has a type that is on a list.
 */
import { escapeLiteral } from 'pg'
import type { Bind } from '../../../store/rows/side-rows.ts'

const TYPES = /^(int|smallint|bigint|float8|boolean|text|uuid|timestamptz)(\[\])?$/

/** `'value'::type`. Errors: a type that is not on the list, a value that is no plain one, a NUL. */
export const literal: Bind = (value, type) => {
  if (!TYPES.test(type)) throw new Error(`No literal can be written of type ${type}`)
  if (value === null || value === undefined) return `null::${type}`
  return `${escapeLiteral(textOf(value))}::${type}`
}

function textOf(value: unknown): string {
  if (Array.isArray(value)) return `{${value.map(itemOf).join(',')}}`
  if (value instanceof Date) return value.toISOString()
  switch (typeof value) {
    case 'string':
      if (value.includes('\0')) throw new Error('A literal holds no NUL')
      return value
    case 'number':
    case 'bigint':
    case 'boolean':
      return String(value)
    default:
      throw new Error(`No literal can be written of a ${typeof value}`)
  }
}

/** https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO */
function itemOf(value: unknown): string {
  if (value === null || value === undefined) return 'null'
  return `"${textOf(value).replace(/["\\]/g, '\\$&')}"`
}
