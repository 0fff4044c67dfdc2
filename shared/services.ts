/** What a process opened; passed as one object, closed in reverse order. */
import type { Config } from './config.ts'
import type { Database } from './database.ts'
import type { Logger } from './log.ts'
import type { Queues } from './queue.ts'
import type { Principals } from './store/principals.ts'
import type { Repository } from './store/repository.ts'

export interface Services {
  readonly config: Config
  readonly log: Logger
  readonly database: Database
  readonly repository: Repository
  readonly principals: Principals
  readonly queues: Queues
  close(): Promise<void>
}
