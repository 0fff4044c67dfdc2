/** Replies, and the ETags and If-* headers of versions. */
import {
  badRequest,
  type HttpError,
  type OperationOutcome,
  preconditionFailed,
} from '../core/errors.ts'
import { parseJson } from '../fhir/json.ts'
import type { Version, WriteOptions } from '../store/rows/version.ts'
import type { FhirReply, FhirRequest } from './request.ts'
import type { Services } from './services.ts'

export const FHIR_JSON = 'application/fhir+json; charset=utf-8'
/** https://html.spec.whatwg.org/multipage/server-sent-events.html */
export const EVENT_STREAM = 'text/event-stream; charset=utf-8'

export function jsonReply(
  status: number,
  body: unknown,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return textReply(status, JSON.stringify(body), headers)
}

export async function wholeBody({ body, open }: FhirReply): Promise<FhirReply['body']> {
  return open === undefined ? body : Buffer.concat(await (await open()).toArray())
}

export function textReply(
  status: number,
  body: string,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return { status, headers: { 'Content-Type': FHIR_JSON, ...headers }, body }
}

export function piecesReply(status: number, pieces: Iterable<string>): FhirReply {
  return { status, headers: { 'Content-Type': FHIR_JSON }, body: undefined, pieces }
}

export function emptyReply(
  status: number,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return { status, headers, body: undefined }
}

export function outcomeReply(
  status: number,
  outcome: OperationOutcome,
  headers: Readonly<Record<string, string>> = {},
): FhirReply {
  return jsonReply(status, outcome, headers)
}

/** Larger bodies are not indented: it takes one turn of the event loop. */
const LARGEST_INDENTED = 1_048_576

export function indented(reply: FhirReply): FhirReply {
  const { body } = reply
  if (typeof body !== 'string' || body.length > LARGEST_INDENTED) return reply
  return { ...reply, body: JSON.stringify(parseJson(body), null, 2) }
}

export function failureReply(error: HttpError): FhirReply {
  return jsonReply(error.status, error.outcome, error.headers)
}

const TRACING = 'https://medplum.com/fhir/StructureDefinition/tracing'
const OUTCOME_START = '{"resourceType":"OperationOutcome"'

/** Adds the request's ids to an outcome created by this server. */
export function withTracing(
  reply: FhirReply,
  request: Pick<FhirRequest, 'requestId' | 'traceId'>,
): FhirReply {
  const { body } = reply
  if (typeof body !== 'string' || !body.startsWith(OUTCOME_START)) return reply
  const extension = JSON.stringify(tracingExtension(request))
  return { ...reply, body: `${body.slice(0, -1)},"extension":[${extension}]}` }
}

export function tracingExtension({
  requestId,
  traceId,
}: Pick<FhirRequest, 'requestId' | 'traceId'>) {
  return {
    url: TRACING,
    extension: [
      { url: 'requestId', valueId: requestId },
      { url: 'traceId', valueId: traceId },
    ],
  }
}

export function absoluteUrl(services: Services, path: string): string {
  return `${services.config.baseUrl}fhir/R4/${path}`
}

export function formatEtag(version: { readonly ver: number }): string {
  return `W/"${version.ver}"`
}

export function versionHeaders(version: Version): Record<string, string> {
  return { ETag: formatEtag(version), 'Last-Modified': version.lastUpdated.toUTCString() }
}

/** True when the caller has this version; If-None-Match overrides If-Modified-Since. */
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
  return header.trim() === '*' || parseEtags(header).includes(ver)
}

/** Larger versions, in characters, block the event loop and are changed elsewhere. */
const MOST_HERE = 524_288

/** Reads If-Match and If-None-Match of a write. Errors: 412 when no listed version can exist. */
export function writeOptions(request: Pick<FhirRequest, 'headers' | 'offload'>): WriteOptions {
  const noneMatch = request.headers['if-none-match']
  if (noneMatch !== undefined && noneMatch.trim() !== '*') {
    throw badRequest('If-None-Match of a write must be *')
  }
  return {
    ...ifMatchOption(request.headers['if-match']),
    ...(noneMatch === undefined ? {} : { onlyIfAbsent: true }),
    ...(request.offload === undefined ? {} : { mostHere: MOST_HERE }),
  }
}

/** True when If-Match requires any current version. */
export function demandsExistence(request: FhirRequest): boolean {
  return request.headers['if-match']?.trim() === '*'
}

function ifMatchOption(header: string | undefined): WriteOptions {
  if (header === undefined || header.trim() === '*') return {}
  const ifMatch = parseEtags(header)
  if (ifMatch.length === 0) throw preconditionFailed()
  return { ifMatch }
}

/** Versions of weak or strong entity tags; others are ignored. */
function parseEtags(header: string): number[] {
  return header.split(',').flatMap((item) => {
    const digits = /^(?:W\/)?"?(\d{1,9})"?$/.exec(item.trim())?.[1]
    return digits === undefined ? [] : [Number(digits)]
  })
}
