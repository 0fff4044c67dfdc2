/** The web process: read settings, open services, listen; on SIGTERM finish what runs and leave. */

import { openServices, StartError } from '../shared/api/open-services.ts'
import { readConfig } from '../shared/core/config/config.ts'
import { ConfigError } from '../shared/core/config/reader.ts'
import { timings } from '../shared/core/config/waits.ts'
import { createLogger, type Logger } from '../shared/core/log.ts'
import { warmUp } from '../shared/graphql/document/document.ts'
import { publishWebLoad } from '../shared/redis/web-load.ts'
import type { Services } from '../shared/request/services.ts'
import { type Listening, listen } from './listen.ts'

const FINISH_MS = 25_000
/** Callers of bots that still run are then given the address of the result. */
const SEND_AWAY_MS = 20_000

async function main(): Promise<void> {
  const config = readConfig()
  const log = createLogger(config.logLevel, 'web')
  const services = await openServices(config, log, true)
  const listening = await listen(services, config.port).catch((error: unknown) => {
    throw explained(error, config.port)
  })
  log.info({ port: listening.port, baseUrl: config.baseUrl }, 'listening')
  publishWebLoad(services.redis)
  stopOnSignal(listening, services, log)
  await warmUp()
}

/** A second signal does not wait any longer. */
function stopOnSignal(listening: Listening, services: Services, log: Logger): void {
  let stopping = false
  const stop = async (signal: NodeJS.Signals) => {
    if (stopping) process.exit(1)
    stopping = true
    log.info({ signal }, 'stopping')
    const late = setTimeout(() => listening.sendAway(), SEND_AWAY_MS)
    // SIGTERM comes from a platform whose router may not know yet; SIGINT from somebody at a terminal.
    await listening.stop(FINISH_MS, signal === 'SIGTERM' ? timings.drainMs : 0)
    clearTimeout(late)
    await services.close()
    log.info('stopped')
    process.exit(0)
  }
  for (const signal of ['SIGTERM', 'SIGINT'] as const) {
    process.on(signal, () => void stop(signal))
  }
}

function explained(error: unknown, port: number): unknown {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  if (code === 'EADDRINUSE') {
    return new StartError(`Port ${port} is in use; stop what listens there or set PORT`)
  }
  if (code === 'EACCES') {
    return new StartError(`Port ${port} may not be used by this account; set PORT to another one`)
  }
  return error
}

main().catch((error: unknown) => {
  const isPlain = error instanceof ConfigError || error instanceof StartError
  const text = error instanceof Error && !isPlain ? error.stack : String((error as Error).message)
  process.stderr.write(`${text}\n`, () => process.exit(1))
})
