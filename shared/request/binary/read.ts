/** Binary content as bytes, with ranges. https://hl7.org/fhir/R4/binary.html#rest */
import type { SignedVersion } from '../../access/credentials/signed-urls.ts'
import { type Principal, type ProjectContext, systemPrincipal } from '../../access/principal.ts'
import {
  badRequest,
  forbidden,
  gone,
  HttpError,
  issue,
  notFound,
  outcome,
  unauthorized,
} from '../../core/errors.ts'
import type { ByteRange } from '../../outbound/storage/storage.ts'
import { platformMeta, type Version } from '../../store/rows/version.ts'
import { acceptedRanges } from '../negotiate.ts'
import { emptyReply, isUnmodified, versionHeaders } from '../reply.ts'
import type { FhirReply, FhirRequest, Route } from '../request.ts'
import type { Services } from '../services.ts'
import {
  type BinaryContent,
  contentHeaders,
  openContent,
  readBinaryContent,
  readWhole,
} from './content.ts'

/**
 * Replies with the content of a Binary; undefined for other interactions, or if JSON is preferred, as by the SDK. For
 * content, Accept names its media type and is not parsed by `readPreferences`.
 */
export async function readContent(
  services: Services,
  principal: Principal,
  request: FhirRequest,
  route: Route,
): Promise<FhirReply | undefined> {
  const { repository } = services
  if (!wantsContent(request)) return undefined
  if (route.kind === 'read') {
    return contentReply(services, request, await repository.read(principal, route.type, route.id))
  }
  if (route.kind !== 'vread') return undefined
  const version = await repository.readVersion(principal, route.type, route.id, route.vid)
  return contentReply(services, request, version)
}

function wantsContent({ headers, query }: FhirRequest): boolean {
  if (query.get('_raw') === 'true') return true
  const isResource = acceptedRanges(headers.accept)[0] === 'application/fhir+json'
  return !isResource && !query.has('_format')
}

/** `ancestors`: pages that may frame it. Errors: 416. */
function contentReply(
  services: Services,
  request: FhirRequest,
  version: Version,
  ancestors: readonly string[] = [],
): FhirReply {
  // Ranges need a strong validator; the JSON form has a weak one.
  const headers = {
    ...versionHeaders(version),
    ETag: `"${version.ver}"`,
    'Accept-Ranges': 'bytes',
    Vary: 'Accept',
  }
  if (isUnmodified(request, version)) return emptyReply(304, headers)
  const content = readBinaryContent(version)
  const range = requestedRange(request, headers, content)
  if (range === 'unsatisfiable') throw unsatisfiable(content.size)
  const { start, end } = range ?? { start: 0, end: content.size - 1 }
  return {
    status: range === undefined ? 200 : 206,
    headers: {
      ...headers,
      ...contentHeaders(content.contentType, content.filename, ancestors),
      'Content-Length': String(end - start + 1),
      ...(range === undefined ? {} : { 'Content-Range': `bytes ${start}-${end}/${content.size}` }),
    },
    body: undefined,
    open: () => openContent(services, content, { start, end }),
  }
}

/** RFC 9110 §13.1.5: when If-Range differs, the whole content is sent. */
function requestedRange(
  { headers }: FhirRequest,
  validators: Readonly<Record<string, string>>,
  content: BinaryContent,
) {
  const condition = headers['if-range']?.trim()
  const { ETag, 'Last-Modified': modified } = validators
  if (condition !== undefined && condition !== ETag && condition !== modified) return undefined
  return readRange(headers.range, content.size)
}

function unsatisfiable(size: number): HttpError {
  const text = `The content has ${size} bytes`
  return new HttpError(416, outcome(undefined, issue('error', 'value', text)), {
    headers: { 'Content-Range': `bytes */${size}`, 'Accept-Ranges': 'bytes' },
  })
}

/** Larger content is not inlined as base64: on request, and when sent as `data`. */
const [ASKED_BYTES, DATA_BYTES] = [10 * 1024 * 1024, 5 * 1024 * 1024]

/** Adds content to the JSON text of a Binary if it was sent as `data` or requested (`_data=true`), up to the limits. */
export async function withData(
  services: Services,
  version: Version,
  text: string,
  isAsked: boolean,
): Promise<string> {
  const content = readBinaryContent(version)
  const most = isAsked ? ASKED_BYTES : content.isData ? DATA_BYTES : 0
  if (content.size === 0 || content.size > most) return text
  const data = (await readWhole(services, content, most)).toString('base64')
  return `${text.slice(0, -1)},"data":"${data}"}`
}

