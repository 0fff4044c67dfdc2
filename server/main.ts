/** The web process: reads settings, opens services, listens; finishes requests on SIGTERM and exits. */

import { exitUnstarted, openServices, StartError } from '../shared/api/open-services.ts'
import { readConfig } from '../shared/core/config/config.ts'
import { timings } from '../shared/core/config/waits.ts'
import { createLogger } from '../shared/core/log.ts'
import { stopOnSignal } from '../shared/core/stop.ts'
import { warmUp } from '../shared/graphql/document/document.ts'
// Loaded at the start, otherwise the first request that needs them would wait.
import '../shared/graphql/serve.ts'
import './openapi/describe.ts'
import { publishWebLoad } from '../shared/redis/web-load.ts'
import { listen } from './listen.ts'

const FINISH_MS = 25_000
/** After this time, callers of running bots get the address of the result. */
const DETACH_MS = 20_000

async function main(): Promise<void> {
  const config = readConfig()
  const log = createLogger(config.logLevel, 'web')
  const services = await openServices(config, log, true)
  const listening = await listen(services, config.port).catch((error: unknown) => {
    throw explained(error, config.port)
  })
  log.info({ port: listening.port, baseUrl: config.baseUrl }, 'listening')
  publishWebLoad(services.redis)
  stopOnSignal(log, async (signal) => {
    const late = setTimeout(() => listening.detachWaitingCallers(), DETACH_MS)
    // SIGTERM comes from a platform whose router may still send requests; SIGINT from a terminal.
    await listening.stop(FINISH_MS, signal === 'SIGTERM' ? timings.drainMs : 0)
    clearTimeout(late)
    await services.close()
  })
  await warmUp()
}

function explained(error: unknown, port: number): unknown {
  const code = error instanceof Error && 'code' in error ? error.code : undefined
  if (code === 'EADDRINUSE') {
    return new StartError(`Port ${port} is in use; stop the program that uses it or set PORT`)
  }
  if (code === 'EACCES') {
    return new StartError(`Port ${port} may not be used by this account; set PORT to another one`)
  }
  return error
}

main().catch(exitUnstarted)
