/** The parts of a process that requests and jobs need; passed as one object. */
import type { Devices } from '../access/credentials/devices.ts'
import type { Hashing } from '../access/credentials/hashing.ts'
import type { SignedUrls } from '../access/credentials/signed-urls.ts'
import type { Tokens } from '../access/credentials/tokens.ts'
import type { Config } from '../core/config/config.ts'
import type { Logger } from '../core/log.ts'
import type { Principals } from '../identity/principals.ts'
import type { Profiles } from '../identity/profiles.ts'
import type { Database } from '../postgres/database.ts'
import type { Replicas } from '../postgres/replicas.ts'
import type { Queues } from '../queue/queue.ts'
import type { Bus } from '../redis/bus.ts'
import type { Changes } from '../redis/changes.ts'
import type { Limiter } from '../redis/limiter.ts'
import type { Redis } from '../redis/redis.ts'
import type { Storage } from '../storage/storage.ts'
import type { Repository } from '../store/repository.ts'

export interface Services {
  readonly config: Config
  readonly log: Logger
  readonly database: Database
  readonly repository: Repository
  /** Where reads may go; undefined where there are none. */
  readonly replicas: Replicas | undefined
  readonly principals: Principals
  /** Compiled StructureDefinitions of Projects. */
  readonly profiles: Profiles
  readonly tokens: Tokens
  readonly signedUrls: SignedUrls
  /** Recognises devices on which people have signed in before. */
  readonly devices: Devices
  /** Where hashes of passwords are computed. */
  readonly hashing: Hashing
  readonly storage: Storage
  /** For small counters and caches of a request; jobs go through `queues`. */
  readonly redis: Redis
  /** Messages between processes. */
  readonly bus: Bus
  /** Tells caches of what has changed, in this process and in others. */
  readonly changes: Changes
  readonly queues: Queues
  /** Load units of members and Projects. */
  readonly load: Limiter
  /** Wrong secrets of clients. */
  readonly wrongSecrets: Limiter
  close(): Promise<void>
}
