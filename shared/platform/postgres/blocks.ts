/**
 * Statements whose parameters are sent as they stand in memory. pg copies all of them into one message, which it
 * makes larger again and again. Where a connection is slow to take messages of 1 MB each they become old, and V8
 * goes through all its objects to be rid of them: six times in an import of 15,000 lines, and once or twice without.
 * https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-BIND
 */
import { Query } from 'pg'
import type { WireConnection } from './statement.ts'

interface Bind {
  /** Absent: it has no name. */
  readonly statement?: string
  readonly values: readonly unknown[]
}

/** Blocks are binary, anything else is text. */
export class BlockQuery extends Query {
  /** As pg does it, but for the one message. */
  prepare(connection: WireConnection): void {
    const bind = ({ statement = '', values }: Bind) => {
      for (const piece of bindMessage(statement, values)) connection.stream.write(piece)
    }
    prepareQuery.call(this, Object.create(connection, { bind: { value: bind } }))
  }
}

// pg's types do not know it.
const prepareQuery: (connection: WireConnection) => void = Object(Query.prototype).prepare

const NO_PORTAL = '\0'
const TEXT = 0
const BINARY = 1

function bindMessage(statement: string, values: readonly unknown[]): readonly Buffer[] {
  const blocks = values.map(blockOf)
  const name = Buffer.from(`${NO_PORTAL}${statement}\0`)
  const formats = words([values.length, ...values.map(formatOf), values.length])
  const parameters = blocks.flatMap((block) =>
    block === undefined ? [long(-1)] : [long(block.length), block],
  )
  const rest = [name, formats, ...parameters, words([1, TEXT])]
  const size = rest.reduce((sum, { length }) => sum + length, long(0).length)
  return [Buffer.from('B'), long(size), ...rest]
}

function blockOf(value: unknown): Buffer | undefined {
  if (value === null) return undefined
  return Buffer.isBuffer(value) ? value : Buffer.from(String(value))
}

function formatOf(value: unknown): number {
  return Buffer.isBuffer(value) ? BINARY : TEXT
}

function long(value: number): Buffer {
  const bytes = Buffer.allocUnsafe(4)
  bytes.writeInt32BE(value)
  return bytes
}

function words(values: readonly number[]): Buffer {
  const bytes = Buffer.allocUnsafe(values.length * 2)
  for (const [i, value] of values.entries()) bytes.writeInt16BE(value, i * 2)
  return bytes
}
