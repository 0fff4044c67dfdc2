/** Maps errors of PostgreSQL and its driver to failures that contain no statement values. */

import {
  HttpError,
  LeaseLost,
  StorageFull,
  serverTimeout,
  TransactionConflict,
  tooCostly,
  unavailable,
} from '../core/errors.ts'
import type { Statement } from './statement.ts'

/** Holds only SQLSTATE and constraint: PostgreSQL's message repeats values, which must not reach a response or log. */
export class SqlError extends Error {
  readonly code: string
  readonly constraint: string | undefined

  constructor(code: string, constraint: string | undefined, what: string) {
    super(`PostgreSQL refused ${what}: SQLSTATE ${code}${constraint ? ` (${constraint})` : ''}`)
    this.code = code
    this.constraint = constraint
  }
}

/** Raised by the schema's function search_cap. */
const TOO_MANY = 'BT001'
/** Disk full, out of memory. */
const NO_ROOM = new Set(['53100', '53200'])
/** Raised by the schema's function require_run. */
const RUN_LOST = 'BT002'
/** Serialization failure, deadlock, lock timeout. */
const CONTENTION = new Set(['40001', '40P01', '55P03'])
export function toFailure(error: unknown, statement: Statement): Error {
  if (!(error instanceof Error)) return new Error('The database driver threw a non-error')
  const code = 'code' in error && typeof error.code === 'string' ? error.code : undefined
  if (isConnectionLoss(code, error.message)) return unavailable('Database', error)
  if (code === undefined) return error
  if (code === '57014') return serverTimeout()
  if (CONTENTION.has(code))
    return new TransactionConflict(code, new SqlError(code, undefined, statementName(statement)))
  if (code === TOO_MANY)
    return tooCostly('A chain or _has of the search matches too many resources')
  if (NO_ROOM.has(code)) {
    return new StorageFull('Database', new SqlError(code, undefined, statementName(statement)))
  }
  if (code === RUN_LOST) return new LeaseLost()
  const constraint =
    'constraint' in error && typeof error.constraint === 'string' ? error.constraint : undefined
  // Class 42 is an error in our own SQL, which holds no values.
  return new SqlError(
    code,
    constraint,
    code.startsWith('42') ? `"${error.message}"` : statementName(statement),
  )
}

function statementName({ name, text }: Statement): string {
  return name ?? text.slice(0, 40)
}

export function isConnectionLost(failure: Error): boolean {
  if (failure instanceof TransactionConflict || failure instanceof StorageFull) return false
  return failure instanceof HttpError && failure.status === 503
}

// Class 08 and 57P0x: the server stops or starts; 53300: no connection slot; 25006: a standby.
// The rest are Node's socket errors and pg's messages without a code.
function isConnectionLoss(code: string | undefined, message: string): boolean {
  if (code !== undefined) return /^(08...|57P0.|53300|25006|E[A-Z_]{4,})$/.test(code)
  return /^(Connection terminated|Client |timeout expired|Query read timeout)/i.test(message)
}
