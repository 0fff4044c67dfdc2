/** The rows of a writing statement as they are sent: `i`, one a write, numbered from 1. */
import { keysLiteral } from '../index/keys.ts'
import type { Bind } from './side-rows.ts'
import type { Write } from './write-rows.ts'

const COLUMNS = [
  ['project', 'int'],
  ['type', 'smallint'],
  ['id', 'uuid'],
  ['ver', 'int'],
  ['after', 'timestamptz'],
  ['author', 'uuid'],
  ['head', 'text'],
  ['tail', 'text'],
  ['meta_at', 'int'],
  ['meta_ext', 'text'],
  ['d_lo', 'timestamptz'],
  ['d_hi', 'timestamptz'],
  ['nref', 'smallint'],
  ['keys', 'bigint[]'],
  ['side', 'boolean'],
  ['cause', 'text'],
] as const

/** A single row needs no lists. */
export function inputRows(writes: readonly Write[], bind: Bind): string {
  const rows = writes.map(inputRow)
  const [first] = rows
  if (first && rows.length === 1) {
    const columns = COLUMNS.map(([name, type], i) => `${bind(first[i], type)} as ${name}`)
    return `select 1 as n, ${columns.join(', ')}`
  }
  const lists = COLUMNS.map(([, type], i) => {
    const column = rows.map((row) => row[i])
    if (type !== 'text' && type !== 'bigint[]') return bind(literal(column), `${type}[]`)
    // bigint[] travels as text: unnest would flatten an array of arrays.
    return `string_to_array(${bind(column.join(SEPARATOR), 'text')}, '${SEPARATOR}')`
  })
  const names = COLUMNS.map(([name, type]) =>
    type === 'bigint[]' ? `nullif(x.${name}, '')::bigint[] as ${name}` : `x.${name}`,
  )
  return `select x.n::int as n, ${names.join(', ')} from unnest(${lists.join(', ')})
    with ordinality as x(${COLUMNS.map(([name]) => name).join(', ')}, n)`
}

/** JSON text holds no raw control character, so long texts are joined by one instead of being quoted. */
const SEPARATOR = '\u0001'

/** An array of values that need no quotes. */
function literal(values: readonly unknown[]): string {
  return `{${values.map((value) => (value instanceof Date ? value.toISOString() : (value ?? 'null'))).join(',')}}`
}

function inputRow(write: Write): readonly unknown[] {
  const { rows } = write
  return [
    write.project,
    write.type,
    write.id,
    write.ver,
    write.after ?? null,
    write.author ?? null,
    write.head,
    write.tail,
    write.metaAt,
    write.metaExtension,
    rows?.dateLow ?? null,
    rows?.dateHigh ?? null,
    rows?.nref ?? null,
    rows && keysLiteral(rows.keys),
    write.sideRows,
    write.event !== undefined && write.event.home === undefined ? write.event.cause : '',
  ]
}
