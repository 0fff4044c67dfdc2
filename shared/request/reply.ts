/** Replies, the text of a version in them, and the ETags and If-* headers of versions. */
import { issuerUrl } from '../access/credentials/tokens.ts'
import type { Principal } from '../access/principal.ts'
import {
  badRequest,
  type HttpError,
  type OperationOutcome,
  preconditionFailed,
} from '../core/errors.ts'
import { parseJson } from '../fhir/json.ts'
import { present } from '../store/rows/rows.ts'
import { platformMeta, type Version, type WriteOptions } from '../store/rows/version.ts'
import { type Addressed, serviceUrl } from './project-scope.ts'
import type { FhirContext, FhirReply, FhirRequest } from './request.ts'
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

const TRACING_EXTENSION = 'https://medplum.com/fhir/StructureDefinition/tracing'
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

/** Unknown ids are left out. */
export function tracingExtension({ requestId, traceId }: Partial<TracingIds>) {
  const ids = [
    { url: 'requestId', valueId: requestId },
    { url: 'traceId', valueId: traceId },
  ]
  return { url: TRACING_EXTENSION, extension: ids.filter(({ valueId }) => valueId !== undefined) }
}

type TracingIds = Pick<FhirRequest, 'requestId' | 'traceId'>

/** Returns the address of a path below `fhir/R4/`, under the Project of the called address. */
export function absoluteUrl(services: Addressed, path: string): string {
  return `${serviceUrl(services)}fhir/R4/${path}`
}

/** Returns the prefix of the absolute addresses of a Project's resources. */
export function fhirBases({ config }: Addressed, projectId: string): readonly string[] {
  const { baseUrl } = config
  return [baseUrl, issuerUrl(baseUrl, projectId)].map((url) => `${url}fhir/R4/`)
}

/** Returns the text after its base, otherwise the text. */
export function withoutBase(bases: readonly string[], text: string): string {
  const base = bases.find((one) => text.startsWith(one))
  return base === undefined ? text : text.slice(base.length)
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
  if (noneMatch !== undefined) {
    return noneMatch.trim() === '*' || parseEtags(noneMatch).includes(version.ver)
  }
  const since = Date.parse(request.headers['if-modified-since'] ?? '')
  return !Number.isNaN(since) && wholeSeconds(version.lastUpdated.getTime()) <= wholeSeconds(since)
}

function wholeSeconds(ms: number): number {
  return Math.floor(ms / 1000)
}

/** Larger versions, in characters, block the event loop and are changed elsewhere. */
const MAIN_THREAD_LIMIT = 524_288

/** Reads If-Match and If-None-Match of a write. Errors: 412 when no listed version can exist. */
export function writeOptions(request: Pick<FhirRequest, 'headers' | 'offload'>): WriteOptions {
  const noneMatch = request.headers['if-none-match']
  if (noneMatch !== undefined && noneMatch.trim() !== '*') {
    throw badRequest('If-None-Match of a write must be *')
  }
  return {
    ...ifMatchOption(request.headers['if-match']),
    ...(noneMatch === undefined ? {} : { onlyIfAbsent: true }),
    ...(request.offload === undefined ? {} : { mainThreadLimit: MAIN_THREAD_LIMIT }),
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

/** Returns the JSON text of a Binary for this caller: signed URL, no `data`. */
export function signBinary(
  { signedUrls }: Services,
  { membershipId }: Principal,
  version: Version,
  text: string,
): string {
  const { data: _data, url: _url, ...shown } = parseJson(text) as Record<string, unknown>
  const { project = '' } = platformMeta(version)
  const url = signedUrls.sign({ project, id: version.id, ver: version.ver, membershipId })
  return JSON.stringify({ ...shown, url })
}

export function versionText(context: FhirContext, version: Version): string {
  const { services, principal, preferences } = context
  const text = present(version, principal, preferences.extended)
  return version.type === 'Binary' ? signBinary(services, principal, version, text) : text
}

/** False when there is nothing to sign. A substring search, much faster than a pattern that starts with a quote. */
export function namesBinary(text: string): boolean {
  return text.includes('Binary/')
}
