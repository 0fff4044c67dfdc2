/** Binary content as bytes, with ranges. https://hl7.org/fhir/R4/binary.html#rest */
import type { SignedVersion } from '../../access/credentials/signed-urls.ts'
import { type ProjectContext, systemPrincipal } from '../../access/principal.ts'
import { gone, HttpError, issue, notFound, outcome, unauthorized } from '../../core/errors.ts'
import type { ByteRange } from '../../outbound/storage/storage.ts'
import { platformMeta, type Version } from '../../store/rows/version.ts'
import { emptyReply, isUnmodified, versionHeaders } from '../reply.ts'
import type { FhirReply, FhirRequest } from '../request.ts'
import type { Services } from '../services.ts'
import {
  type BinaryContent,
  contentHeaders,
  openContent,
  readBinaryContent,
  readWhole,
} from './content.ts'

/** True unless JSON is preferred, as the SDK does. */
export function wantsContent({ headers, query }: FhirRequest): boolean {
  if (query.get('_raw') === 'true') return true
  const isResource = /^\s*application\/fhir\+json/i.test(headers.accept ?? '')
  return !isResource && !query.has('_format')
}

/** `ancestors`: pages that may frame it. Errors: 416. */
export function contentReply(
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
  const { signedUrls, repository, principals, config } = services
  const [, id = '', vid = '', more] = request.path.split('/')
  const signed = more === undefined ? await signedUrls.verify(id, vid, request.query) : undefined
  if (signed === undefined) throw unauthorized(config.baseUrl)
  if (signed === 'expired') throw gone('The address has expired')
  const project = await principals.project(signed.project)
  if (project === undefined) throw notFound()
  if (!(await mayStillRead(services, project, signed))) throw gone(ENDED)
  const version = await repository.readVersion(systemPrincipal(project), 'Binary', id, vid)
  // Another Project may have the same id.
  if (platformMeta(version).project !== project.id) throw notFound()
  return contentReply(services, request, version, config.frameAncestors)
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
