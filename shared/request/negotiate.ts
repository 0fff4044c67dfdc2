/** Content negotiation: Accept, `_format`, `_pretty`, Prefer, content types. */

import { isUtf8 } from 'node:buffer'
import type { IncomingHttpHeaders } from 'node:http'
import Negotiator from 'negotiator'
import {
  badRequest,
  notAcceptable,
  notSupported,
  tooCostly,
  unsupportedMediaType,
} from '../core/errors.ts'
import { singleValue } from '../core/query.ts'
import { parseBody } from '../fhir/json.ts'
import { FHIR_JSON } from './reply.ts'
import type { FhirRequest, Preferences, Returned, Route } from './request.ts'

/** Errors: 406 when no JSON format is acceptable. https://hl7.org/fhir/R4/http.html#mime-type */
export function readPreferences(request: FhirRequest): Preferences {
  const { headers, query } = request
  const prefer = readPrefer(headers.prefer)
  return {
    contentType: contentTypeFor(headers.accept, singleValue(query, '_format')),
    pretty: readPretty(query),
    returned: prefer.returned ?? 'representation',
    applied: appliedTo(request, prefer.applied).join(', '),
    handling: prefer.handling,
    respondAsync: prefer.respondAsync,
    extended: headers['x-medplum'] === 'extended',
  }
}

/** `return` does not apply to reads: https://www.rfc-editor.org/rfc/rfc7240#section-4.2 */
function appliedTo({ method }: FhirRequest, wanted: readonly string[]): readonly string[] {
  return method === 'GET' ? wanted.filter((name) => !name.startsWith('return=')) : wanted
}

/** Errors: 400 unless true or false. */
function readPretty(query: URLSearchParams): boolean {
  const value = singleValue(query, '_pretty') ?? 'false'
  if (value === 'true' || value === 'false') return value === 'true'
  throw badRequest('_pretty must be true or false', '_pretty')
}

export function wantsPretty({ query }: FhirRequest): boolean {
  return query.get('_pretty') === 'true'
}

/**
 * Returns the media ranges of Accept without parameters and those of quality 0, best first; any range without a header.
 * https://www.rfc-editor.org/rfc/rfc9110#section-12.5.1
 */
export function acceptedRanges(accept: string | undefined): readonly string[] {
  return negotiator({ accept })
    .mediaTypes()
    .map((range) => range.toLowerCase())
}

/** True when Accept names one of these types, or a wildcard in it includes the first. */
export function acceptsType(accept: string | undefined, types: readonly [string, ...string[]]) {
  const isIncluded = negotiator({ accept }).mediaType([types[0]]) !== undefined
  return isIncluded || acceptedRanges(accept).some((range) => types.includes(range))
}

/** True when gzip is accepted, and Accept-Encoding present. */
export function takesGzip(header: string | undefined): boolean {
  return negotiator({ 'accept-encoding': header }).encoding(['gzip']) !== undefined
}

/** Returns the languages of an Accept-Language header, best first; `*` among them. */
export function acceptedLanguages(header: string): readonly string[] {
  return negotiator({ 'accept-language': header }).languages()
}

function negotiator(headers: IncomingHttpHeaders): Negotiator {
  return new Negotiator({ headers })
}

const FORMATS = new Set(['json', 'application/json', 'application/fhir+json'])
const JSON_TYPES = new Set(['application/json', 'application/fhir+json', 'text/json'])

function contentTypeFor(accept: string | undefined, format: string | undefined): string {
  if (format !== undefined) {
    // An unencoded plus sign arrives as a space.
    if (!FORMATS.has(format.replace(' ', '+')))
      throw notAcceptable('Unsupported _format; use json', '_format')
    return FHIR_JSON
  }
  if (accept === undefined || accept.trim() === '') return FHIR_JSON
  const served = accept.split(',').filter((range) => !isOfOtherVersion(range))
  if (served.length === 0) throw notAcceptable('Only FHIR 4.0 is available')
  const ranges = acceptedRanges(served.join(','))
  if (ranges.length > 0 && ranges.every((range) => range === 'application/json')) {
    return 'application/json; charset=utf-8'
  }
  if (ranges.some(isJsonRange)) return FHIR_JSON
  throw notAcceptable('Only JSON is available: application/fhir+json')
}

