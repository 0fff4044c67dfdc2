/**
 * The context that the parts of the store share, and the reading of a row within it. There is one a process, and
 * a copy for each transaction.
 */
import { may, REGISTRY_TYPES } from '../../access/policy.ts'
import type { Principal } from '../../access/principal.ts'
import { badStructure, forbidden } from '../../core/errors.ts'
import { isResourceType, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameter, OwnParameters } from '../../fhir/definitions-data.ts'
import type { Reference, Resource } from '../../fhir/resource.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { Keys } from '../index/keys.ts'
import type { KeyStatistics } from '../index/statistics.ts'
import type { KnownCounts } from './counts.ts'
import type { OwnParametersReader } from './custom-parameters.ts'
import type { Fetch, RowKey } from './fetch.ts'
import type {
  CheckedReference,
  Deleted,
  DeletionWrite,
  KeyedMutex,
  Submit,
  WritePlace,
} from './ports.ts'
import type { RecentVersions } from './recent.ts'
import type { VersionRow } from './rows.ts'
import type { Watchers } from './subscribers.ts'
import { REGISTRY_PROJECT, type Tenants } from './tenants.ts'
import type { Version } from './version.ts'
import type { PartWritten, StatementPart } from './write-rows.ts'

export interface StoreContext {
  /** The pool, or the one connection of a transaction. */
  readonly connection: Connection
  readonly submit: Submit
  /** The newest version of a row, and deletions: those of one bundle share their statements. */
  readonly fetch: Fetch
  readonly remove: (deletion: DeletionWrite) => Promise<readonly Deleted[]>
  /** Inside a transaction undefined: what is written there may never be. */
  readonly recent: RecentVersions | undefined
  /** The same, and where several servers have the rows. */
  readonly counts: KnownCounts | undefined
  readonly keys: Keys
  readonly ownParameters: OwnParametersReader
  /** Called once for each search parameter of a Project that fails. */
  readonly warn: (parameter: OwnParameter) => void
  /** Reports a stored version that is no JSON any more. */
  readonly logDamaged: (row: VersionRow) => void
  readonly tenants: Tenants
  readonly watchers: Watchers
  readonly statistics: KeyStatistics
  /** Rows of the dictionary that this process has seen, by `p ^ k`: units have one `k` in all Projects. */
  readonly seenCodes: { has(key: bigint): boolean; add(key: bigint): void }
  /** Row ids of patients that were seen to hold accounts. */
  readonly holders: { has(id: string): boolean; add(id: string): void }
  /** Called when the outbox has got something; inside a transaction, once it is committed. */
  readonly announce: () => void
  /** Runs what a part does after its row is written; in a transaction, at the end of it. */
  readonly written: (part: StatementPart, written: PartWritten) => Promise<void>
  /** Registered by features: rules by type, and parts of the writing statements. */
  readonly rules: ReadonlyMap<string, WriteRule>
  readonly parts: readonly WritePart[]
  /** One at a time for equal conditional writes, and changes of one resource, of this process. */
  readonly turns: KeyedMutex
  readonly transact: Transact
  /** Inside a transaction: references that are checked at its end. */
  readonly deferred: CheckedReference[] | undefined
}

/** A create, or a change of what is stored, as a rule looks at it. */
export interface WriteAttempt {
  readonly store: StoreContext
  readonly principal: Principal
  readonly interaction: 'create' | 'update'
  readonly id: string
  /** The id was made for the resource, so that nothing can refer to it. */
  readonly isNew: boolean
  /** The live version; undefined for a create, and for a deleted resource. */
  readonly before: Resource | undefined
  /** The resource as the caller sent it. */
  readonly sent: Resource
  /** As it would be written: elements that the caller may not set are as they are stored. */
  readonly kept: Resource
  /** As `kept`, with the elements that the caller sent without seeing them: it means to change them. */
  readonly meant: Resource
  /** An entry of a policy that names the type governs the write. */
  readonly isNamed: boolean
}

/** A resource that is about to be stored in a Project. */
export interface Admission {
  readonly store: StoreContext
  readonly principal: Principal
  readonly project: number
  readonly before: Resource | undefined
  readonly after: Resource
  readonly own: OwnParameters | undefined
}

/**
 * The rule for writes of one type, whatever path they take: REST, a bundle, a bot or an administration route.
 * The feature whose type it is registers it. The functions stand in the order in which a write passes them.
 */
