/** The one door to resources: every read and write, as a Principal. */

import type { Grant } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import type { Connection } from '../database.ts'
import type { Resource } from '../fhir/resource.ts'
import type { SearchRequest } from '../fhir/search.ts'
import type { Events } from './events.ts'
import type { Exports } from './exports/exports.ts'
import type { ImportedConcepts } from './imported-concepts.ts'
import type { Judged } from './judge-rows.ts'
import type { Mail } from './mails.ts'
import type { Maintenance } from './maintenance.ts'
import type { MetaSummary } from './meta-summary.ts'
import type { Owed } from './owed.ts'
import type { PlannedCreates } from './planned.ts'
import type { CompartmentPage, CompartmentRequest } from './search/compartment.ts'
import type { Explanation } from './search/explain.ts'
import type { ReferenceSearch } from './search/per-reference.ts'
import type { SocketSubscriptions } from './socket-subscriptions.ts'
import type { Untold, UntoldPlace } from './untold.ts'

/** One stored version. `content` is the JSON text as stored; undefined marks a deletion. */
export interface Version {
  readonly type: string
  readonly id: string
  /** `meta.versionId` on the wire, as a number. */
  readonly ver: number
  readonly lastUpdated: Date
  readonly content: string | undefined
  /** Where `metaExtension` is spliced into `content` for `X-Medplum: extended`. */
  readonly metaAt: number
  /** JSON members (`"project":"…","author":{…}`), no leading comma. */
  readonly metaExtension: string
  /** How well it fits a search of words, from 0 to 1. */
  readonly score?: number
}

export interface WriteResult extends Version {
  readonly outcome: 'created' | 'updated' | 'unchanged'
}

/** The version that marks it. */
export interface Deletion extends Version {
  /** A ProjectMembership of which the deleted resource was the profile. */
  readonly membership: string | undefined
}

export interface WriteOptions {
  /** Allowed current versions (from `If-Match`); undefined: any. */
  readonly ifMatch?: readonly number[] | undefined
  /** `If-None-Match: *` on PUT. */
  readonly onlyIfAbsent?: boolean
  /** Keep the id of the resource on create (the service's own seeding, super admins). */
  readonly keepId?: boolean
  /** Unique values inside one scope, e.g. `User.email` → 409 on a second owner. */
  readonly unique?: readonly { readonly scope: string; readonly value: string }[]
}

export interface HistoryRequest {
  readonly count: number
  readonly offset: number
  readonly since?: Date | undefined
  /** Versions that were current at some point from `start` until before `end`. */
  readonly at?: { readonly start: Date; readonly end: Date } | undefined
  /** Newest first by default. */
  readonly ascending?: boolean
  readonly cursor?: string | undefined
  /** The history of one resource has its total anyway. */
  readonly total?: boolean
}

export interface HistoryPage {
  readonly total: number | undefined
  readonly versions: readonly Version[]
  /** Opaque cursor of the next page. */
  readonly next: string | undefined
}

/** Of the newest version of a Binary. */
export interface BinaryHead {
  readonly projectId: string
  readonly ver: number
}

export interface SearchPage {
  readonly versions: readonly Version[]
  readonly total: number | undefined
  /** Opaque cursor of the next page. */
  readonly next: string | undefined
  /** Of the page before, when this one was reached by a cursor. */
  readonly previous: string | undefined
  /** What the matches of the page led to; each once, and none of the matches. */
  readonly included: readonly Version[]
  /** More was to be included than a page may hold. */
  readonly isCut: boolean
}