const OTHER_VERSION = /;\s*fhirVersion\s*=(?!\s*"?4\.0(?:\.\d+)?"?\s*(?:;|$))/i

/** True for a media type of another version of FHIR. https://hl7.org/fhir/R4/http.html#version-parameter */
function isOfOtherVersion(type: string): boolean {
  return OTHER_VERSION.test(type)
}

function isJsonRange(range: string): boolean {
  return range === '*/*' || range === 'application/*' || JSON_TYPES.has(range)
}

export interface Prefer {
  readonly returned: Returned | undefined
  readonly handling: 'strict' | 'lenient'
  readonly respondAsync: boolean
  readonly separateExportStatus: boolean
  /** Undefined without `wait`. */
  readonly waitMs: number | undefined
  /** Without `respond-async` and `wait`, which depend on the request. */
  readonly applied: readonly string[]
}

const NO_PREFERENCE: Prefer = {
  returned: undefined,
  handling: 'strict',
  respondAsync: false,
  separateExportStatus: false,
  waitMs: undefined,
  applied: [],
}

/** https://www.rfc-editor.org/rfc/rfc7240#section-2: without parameters; the first of a name wins. */
function parsePrefer(header: string): ReadonlyMap<string, string> {
  const wanted = new Map<string, string>()
  for (const part of header.split(',')) {
    const [name = '', value = ''] = (part.split(';')[0] ?? '').split('=').map((text) => text.trim())
    const key = name.toLowerCase()
    if (!wanted.has(key)) wanted.set(key, value.replace(/^"(.*)"$/, '$1'))
  }
  return wanted
}

/** Ignores unknown preferences. */
export function readPrefer(header: string | undefined): Prefer {
  if (header === undefined) return NO_PREFERENCE
  const wanted = parsePrefer(header)
  const returned = (['representation', 'minimal', 'OperationOutcome'] as const).find(
    (value) => value === wanted.get('return'),
  )
  const handling = wanted.get('handling')
  const wait = wanted.get('wait') ?? ''
  const isHandling = handling === 'strict' || handling === 'lenient'
  return {
    returned,
    handling: handling === 'lenient' ? 'lenient' : 'strict',
    respondAsync: wanted.has('respond-async'),
    separateExportStatus: wanted.has('separate-export-status'),
    waitMs: /^\d{1,9}$/.test(wait) ? Number(wait) * 1000 : undefined,
    applied: [
      ...(returned === undefined ? [] : [`return=${returned}`]),
      ...(isHandling ? [`handling=${handling}`] : []),
    ],
  }
}

/** Returns a Prefer header without one preference; empty without others. */
export function omitPreference(header: string, omitted: string): string {
  return [...parsePrefer(header)]
    .filter(([name]) => name !== omitted && name !== '')
    .map(([name, value]) => (value === '' ? name : `${name}="${value}"`))
    .join(', ')
}

/** True when `handling=strict` is explicit, not the default. */
export function wantsStrict(prefer: string | undefined): boolean {
  return readPrefer(prefer).applied.includes('handling=strict')
}

const JSON_SUFFIX = /^application\/[a-z0-9.+-]+\+json$/

/** Errors: 415 for another type or charset, 400 for invalid JSON. */
export function readJson(request: FhirRequest): unknown {
  requireType(request, (type) => JSON_TYPES.has(type) || JSON_SUFFIX.test(type))
  return parseBody(request.body ?? '')
}

/** True for the type of a JSON Patch, of JSON, and without a type. */
export function isPatchType(contentType: string | undefined): boolean {
  const type = mediaType(contentType)
  return type === 'application/json-patch+json' || JSON_TYPES.has(type) || type === ''
}

/** Errors: 415, 400. */
export function readPatchBody(request: FhirRequest): unknown {
  requireType(request, isPatchType)
  if (request.body === undefined || request.body.length === 0) throw badRequest('Empty patch body')
  return parseBody(request.body)
}

