/** JSON lines on stdout; ids only, never bodies, tokens or secrets. */
import { type Logger, pino } from 'pino'

export type { Logger }

export function createLogger(level: string, process: 'web' | 'worker' | 'script'): Logger {
  return pino({
    level,
    base: { process },
    redact: {
      paths: ['*.authorization', '*.cookie', '*.password', '*.secret', '*.client_secret'],
      censor: '***',
    },
  })
}