export interface Repository {
  /** Errors: 403 not allowed, 400 bad reference, 409 unique violation. One SQL statement. */
  create(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult>
  /**
   * Adds a create under the id of the resource to those that a transaction is to write soon; false where only the
   * write itself can tell. Errors: as create.
   */
  planCreate(principal: Principal, resource: Resource, plans: PlannedCreates): Promise<boolean>
  /** Errors: 403, 404 unknown or not visible, 410 deleted. One SQL statement. */
  read(principal: Principal, type: string, id: string): Promise<Version>
  /** In the order asked; undefined where unknown, invisible or deleted. One SQL statement. */
  readMany(
    principal: Principal,
    references: readonly { readonly type: string; readonly id: string }[],
    signal?: AbortSignal,
  ): Promise<readonly (Version | undefined)[]>
  /** Those Binaries that exist and are in sight. Two SQL statements at most. */
  readBinaries(
    principal: Principal,
    ids: readonly string[],
  ): Promise<ReadonlyMap<string, BinaryHead>>
  readVersion(principal: Principal, type: string, id: string, ver: string): Promise<Version>
  /** Errors: 403, 404 for an id that was never used or is not in sight, 400 for a bad cursor. */
  history(
    principal: Principal,
    type: string,
    id: string,
    request: HistoryRequest,
  ): Promise<HistoryPage>
  /** Of a type, or of all types when undefined. One SQL statement; a second one for a total. */
  historyOf(
    principal: Principal,
    type: string | undefined,
    request: HistoryRequest,
  ): Promise<HistoryPage>
  /** Errors: 403, 404, 412. An unchanged body writes nothing. */
  update(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult>
  /** Reads, applies `change`, writes; a lost race re-reads and applies it again. */
  patch(
    principal: Principal,
    type: string,
    id: string,
    change: (current: Resource) => Resource | Promise<Resource>,
    options?: WriteOptions,
  ): Promise<WriteResult>
  /** What the policy of a Principal says of a resource, whatever of it is allowed. Errors: 404. */
  rulings(principal: Principal, type: string, id: string): Promise<Judged['rulings']>
  /** What rows `r` are asked for by a grant, without values; `true`: nothing. */
  criteriaSql(principal: Principal, type: string, grant: Grant): string
  /** Idempotent; the version returned is the deletion. */
  delete(principal: Principal, type: string, id: string, options?: WriteOptions): Promise<Deletion>
  /** One SQL statement; one more for `_total` and for each step of includes. */
  search(
    principal: Principal,
    request: SearchRequest,
    /** Cancels its statements in PostgreSQL. Errors: its reason. */
    signal?: AbortSignal,
  ): Promise<SearchPage>
  /** Tells whether a search would find a resource that is not stored. Costs no statement. */
  finder(principal: Principal, request: SearchRequest): (resource: Resource) => boolean
  /** The deletions that a search with `_deleted=true` asks for. One statement, one more for a total. */
  searchDeleted(principal: Principal, request: SearchRequest): Promise<SearchPage>
  /** How a search would be answered, by running it. Errors: as `search`. */
  explain(principal: Principal, request: SearchRequest): Promise<Explanation>
  /** The same over several types, one request each; what they share is taken from the first. */
  searchTypes(
    principal: Principal,
    requests: readonly SearchRequest[],
    signal?: AbortSignal,
  ): Promise<SearchPage>
  /** All types of a compartment in one order. Errors: 403, 404, 410. Two SQL statements. */
  compartment(principal: Principal, request: CompartmentRequest): Promise<CompartmentPage>
  /** If-None-Exist: 0 matches creates, 1 returns it as `unchanged`, more is 412. Racing calls never make twins. */
  createConditional(
    principal: Principal,
    resource: Resource,
    condition: SearchRequest,
    options?: WriteOptions,
  ): Promise<WriteResult>
  /** `PUT Type?query`. */
  updateConditional(
    principal: Principal,
    resource: Resource,
    condition: SearchRequest,
    options?: WriteOptions,
  ): Promise<WriteResult>
  /** `DELETE Type?query`; more matches than `limit` is 412. */
  deleteConditional(
    principal: Principal,
    condition: SearchRequest,
    limit: number,
  ): Promise<readonly Deletion[]>
  /** As `search` for each; a request that cannot be answered fails alone. One statement for 200. */
  searchMany(
    principal: Principal,
    requests: readonly SearchRequest[],
  ): Promise<readonly PromiseSettledResult<SearchPage>[]>
  /** A page for each of many references, in their order. One SQL statement; one more for each that is common. */
  searchPerReference(
    principal: Principal,
    search: ReferenceSearch,
    maxRows: number,
    signal?: AbortSignal,
  ): Promise<readonly SearchPage[]>
  /** How many there are for each of many references, in their order. One SQL statement. */
  countPerReference(
    principal: Principal,
    search: ReferenceSearch,
    signal?: AbortSignal,
  ): Promise<readonly number[]>
  /** What is in use in `meta` of a type, or of all. Errors: 403. */
  metaSummary(principal: Principal, type: string | undefined): Promise<MetaSummary>
  readonly concepts: ImportedConcepts
  readonly maintenance: Maintenance
  readonly exports: Exports
  readonly sockets: SocketSubscriptions
  readonly owed: Owed
  /** For the workers that tell Subscriptions of changes. */
  readonly events: Events
  /**
   * All or nothing: everything `work` does through the Repository it is given. What PostgreSQL cannot
   * serialise is run again from the start, up to three times, then 409.
   */
  transaction<T>(work: (repository: Transaction) => Promise<T>, guard?: Guard): Promise<T>
  /** For work that runs side by side: rows that are read by id, or deleted, in one turn are one statement. */
  sideBySide(): Repository
}

/** Conditions that no other conditional write of equal criteria may decide on meanwhile. */
export interface Guard {
  readonly principal: Principal
  readonly conditions: readonly SearchRequest[]
  /** All reads of the transaction see one state; else each statement sees what is there by then. */
  readonly oneState: boolean
}

export interface Transaction extends Repository {
  /** Sent by a worker once all is committed. One SQL statement. */
  addMail(projectId: string, mail: Mail): Promise<string>
  /** Successes of a Subscription that are told of once all is committed. Two SQL statements. */
  takeUntold(place: UntoldPlace): Promise<Untold | undefined>
  /** Statements about what is no resource, such as the jobs that resources tell of; they commit with the rest. */
  beside<T>(work: (connection: Connection) => Promise<T>): Promise<T>
  /** False when one was not written: the transaction must not be committed. Errors: for an id that is taken. */
  createPlanned(principal: Principal, plans: PlannedCreates): Promise<boolean>
  /** Rows that are read by id later on are asked for now, in the same round trip as what comes next. */
  readAhead(
    principal: Principal,
    references: readonly { readonly type: string; readonly id: string }[],
  ): void
  /**
   * Runs pieces of work side by side, each through a Repository of its own: their reads by id are one
   * statement, their inserts one, their updates one, their deletions one. Throws the failure of the
   * first that failed, in their order, as `failed` makes it; 400 for references that do not resolve.
   */
  together<T>(
    pieces: readonly ((repository: Repository) => Promise<T>)[],
    failed: (index: number, error: unknown) => unknown,
  ): Promise<T[]>
}
