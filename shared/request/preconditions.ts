/** ETags and the If-* headers. https://hl7.org/fhir/R4/http.html#concurrency, RFC 9110 §13 */

import { badRequest, preconditionFailed } from '../errors.ts'
import type { Version, WriteOptions } from '../store/rows/version.ts'
import type { FhirRequest } from './request.ts'

export function etagOf(version: { readonly ver: number }): string {
  return `W/"${version.ver}"`
}

/** ETag and Last-Modified of a version. */
export function versionHeaders(version: Version): Record<string, string> {
  return { ETag: etagOf(version), 'Last-Modified': version.lastUpdated.toUTCString() }
}

/** True when the caller already has this version; If-None-Match wins over If-Modified-Since. */
export function isUnmodified(request: FhirRequest, version: Version): boolean {
  const noneMatch = request.headers['if-none-match']
  if (noneMatch !== undefined) return matchesTag(noneMatch, version.ver)
  const since = Date.parse(request.headers['if-modified-since'] ?? '')
  return !Number.isNaN(since) && wholeSeconds(version.lastUpdated.getTime()) <= wholeSeconds(since)
}

function wholeSeconds(ms: number): number {
  return Math.floor(ms / 1000)
}

function matchesTag(header: string, ver: number): boolean {
  return header.trim() === '*' || versionsOf(header).includes(ver)
}

/** Reads If-Match and If-None-Match of a write. Errors: 412 when no listed version can exist. */
export function writeOptions(request: Pick<FhirRequest, 'headers'>): WriteOptions {
  const noneMatch = request.headers['if-none-match']
  if (noneMatch !== undefined && noneMatch.trim() !== '*') {
    throw badRequest('If-None-Match of a write must be *')
  }
  return {
    ...ifMatchOption(request.headers['if-match']),
    ...(noneMatch === undefined ? {} : { onlyIfAbsent: true }),
  }
}

/** True when If-Match asks for any current version. */
export function demandsExistence(request: FhirRequest): boolean {
  return request.headers['if-match']?.trim() === '*'
}

function ifMatchOption(header: string | undefined): WriteOptions {
  if (header === undefined || header.trim() === '*') return {}
  const ifMatch = versionsOf(header)
  if (ifMatch.length === 0) throw preconditionFailed()
  return { ifMatch }
}

/** Versions named by a list of weak or strong entity tags; others are left out. */
function versionsOf(header: string): number[] {
  return header.split(',').flatMap((item) => {
    const digits = /^(?:W\/)?"?(\d{1,9})"?$/.exec(item.trim())?.[1]
    return digits === undefined ? [] : [Number(digits)]
  })
}
