/** JSON lines on stdout; ids only, never bodies, tokens or secrets. */

import { type DestinationStream, type Logger, pino } from 'pino'
import { getOrInsert } from './cache.ts'
import { HttpError } from './errors.ts'

export type { Logger }

export function createLogger(level: string, process: 'web' | 'worker' | 'script'): Logger {
  const settings = {
    level,
    base: { process },
    serializers: { cause: causeText },
    redact: {
      paths: ['*.authorization', '*.cookie', '*.password', '*.secret', '*.client_secret'],
      censor: '***',
    },
  }
  standardOutput ??= gathered(pino.destination({ dest: 1, sync: true }))
  return pino(settings, standardOutput)
}

const plain = new WeakMap<Logger, Logger>()

/** Returns a logger without secret redaction, for lines that list their fields explicitly. */
export function unredactedLogger(log: Logger): Logger {
  return getOrInsert(plain, log, () => log.child({}, { redact: [] }))
}

let standardOutput: DestinationStream | undefined

const GATHER_MS = 100
const GATHER_CHARACTERS = 32_768
const WARN = 40

/** Batches lines within 100 ms, except warnings and the first after a pause. A killed process loses pending lines. */
function gathered(output: DestinationStream): DestinationStream {
  let waiting = ''
  let pause: NodeJS.Timeout | undefined
  const flush = () => {
    const lines = waiting
    waiting = ''
    if (lines !== '') output.write(lines)
  }
  const flushAndPause = () => {
    pause = waiting === '' ? undefined : setTimeout(flushAndPause, GATHER_MS).unref()
    flush()
  }
  process.on('exit', flush)
  const destination = {
    // pino stores the level of each line in `lastLevel` if this mark is set.
    [Symbol.for('pino.metadata')]: true,
    lastLevel: 0,
    write(line: string) {
      waiting += line
      if (pause === undefined) flushAndPause()
      else if (destination.lastLevel >= WARN || waiting.length >= GATHER_CHARACTERS) flush()
    },
  }
  return destination
}

/** Node's codes for lost sockets, and ioredis' message without a connection. */
const AWAY =
  /^(E[A-Z_]{4,}$|Connection is closed|Stream isn't writeable|Command timed out|Reached the max retries|LOADING )/

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
