/** The context of the store, one per process and a copy per transaction, and the keys and index rows that need it. */
import { may, REGISTRY_TYPES } from '../../access/policy.ts'
import { type Principal, SYSTEM_PROJECT_NUMBER } from '../../access/principal.ts'
import { badStructure, forbidden } from '../../core/errors.ts'
import { isResourceType, typeNumber } from '../../fhir/definitions.ts'
import type { OwnParameter, OwnParameters } from '../../fhir/definitions-data.ts'
import type { Meta, Reference, Resource } from '../../fhir/resource.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { ParameterSubset } from '../index/index-plan.ts'
import { deriveIndexes, type IndexRows } from '../index/indexes.ts'
import type { Keys } from '../index/keys.ts'
import type { KeyStatistics } from '../index/statistics.ts'
import type { KnownCounts } from './counts.ts'
import type { OwnParametersReader } from './custom-parameters.ts'
import type { Fetch, RowKey } from './newest.ts'
import type { RecentVersions } from './recent-versions.ts'
import type { VersionRow } from './rows.ts'
import type { Watchers } from './subscribers.ts'
import type { Version } from './version.ts'
import type {
  CheckedReference,
  Deleted,
  DeletionWrite,
  KeyedMutex,
  PartWritten,
  StatementPart,
  Submit,
  WritePlace,
} from './write-rows.ts'

export interface StoreContext {
  /** The pool, or the one connection of a transaction. */
  readonly connection: Connection
  readonly submit: Submit
  /** Reads newest versions, deletions included; reads of one bundle share statements. */
  readonly fetch: Fetch
  readonly remove: (deletion: DeletionWrite) => Promise<readonly Deleted[]>
  /** Undefined inside a transaction, which may roll back. */
  readonly recent: RecentVersions | undefined
  /** Undefined inside a transaction, and with several servers. */
  readonly counts: KnownCounts | undefined
  readonly keys: Keys
  readonly ownParameters: OwnParametersReader
  /** Called once for each failing search parameter of a Project. */
  readonly warn: (parameter: OwnParameter) => void
  readonly logDamaged: (row: VersionRow) => void
  /** The number that leads the primary keys of a Project, by the row id of the Project. */
  readonly projectNumber: (connection: Connection, rowId: string) => Promise<number | undefined>
  readonly watchers: Watchers
  readonly statistics: KeyStatistics
  /** By `p ^ k`: units have one `k` in all Projects. */
  readonly seenCodes: Seen<bigint>
  /** Row ids of patients that were seen to hold accounts. */
  readonly holders: Seen<string>
  /** Called when the outbox has new rows; in a transaction, after the commit. */
  readonly announce: () => void
  /** Runs a part's follow-up after its row is written; in a transaction, at its end. */
  readonly written: (part: StatementPart, written: PartWritten) => Promise<void>
  readonly rules: ReadonlyMap<string, WriteRule>
  readonly parts: readonly WritePart[]
  /** Serializes equal conditional writes, and changes of one resource, within this process. */
  readonly turns: KeyedMutex
  readonly transact: Transact
  /** References to check at the end of the transaction; undefined outside of one. */
  readonly deferred: CheckedReference[] | undefined
}

interface Seen<Key> {
  has(key: Key): boolean
  set(key: Key, value: true): unknown
}

export interface WriteAttempt {
  readonly store: StoreContext
  readonly principal: Principal
  readonly interaction: 'create' | 'update'
  readonly id: string
  /** The id was generated, so no reference to it can exist. */
  readonly isNew: boolean
  /** Undefined for a create, and for a deleted resource. */
  readonly before: Resource | undefined
  /** The resource that the caller sent. */
  readonly sent: Resource
  /** The resource to write: elements that the caller may not set are as stored. */
  readonly kept: Resource
  /** Like `kept`, plus hidden elements that the caller sent, which signals intent to change them. */
  readonly meant: Resource
  /** A policy entry that names the type governs the write. */
  readonly isNamed: boolean
}

export interface Admission {
  readonly store: StoreContext
  readonly principal: Principal
  readonly project: number
  readonly before: Resource | undefined
  readonly after: Resource
  readonly own: OwnParameters | undefined
}

/** Write rule of one type, on every path. A write calls the first five functions in this order (`applyRule`). */
export interface WriteRule {
  readonly type: string
  /** Brings the resource into its stored form. */
  file?(resource: Resource): Resource
  /** Takes the resource that the caller sent. Errors: 400. */
  checkForm?(resource: Resource): void
  /** Takes the resource that the caller sent. Errors: 400. */
  checkParameters?(resource: Resource, own: OwnParameters | undefined): void
  /** Checks a member's changes; the service itself (no membership) is trusted. Errors: 400, 403. */
  check?(attempt: WriteAttempt): Promise<void>
  /** Returns the resource to store. Errors: 400, 403, 422. */
  admit?(admission: Admission): Promise<Resource>
  /** Values that are unique within a scope. */
  uniqueValues?(resource: Resource): readonly UniqueValue[]
  resolveAuthor?(principal: Principal): Reference
  /** Stores the resource in the Project with the same id. */
  readonly isProject?: boolean
  /** Checks a member's deletion of a resource that it can read, before the policy. Errors: 403. */
  checkRemoval?(store: StoreContext, principal: Principal, id: string): Promise<void>
  /** Checks a member's deletion after the policy allowed it. Errors: 400. */
  checkDeletion?(store: StoreContext, principal: Principal, id: string): Promise<void>
}

