/** The worker process: reads settings, opens services, takes jobs; on SIGTERM finishes current work and exits. */
import { exitUnstarted, openServices } from '../shared/api/open-services.ts'
import { readConfig } from '../shared/core/config/config.ts'
import { createLogger } from '../shared/core/log.ts'
import { stopOnSignal } from '../shared/core/stop.ts'
import { takeJobs } from './take-jobs.ts'

/** Platforms kill after 30 s. */
const FINISH_MS = 20_000

async function main(): Promise<void> {
  const config = readConfig()
  const log = createLogger(config.logLevel, 'worker')
  const services = await openServices(config, log)
  const taking = await takeJobs(services)

  stopOnSignal(log, async () => {
    await taking.stop(FINISH_MS)
    await services.close()
  })
}

main().catch(exitUnstarted)