/** Parses the body of `_search`: a form, or a JSON object of name → string or array. Errors: 415, 400. */
export function readForm(request: FhirRequest): URLSearchParams {
  const type = mediaType(request.headers['content-type'])
  const { body } = request
  if (body === undefined || body.length === 0) return new URLSearchParams()
  if (JSON_TYPES.has(type)) return jsonForm(parseBody(body))
  requireType(request, (name) => name === 'application/x-www-form-urlencoded')
  if (typeof body !== 'string' && !isUtf8(body)) throw badRequest(NOT_UTF8)
  return readQuery(body.toString())
}

const NOT_UTF8 = 'The query is not valid UTF-8'

const MAX_PARAMETERS = 1000

function requireFew(parameters: number): void {
  if (parameters > MAX_PARAMETERS) throw tooCostly(`More than ${MAX_PARAMETERS} parameters`)
}

/** Errors: 400 for too many parameters and for escaped bytes that are not UTF-8, which would be misread. */
export function readQuery(text: string): URLSearchParams {
  if (text === '') return new URLSearchParams()
  requireFew(text.split('&', MAX_PARAMETERS + 1).length)
  const query = new URLSearchParams(text)
  if (!text.includes('%')) return query
  const isDoubtful = [...query].some((pair) => pair.some((part) => part.includes('\ufffd')))
  if (isDoubtful) for (const [escapes] of text.matchAll(/(?:%[0-9a-f]{2})+/gi)) checkUtf8(escapes)
  return query
}

function checkUtf8(escapes: string): void {
  try {
    decodeURIComponent(escapes)
  } catch {
    throw badRequest(NOT_UTF8)
  }
}

function jsonForm(body: unknown): URLSearchParams {
  const form = new URLSearchParams()
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw badRequest('Search parameters must be a JSON object')
  }
  for (const [name, value] of Object.entries(body)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      requireFew(form.size + 1)
      if (typeof item === 'object') throw badRequest(`Invalid value of search parameter ${name}`)
      form.append(name, String(item))
    }
  }
  return form
}

/** Returns the type of a Content-Type without parameters, in lower case. */
export function mediaType(contentType: string | undefined): string {
  return (contentType?.split(';')[0] ?? '').trim().toLowerCase()
}

function requireType(request: FhirRequest, isAllowed: (type: string) => boolean): void {
  const header = request.headers['content-type']
  if (header === undefined || header.trim() === '') return
  if (!isAllowed(mediaType(header)) || isOfOtherVersion(header)) throw unsupportedMediaType()
  const charset = /;\s*charset="?([^";]+)"?/i.exec(header)?.[1]?.trim().toLowerCase()
  if (charset !== undefined && charset !== 'utf-8' && charset !== 'utf8') {
    throw unsupportedMediaType()
  }
}

/** Header → interactions that support it. https://hl7.org/fhir/R4/http.html#concurrency */
const KEPT: readonly (readonly [header: string, kinds: ReadonlySet<Route['kind']>])[] = [
  [
    'If-Match',
    new Set(['update', 'patch', 'delete', 'conditional-update', 'conditional-patch'] as const),
  ],
  ['If-None-Match', new Set(['update', 'conditional-update'] as const)],
  ['If-None-Exist', new Set(['create'] as const)],
  // FHIR locks by version; a time that is ignored would lose an update.
  ['If-Unmodified-Since', new Set<never>()],
]

/** `pathOf` locates a header in a bundle. Errors: 400 for a condition that a change does not support. */
export function requireKept(
  method: string,
  route: Route,
  headers: Readonly<Record<string, string | undefined>>,
  pathOf?: (header: string) => string,
): void {
  if (method === 'GET' || method === 'HEAD') return
  if (route.kind === 'operation' && route.operation.acts) return
  for (const [header, kinds] of KEPT) {
    if (headers[header.toLowerCase()] === undefined || kinds.has(route.kind)) continue
    throw notSupported(`${header} does not apply to this interaction`, pathOf?.(header))
  }
}