export interface UniqueValue {
  readonly scope: string
  readonly value: string
}

export interface VersionDraft {
  readonly store: StoreContext
  readonly principal: Principal
  readonly place: WritePlace
  readonly resource: Resource
  /** The live version, with its platform meta. */
  readonly stored: Resource | undefined
  /** The stored text after the time of the version. */
  readonly tail: string
}

/** Rows of a feature, written by the same statement as the version. */
export interface WritePart<Row = unknown> extends StatementPart<Row> {
  /** The types that have rows, or undefined for all. */
  readonly types: ReadonlySet<string> | undefined
  /** Returns undefined for a version without a row. */
  buildRow(draft: VersionDraft): Row | undefined
  /** The row passed to `committed` for a deletion of one of `types`; it is not written. */
  buildDeletionRow?(deleted: Version): Row
}

/** Returns a store whose statements are cancelled when `signal` aborts. Errors: its reason. */
export function withAbortSignal(
  store: StoreContext,
  signal: AbortSignal | undefined,
): StoreContext {
  const connection = signal && store.connection.until?.(signal)
  return connection === undefined ? store : { ...store, connection }
}

/** Project of a type for a Principal, and the prefix of the platform meta of visible rows. */
interface Scope {
  readonly project: number
  /** Empty: every row of the project. */
  readonly metaPrefix: string
  /** Looks ids up in every project: a super admin and not a registry type. */
  readonly everywhere: boolean
}

export function rowScope(principal: Principal, type: string): Scope {
  if (!REGISTRY_TYPES.has(type)) {
    const everywhere = principal.isSuperAdmin
    return { project: principal.project.number, metaPrefix: '', everywhere }
  }
  // Non-admin members read only their own User, which may belong to no Project.
  const isOwn = type === 'User' && !principal.isProjectAdmin
  const metaPrefix = principal.isSuperAdmin || isOwn ? '' : projectMetaPrefix(principal.project.id)
  return { project: SYSTEM_PROJECT_NUMBER, metaPrefix, everywhere: false }
}

function projectMetaPrefix(projectId: string): string {
  return `"project":${JSON.stringify(projectId)}`
}

/** The key of registry rows within one Project. */
export function projectKey(keys: Keys, type: string, projectId: string): bigint {
  return keys.token(keys.param(SYSTEM_PROJECT_NUMBER, type, '_project'), undefined, projectId)
}

const ID = /^[A-Za-z0-9\-.]{1,64}$/
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

export function isLegalId(id: string): boolean {
  return ID.test(id)
}

/** UUIDs are case-insensitive and stored in lower case. */
export function normalId(id: string): string {
  return isUuid(id) ? id.toLowerCase() : id
}

export function isUuid(text: string): boolean {
  return UUID.test(text)
}

type Transact = <T>(
  work: (inner: StoreContext) => Promise<T>,
  locks: readonly bigint[],
) => Promise<T>

/** Returns the newest visible version, a deletion included; undefined for unknown or invisible ids. */
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

/** Errors: 403, 400 for an unknown type. */
export function requireAllowed(
  principal: Principal,
  type: string,
  interaction: Parameters<typeof may>[2],
): void {
  if (!isResourceType(type)) throw badStructure('Unknown resource type')
  if (!may(principal, type, interaction)) throw forbidden(`no right to ${interaction} ${type}`)
}

interface IndexChoice {
  readonly parameters: OwnParameters | undefined
  readonly only?: ParameterSubset | undefined
}

export function indexRows(
  store: Pick<StoreContext, 'keys' | 'warn'>,
  project: number,
  resource: Resource,
  { parameters, only }: IndexChoice,
): IndexRows {
  const rows = deriveIndexes(store.keys, project, resource, { own: parameters, only })
  for (const parameter of rows.failed) store.warn(parameter)
  const holders = metaAccounts(resource.meta) ?? []
  const isFiled = REGISTRY_TYPES.has(resource.resourceType)
  if (holders.length === 0 && !isFiled) return rows
  const held = new Set(rows.keys)
  const accounts = holders
    .flatMap((account) => account.reference ?? [])
    .map((reference) => store.keys.compartment(project, reference))
    .filter((key) => !held.has(key))
  const own = isFiled
    ? [projectKey(store.keys, resource.resourceType, resource.meta?.project ?? '')]
    : []
  return {
    ...rows,
    nref: rows.nref + accounts.length,
    keys: [
      ...rows.keys.slice(0, rows.nref),
      ...new Set(accounts),
      ...rows.keys.slice(rows.nref),
      ...own,
    ],
  }
}

export function metaAccounts(meta: Meta | undefined): readonly Reference[] | undefined {
  return meta?.accounts ?? (meta?.account && [meta.account])
}