/** `GET /storage/{id}/{vid}`, with the rights of the member it was signed for. Errors: 401, 404, 410, 416. */
export async function signedContent(services: Services, request: FhirRequest): Promise<FhirReply> {
  const { repository, principals, config } = services
  const { id, vid, signed } = await verifySigned(services, request)
  if (signed.upload !== undefined) throw unauthorized(config.baseUrl)
  const project = await principals.project(signed.project)
  if (project === undefined) throw notFound()
  if (!(await mayStillRead(services, project, signed))) throw gone(ENDED)
  const version = await repository.readVersion(systemPrincipal(project), 'Binary', id, vid)
  // Another Project may have the same id.
  if (platformMeta(version).project !== project.id) throw notFound()
  return contentReply(services, request, version, config.frameAncestors)
}

/**
 * Returns the caller and the request of a signed upload, `PUT /storage/{id}/{vid}`: an update of the Binary at this
 * version, of its content alone. Errors: 400, 401, 404, 410.
 */
export async function signedUpload(
  services: Services,
  request: FhirRequest,
  address: string,
): Promise<{ readonly principal: Principal; readonly request: FhirRequest }> {
  const { principals, config } = services
  const { id, vid, signed } = await verifySigned(services, request)
  const { upload, membershipId = '', project } = signed
  if (upload === undefined) throw unauthorized(config.baseUrl)
  const session =
    upload.loginId === undefined
      ? await principals.forMembership(membershipId)
      : await principals.forLogin(upload.loginId)
  if (session === undefined || session.principal.membershipId !== membershipId) throw gone(ENDED)
  if (session.principal.allowsAddress?.(address) === false) throw forbidden()
  // Another Project may have the same id.
  if (session.principal.project.id !== project) throw notFound()
  if (request.headers['x-security-context'] !== undefined) {
    throw badRequest('A signed address takes content: X-Security-Context does not apply')
  }
  const headers = { ...request.headers, 'if-match': `W/"${vid}"` }
  const query = new URLSearchParams()
  return {
    principal: session.principal,
    request: { ...request, path: `Binary/${id}`, query, headers, isContent: true },
  }
}

/** Errors: 401, 410 for an address that has expired. */
async function verifySigned({ signedUrls, config }: Services, { path, query }: FhirRequest) {
  const [, id = '', vid = '', more] = path.split('/')
  const signed = more === undefined ? await signedUrls.verify(id, vid, query) : undefined
  if (signed === undefined) throw unauthorized(config.baseUrl)
  if (signed === 'expired') throw gone('The address has expired')
  return { id, vid, signed }
}

const ENDED =
  'The address has ended: the Binary was deleted, or the member it was given to may no longer read it'

/** Checks current rights; URLs signed for the service itself depend on the Binary alone. */
async function mayStillRead(
  { repository, principals }: Services,
  project: ProjectContext,
  { id, membershipId }: SignedVersion,
): Promise<boolean> {
  const reader =
    membershipId === undefined
      ? systemPrincipal(project)
      : (await principals.forMembership(membershipId))?.principal
  if (reader === undefined) return false
  const heads = await repository.readBinaries(reader, [id])
  return heads.get(id)?.projectId === project.id
}

/** Parses a range. Undefined is everything, also for invalid or multiple ranges, which servers may ignore. */
export function readRange(
  header: string | undefined,
  size: number,
): ByteRange | 'unsatisfiable' | undefined {
  const [, first, last] =
    /^\s*bytes\s*=\s*(\d{0,15})\s*-\s*(\d{0,15})\s*$/i.exec(header ?? '') ?? []
  if (first === undefined || last === undefined || (first === '' && last === '')) return undefined
  if (first === '') {
    const length = Math.min(Number(last), size)
    return length === 0 ? 'unsatisfiable' : { start: size - length, end: size - 1 }
  }
  const start = Number(first)
  if (last !== '' && Number(last) < start) return undefined
  if (start >= size) return 'unsatisfiable'
  return { start, end: last === '' ? size - 1 : Math.min(Number(last), size - 1) }
}
