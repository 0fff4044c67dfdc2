/** Stored versions, and the options and results of reading and writing them. */

/** One stored version. `content` is the JSON text as stored; undefined marks a deletion. */
export interface Version {
  readonly type: string
  readonly id: string
  /** `meta.versionId` on the wire, as a number. */
  readonly ver: number
  readonly lastUpdated: Date
  readonly content: string | undefined
  /** Where `metaExtension` is inserted into `content` for `X-Medplum: extended`. */
  readonly metaAt: number
  readonly metaExtension: string
  /** Rank in a full-text search, from 0 to 1. */
  readonly score?: number
}

export interface WriteResult extends Version {
  readonly outcome: 'created' | 'updated' | 'unchanged'
}

/** The tombstone version. */
export interface Deletion extends Version {
  /** ProjectMembership whose profile was deleted. */
  readonly membership: string | undefined
}

export interface WriteOptions {
  /** Allowed current versions (from `If-Match`); undefined: any. */
  readonly ifMatch?: readonly number[] | undefined
  /** `If-Match: *` of a conditional update. */
  readonly mustExist?: boolean
  /** Throws if the stored version must not be changed. */
  readonly check?: ((live: Version | undefined) => Promise<void>) | undefined
  /** `If-None-Match: *` on PUT. */
  readonly onlyIfAbsent?: boolean
  /** Characters; 413 above it, unless the resource was larger before. */
  readonly largest?: number
  /** Characters; `OffloadRequired` above it, before any work. */
  readonly mainThreadLimit?: number
  readonly keepId?: boolean
  /** A search has just found no match for the conditional create. */
  readonly isMissing?: boolean
  /** Unique values inside one scope, e.g. `User.email` → 409 on a second owner. */
  readonly unique?: readonly { readonly scope: string; readonly value: string }[]
}

export interface HistoryRequest {
  readonly count: number
  readonly offset: number
  readonly since?: Date | undefined
  /** From `start` until before `end`. */
  readonly at?: { readonly start: Date; readonly end: Date } | undefined
  readonly ascending?: boolean
  readonly cursor?: string | undefined
  /** The history of one resource always has its total. */
  readonly total?: boolean
}

export interface HistoryPage {
  readonly total: number | undefined
  readonly versions: readonly Version[]
  /** Opaque cursors; the first page by cursors has no previous one. */
  readonly next: string | undefined
  readonly previous?: string | undefined
}

export interface BinaryHead {
  readonly projectId: string
  readonly ver: number
}

export interface SearchPage {
  readonly versions: readonly Version[]
  readonly total: number | undefined
  readonly isTotalEstimated?: boolean
  readonly next: string | undefined
  /** The cursor of the page before, when this one was reached by a cursor. */
  readonly previous: string | undefined
  /** Without duplicates and matches. */
  readonly included: readonly Version[]
  /** A page could not hold all includes. */
  readonly isTruncated: boolean
}

interface PlatformMeta {
  readonly project?: string
  readonly author?: { readonly reference?: string }
}

export function platformMeta(version: Pick<Version, 'metaExtension'>): PlatformMeta {
  return JSON.parse(`{${version.metaExtension}}`) as PlatformMeta
}
