/** Dependencies of requests and jobs in a process. */
import type { Devices } from '../access/credentials/devices.ts'
import type { Hashing } from '../access/credentials/hashing.ts'
import type { SignedUrls } from '../access/credentials/signed-urls.ts'
import type { Tokens } from '../access/credentials/tokens.ts'
import type { Config } from '../core/config/config.ts'
import type { Logger } from '../core/log.ts'
import type { Principals } from '../identity/principals.ts'
import type { Profiles } from '../identity/profiles.ts'
import type { Storage } from '../outbound/storage/storage.ts'
import type { Database } from '../postgres/database.ts'
import type { Replicas } from '../postgres/replicas.ts'
import type { Queues } from '../queue/queue.ts'
import type { Bus } from '../redis/bus.ts'
import type { Changes } from '../redis/changes.ts'
import type { Limiter } from '../redis/limiter.ts'
import type { Redis } from '../redis/redis.ts'
import type { Repository } from '../store/repository.ts'

export interface Services {
  readonly config: Config
  /** Id of the Project whose address was called, which links of the response keep. */
  readonly projectScope?: string
  readonly log: Logger
  readonly database: Database
  readonly repository: Repository
  readonly replicas: Replicas | undefined
  readonly principals: Principals
  /** Compiled StructureDefinitions of Projects. */
  readonly profiles: Profiles
  readonly tokens: Tokens
  readonly signedUrls: SignedUrls
  /** Devices that users have signed in on. */
  readonly devices: Devices
  readonly hashing: Hashing
  readonly storage: Storage
  /** Small counters and caches; jobs use `queues`. */
  readonly redis: Redis
  readonly bus: Bus
  /** Notifies caches of changes, in all processes. */
  readonly changes: Changes
  readonly queues: Queues
  /** Load units of members and Projects. */
  readonly load: Limiter
  /** Failed client authentications. */
  readonly wrongSecrets: Limiter
  close(): Promise<void>
}
