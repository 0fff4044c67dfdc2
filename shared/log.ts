/** JSON lines on stdout; ids only, never bodies, tokens or secrets. */
import { type Logger, pino } from 'pino'
import { HttpError } from './errors.ts'

export type { Logger }

export function createLogger(level: string, process: 'web' | 'worker' | 'script'): Logger {
  return pino({
    level,
    base: { process },
    serializers: { cause: causeText },
    redact: {
      paths: ['*.authorization', '*.cookie', '*.password', '*.secret', '*.client_secret'],
      censor: '***',
    },
  })
}

/** Node's codes of a socket that is gone, and what ioredis says while it has none. */
const AWAY =
  /^(E[A-Z_]{4,}$|Connection is closed|Stream isn't writeable|Command timed out|Reached the max retries|LOADING )/

/** An expected failure is logged in one line; any other with its stack. */
function causeText(error: unknown): unknown {
  if (!(error instanceof Error)) return error
  if (error instanceof HttpError) return chain(error)
  const code = 'code' in error ? String(error.code) : ''
  return AWAY.test(code) || AWAY.test(error.message)
    ? error.message
    : pino.stdSerializers.err(error)
}

function chain({ message, cause }: Error): string {
  return cause instanceof Error ? `${message}: ${cause.message}` : message
}
