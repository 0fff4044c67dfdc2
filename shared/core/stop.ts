/** Orderly shutdown of a process. */
import type { Logger } from './log.ts'

/** Platforms kill after 30 s. */
const LIMIT_MS = 29_000

/**
 * Runs `stop` at the first SIGTERM or SIGINT, then exits with 0. Exits with 1 at a second signal, and when `stop` takes
 * longer than 29 s: a store that no longer answers must not keep the process.
 */
export function stopOnSignal(log: Logger, stop: (signal: NodeJS.Signals) => Promise<void>): void {
  let isStopping = false
  const onSignal = async (signal: NodeJS.Signals) => {
    if (isStopping) process.exit(1)
    isStopping = true
    log.info({ signal }, 'stopping')
    setTimeout(() => {
      log.error({ limitMs: LIMIT_MS }, 'Exiting before everything has stopped')
      process.exit(1)
    }, LIMIT_MS)
    await stop(signal)
    log.info('stopped')
    process.exit(0)
  }
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => void onSignal(signal))
  }
}
