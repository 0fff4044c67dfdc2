/** Stored versions, and the options and results of reading and writing them. */

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
  /** The most characters that a change may make of a resource: 413 above it, unless there were more before. */
  readonly largest?: number
  /** The most characters of a stored version that is changed here: `TooMuchHere` above it, before anything is done. */
  readonly mostHere?: number
  /** Keep the id of the resource on create (the service's own seeding, super admins). */
  readonly keepId?: boolean
  /** A search of the caller has just found no match of a conditional create: only the one under the lock is left. */
  readonly isMissing?: boolean
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
  /** Opaque cursors of the pages around; the first page by cursors has none before it. */
  readonly next: string | undefined
  readonly previous?: string | undefined
}

/** The head of the newest version of a Binary. */
export interface BinaryHead {
  readonly projectId: string
  readonly ver: number
}

export interface SearchPage {
  readonly versions: readonly Version[]
  readonly total: number | undefined
  /** Opaque cursor of the next page. */
  readonly next: string | undefined
  /** The cursor of the page before, when this one was reached by a cursor. */
  readonly previous: string | undefined
  /** The includes of the page; each once, and none of the matches. */
  readonly included: readonly Version[]
  /** More was to be included than a page may hold. */
  readonly isTruncated: boolean
}

/** The elements of `meta` that only the platform sets. */
interface PlatformMeta {
  readonly project?: string
  readonly author?: { readonly reference?: string }
}

export function platformMeta(version: Pick<Version, 'metaExtension'>): PlatformMeta {
  // metaExtension is the service's own text, written by the repository.
  return JSON.parse(`{${version.metaExtension}}`) as PlatformMeta
}