export interface WriteRule {
  readonly type: string
  /** Checks the resource as it is sent. Errors: 400. */
  checkForm?(resource: Resource): void
  /** The same, for what depends on the search parameters of the Project. Errors: 400. */
  checkParameters?(resource: Resource, own: OwnParameters | undefined): void
  /** Brings the resource into the form in which it is stored. */
  file?(resource: Resource): Resource
  /** Checks what a member changes; the service's own work (no membership) is trusted. Errors: 400, 403. */
  check?(attempt: WriteAttempt): Promise<void>
  /** Makes the resource that is stored. Errors: 400, 403, 422. */
  admit?(admission: Admission): Promise<Resource>
  /** Values that only one resource of a scope has. */
  uniqueValues?(resource: Resource): readonly UniqueValue[]
  /** The author of what is written. */
  resolveAuthor?(principal: Principal): Reference
  /** The id of the resource is that of the Project in which it is filed. */
  readonly isProject?: boolean
  /** Checks a member's deletion before the resource is looked for. Errors: 403. */
  checkRemoval?(store: StoreContext, principal: Principal, id: string): Promise<void>
  /** Checks a member's deletion of what may be deleted. Errors: 400. */
  checkDeletion?(store: StoreContext, principal: Principal, id: string): Promise<void>
}

export interface UniqueValue {
  readonly scope: string
  readonly value: string
}

/** A version that is about to be written, as parts of the statement look at it. */
export interface VersionDraft {
  readonly store: StoreContext
  readonly principal: Principal
  readonly place: WritePlace
  /** With its id and platform meta. */
  readonly resource: Resource
  /** The live version, with its platform meta. */
  readonly stored: Resource | undefined
  /** The text that is stored, from behind the time of the version. */
  readonly tail: string
}

/** Rows that a feature writes beside a version, by the same statement. */
export interface WritePart<Row = unknown> extends StatementPart<Row> {
  /** The types that have rows; undefined: all. */
  readonly types: ReadonlySet<string> | undefined
  /** Undefined: the version has none. */
  buildRow(draft: VersionDraft): Row | undefined
  /** The row that `committed` gets for a deletion of one of `types`; the statement has none of it. */
  buildDeletionRow?(deleted: Version): Row
}

/** The same, but its statements are cancelled when `signal` aborts. Errors: its reason. */
export function withAbortSignal(
  store: StoreContext,
  signal: AbortSignal | undefined,
): StoreContext {
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

export function rowScope(principal: Principal, type: string): Scope {
  if (!REGISTRY_TYPES.has(type)) {
    const everywhere = principal.isSuperAdmin
    return { project: principal.project.number, metaPrefix: '', everywhere }
  }
  // A member who is no admin reads its own User only, which may belong to no Project.
  const isOwn = type === 'User' && !principal.isProjectAdmin
  const metaPrefix = principal.isSuperAdmin || isOwn ? '' : projectMetaPrefix(principal.project.id)
  return { project: REGISTRY_PROJECT, metaPrefix, everywhere: false }
}

/** Every row's platform meta begins with its Project. */
function projectMetaPrefix(projectId: string): string {
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
type Transact = <T>(
  work: (inner: StoreContext) => Promise<T>,
  locks: readonly bigint[],
) => Promise<T>

/** The newest visible version, a deletion included; undefined for unknown or invisible ids. */
export async function readRow(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): Promise<VersionRow | undefined> {
  if (!isLegalId(id)) return undefined
  const row = await store.fetch(rowKey(store, principal, type, id))
  if (row !== undefined) store.recent?.keep(row)
  return row
}

/** Where the newest version of a resource is looked for. */
export function rowKey(
  store: StoreContext,
  principal: Principal,
  type: string,
  id: string,
): RowKey {
  const { project, metaPrefix, everywhere } = rowScope(principal, type)
  const row = store.keys.rowId(type, id)
  return { project, type: typeNumber(type), id: row, metaPrefix, everywhere }
}

/** The condition on `v.project`; `$1` is the Principal's own. */
export const projectTest = (everywhere: boolean) =>
  everywhere ? 'v.project = any(array(select project from tenant))' : 'v.project = $1'

/** Throws 403, or 400 for an unknown type. */
export function requireAllowed(
  principal: Principal,
  type: string,
  interaction: Parameters<typeof may>[2],
): void {
  if (!isResourceType(type)) throw badStructure('Unknown resource type')
  if (!may(principal, type, interaction)) throw forbidden(`no right to ${interaction} ${type}`)
}
