/** The one door to resources: every read and write, as a Principal. */
import type { Principal } from '../access/principal.ts'
import type { Resource } from '../fhir/resource.ts'
import type { SearchRequest } from '../fhir/search.ts'

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
}

export interface WriteResult extends Version {
  readonly outcome: 'created' | 'updated' | 'unchanged'
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

export interface HistoryPage {
  readonly total: number
  readonly versions: readonly Version[]
}

export interface SearchPage {
  readonly versions: readonly Version[]
  readonly total: number | undefined
  /** Opaque cursor of the next page. */
  readonly next: string | undefined
}

export interface Repository {
  /** Errors: 403 not allowed, 400 bad reference, 409 unique violation. One SQL statement. */
  create(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult>
  /** Errors: 403, 404 unknown or not visible, 410 deleted. One SQL statement. */
  read(principal: Principal, type: string, id: string): Promise<Version>
  /** In the order asked; undefined where unknown, invisible or deleted. One SQL statement. */
  readMany(
    principal: Principal,
    references: readonly { readonly type: string; readonly id: string }[],
  ): Promise<readonly (Version | undefined)[]>
  readVersion(principal: Principal, type: string, id: string, ver: string): Promise<Version>
  history(
    principal: Principal,
    type: string,
    id: string,
    page: { readonly count: number; readonly offset: number; readonly since?: Date | undefined },
  ): Promise<HistoryPage>
  /** Errors: 403, 404, 412. An unchanged body writes nothing. */
  update(principal: Principal, resource: Resource, options?: WriteOptions): Promise<WriteResult>
  /** Reads, applies `change`, writes; a lost race re-reads and applies again up to 3 times. */
  patch(
    principal: Principal,
    type: string,
    id: string,
    change: (current: Resource) => Resource,
    options?: WriteOptions,
  ): Promise<WriteResult>
  /** Idempotent; the version returned is the deletion. */
  delete(principal: Principal, type: string, id: string, options?: WriteOptions): Promise<Version>
  /** One SQL statement; a second one only for `_total`. */
  search(principal: Principal, request: SearchRequest): Promise<SearchPage>
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
  /** `DELETE Type?query`; answers how many were deleted; more matches than `limit` is 412. */
  deleteConditional(principal: Principal, condition: SearchRequest, limit: number): Promise<number>
  /** All or nothing: everything `work` does through the Repository it is given. */
  transaction<T>(work: (repository: Repository) => Promise<T>): Promise<T>
}
