/** The context that the parts of the store share; one a process, and a copy for each transaction. */
import type { Rights } from '../../access/guarded/elements.ts'
import { REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import type { Outbound } from '../../config/outbound.ts'
import type { OwnParameter } from '../../fhir/definitions-data.ts'
import type { Connection } from '../../platform/postgres/statement.ts'
import type { Watchers } from '../events/subscribers.ts'
import type { OwnParametersReader } from '../index/custom-parameters.ts'
import type { Keys } from '../index/keys.ts'
import type { KeyStatistics } from '../search/plan/statistics.ts'
import type { Fetch } from './fetch.ts'
import type { CheckedReference, Deleted, Deletion, Submit, Turns } from './ports.ts'
import type { VersionRow } from './rows.ts'
import { REGISTRY_PROJECT, type Tenants } from './tenants.ts'
import type { RecentVersions } from './version-cache.ts'

/** The rights of each membership with this profile, `Type/id`; undefined where they cannot be known. */
export type ProgramRights = (
  connection: Connection,
  profile: string,
) => Promise<readonly (Rights | undefined)[]>

export interface Store {
  /** The pool, or the one connection of a transaction. */
  readonly connection: Connection
  readonly submit: Submit
  /** The newest version of a row, and deletions: those of one bundle share their statements. */
  readonly fetch: Fetch
  readonly remove: (deletion: Deletion) => Promise<readonly Deleted[]>
  /** Inside a transaction undefined: what is written there may never be. */
  readonly recent: RecentVersions | undefined
  readonly keys: Keys
  readonly ownParameters: OwnParametersReader
  /** Told once of each search parameter of a Project that fails. */
  readonly warn: (parameter: OwnParameter) => void
  /** Reports a stored version that is no JSON any more. */
  readonly tellDamaged: (row: VersionRow) => void
  readonly tenants: Tenants
  readonly watchers: Watchers
  readonly statistics: KeyStatistics
  /** Codings this process has seen in the dictionary. */
  readonly seenCodes: { has(key: bigint): boolean; add(key: bigint): void }
  /** Row ids of patients that were seen to hold accounts. */
  readonly holders: { has(id: string): boolean; add(id: string): void }
  /** Told when the outbox has got something; inside a transaction, once it is committed. */
  readonly announce: () => void
  /**
   * Told of the Project of a Subscription made active. Resolves when each write that begins then sees it; in
   * a transaction at its end, where all that it has made active must have a place.
   */
  readonly activated: (project: number) => Promise<void>
  /** The rights of a program whose code or keys are about to be written. */
  readonly programRights: ProgramRights
  /** Where Subscriptions may send to. */
  readonly hookTargets: Outbound
  /** External attachments are fetched. */
  readonly autoDownload: boolean
  /** One at a time for equal conditional writes, and changes of one resource, of this process. */
  readonly turns: Turns
  /** Inside a transaction: references that are checked at its end. */
  readonly deferred: CheckedReference[] | undefined
}

/** The same, but its statements are cancelled when `signal` aborts. Errors: its reason. */
export function until(store: Store, signal: AbortSignal | undefined): Store {
  const connection = signal && store.connection.until?.(signal)
  return connection === undefined ? store : { ...store, connection }
}

/** Where a Principal finds a type, and what the rows it may see begin their platform meta with. */
export interface Scope {
  readonly project: number
  /** Empty: every row of the project. */
  readonly metaPrefix: string
  /** Ids are looked for in every project: a super admin and not a registry type. */
  readonly everywhere: boolean
}

export function scopeOf(principal: Principal, type: string): Scope {
  if (!REGISTRY_TYPES.has(type)) {
    const everywhere = principal.isSuperAdmin
    return { project: principal.project.number, metaPrefix: '', everywhere }
  }
  // A member who is no admin reads its own User only, which may belong to no Project.
  const isOwn = type === 'User' && !principal.isProjectAdmin
  const metaPrefix = principal.isSuperAdmin || isOwn ? '' : metaPrefixOf(principal.project.id)
  return { project: REGISTRY_PROJECT, metaPrefix, everywhere: false }
}

/** Every row's platform meta begins with its Project. */
export function metaPrefixOf(projectId: string): string {
  return `"project":${JSON.stringify(projectId)}`
}

/** The key that registry rows are found by within one Project. */
export function projectKey(keys: Keys, type: string, projectId: string): bigint {
  return keys.token(keys.param(REGISTRY_PROJECT, type, '_project'), undefined, projectId)
}

const ID = /^[A-Za-z0-9\-.]{1,64}$/
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

export function isLegalId(id: string): boolean {
  return ID.test(id)
}

/** UUIDs compare case-insensitively and are stored in lower case. */
export function normalId(id: string): string {
  return isUuid(id) ? id.toLowerCase() : id
}

export function isUuid(text: string): boolean {
  return UUID.test(text)
}

/** Runs `work` in a transaction, with a store that writes and reads inside it and holds these locks. */
export type Transact = <T>(
  work: (inner: Store) => Promise<T>,
  locks: readonly bigint[],
) => Promise<T>
