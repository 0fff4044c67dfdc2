/**
 * Where the content of a Binary is, and the headers it is answered with. Uploaded content lies in the storage, and
 * the `url` of the stored resource says where: `storage:<key>?size=…&sha256=…&filename=…&form=…`; no caller sees
 * that, but a signed address in its place. Bot code made by `$deploy` lies in the row as `data`, so that a worker needs
 * no shared disk.
 */
import { createHash, type Hash, randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import type { Config } from '../../core/config/config.ts'
import { badStructure, HttpError, tooLarge, unavailable } from '../../core/errors.ts'
import { isBase64 } from '../../fhir/primitives.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import type { ByteRange, Storage } from '../../storage/storage.ts'
import { readChunks } from '../../storage/storage.ts'
import type { Version } from '../../store/rows/version.ts'
import {
  forgetContent,
  forgetLeasedContent,
  keepContent,
  keepLeasedContent,
  leaseContents,
  noteContent,
} from '../../store/write/stored-contents.ts'
import type { Services } from '../services.ts'

export interface BinaryContent {
  readonly contentType: string
  readonly filename: string | undefined
  /** In bytes. */
  readonly size: number
  readonly place: { readonly key: string } | { readonly bytes: Buffer }
  /** It came as `data` of a resource. */
  readonly isData: boolean
}

/** The content of a stored Binary; empty when it was created without any. */
export function readBinaryContent(version: Version): BinaryContent {
  // A stored version is a resource.
  const { contentType, data, url } = JSON.parse(version.content ?? '{}') as Record<string, unknown>
  const type = String(contentType)
  if (typeof url === 'string' && url.startsWith('storage:')) {
    const { pathname: key, searchParams } = new URL(url)
    const filename = searchParams.get('filename') ?? undefined
    const size = Number(searchParams.get('size'))
    const isData = searchParams.get('form') === DATA
    return { contentType: type, filename, size, place: { key }, isData }
  }
  const bytes = Buffer.from(typeof data === 'string' ? data : '', 'base64')
  const size = bytes.length
  return { contentType: type, filename: undefined, size, place: { bytes }, isData: false }
}

/** `form` in the url of content that came as `data`. */
const DATA = 'data'

/** Errors: 404 when the storage has lost it. */
export async function openContent(
  { storage, log }: Services,
  { place, size }: BinaryContent,
  range: ByteRange = { start: 0, end: size - 1 },
): Promise<Readable> {
  if (size === 0) return Readable.from([])
  if ('bytes' in place) {
    return Readable.from([place.bytes.subarray(range.start, range.end + 1)], { objectMode: false })
  }
  try {
    return await storage.get(place.key, range)
  } catch (error) {
    const { key } = place
    if (error instanceof HttpError)
      log.warn({ key }, 'The storage has lost the content of a Binary')
    throw error
  }
}

/** For content that is small by its nature. Errors: 413 above `maxBytes`. */
export async function readWhole(
  services: Services,
  content: BinaryContent,
  maxBytes: number,
): Promise<Buffer> {
  if (content.size > maxBytes) throw tooLarge()
  return Buffer.concat(await (await openContent(services, content)).toArray())
}

/** The content that a caller sends: bytes at hand, or as they arrive. */
export type Upload = Buffer | Readable

/**
 * Stores an upload; the answer is the `url` of the stored resource. Whoever fails to store the
 * resource calls `removeContent`. Errors: 413 beyond MAX_UPLOAD_BYTES, 400 when it breaks off,
 * 503 when the storage is full or away.
 */
export async function storeContent(
  { storage, config, database }: Services,
  projectId: string,
  upload: Upload,
  { filename, isData }: { readonly filename: string | undefined; readonly isData: boolean },
): Promise<string> {
  const id = randomUUID()
  const key = `binary/${projectId}/${id.slice(0, 2)}/${id}`
  const meter = { bytes: 0, digest: createHash('sha256') }
  await noteContent(database, storageDigest(config), key)
  await storage.put(key, metered(upload, config.maxUploadBytes, meter)).catch((error: unknown) => {
    throw error instanceof HttpError ? error : unavailable('The storage', error)
  })
  const query = new URLSearchParams({
    size: String(meter.bytes),
    sha256: meter.digest.digest('base64url'),
    ...(filename === undefined ? {} : { filename }),
    ...(isData ? { form: DATA } : {}),
  })
  return `storage:${key}?${query}`
}

/** The resource that names what `storeContent` answered is stored. What fails here is made up for by the sweep. */
export async function settleContent({ database, log }: Services, url: string): Promise<void> {
  await keepContent(database, new URL(url).pathname).catch((error: Error) => {
    log.debug({ reason: error.message }, 'Content stays in doubt')
  })
}

/** True when both say the same of the same bytes. */
export function isSameContent(url: string, other: unknown): boolean {
  return (
    typeof other === 'string' &&
    URL.canParse(other) &&
    new URL(other).search === new URL(url).search
  )
}

/** Takes back what `storeContent` answered; the resource was not stored. */
export async function removeContent(services: Services, url: string): Promise<void> {
  await discard(services, new URL(url).pathname)
}

/**
 * The same services for work that may be taken back as a whole: `undo` removes what was stored by it.
 */
export function undoable(services: Services): {
  readonly services: Services
  undo(): Promise<void>
} {
  const { storage } = services
  const keys: string[] = []
  const put: Storage['put'] = (key, source) => {
    keys.push(key)
    return storage.put(key, source)
  }
  return {
    services: { ...services, storage: { ...storage, put } },
    async undo() {
      await Promise.all(keys.splice(0).map((key) => discard(services, key)))
    },
  }
}

async function discard({ storage, database, log }: Services, key: string): Promise<void> {
  try {
    await storage.delete(key)
    await forgetContent(database, key)
  } catch (error) {
    // The sweep finds it in a day.
    log.debug({ key, reason: (error as Error).message }, 'Content without a resource was left')
  }
}

async function* metered(
  upload: Upload,
  maxBytes: number,
  meter: { bytes: number; digest: Hash },
): AsyncGenerator<Uint8Array> {
  // A request that is destroyed cannot be answered any more, so the stream is not.
  const chunks = Buffer.isBuffer(upload) ? [upload] : readChunks(upload)
  const iterator = asUpload(chunks)
  for await (const chunk of iterator) {
    meter.bytes += chunk.length
    if (meter.bytes > maxBytes) throw tooLarge()
    meter.digest.update(chunk)
    yield chunk
  }
}

/** A caller that has gone is not a failure of ours. */
async function* asUpload(
  chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  try {
    yield* chunks
  } catch (error) {
    throw error instanceof HttpError ? error : badStructure('Content is incomplete')
  }
}

/** Returns a Binary without its content. */
export function withoutContent({ data: _data, url: _url, ...rest }: Resource): Resource {
  return rest
}

/** Stored elements a caller neither sees nor sets. */
export function withStoredContent(current: Resource, next: Resource): Resource {
  return {
    ...withoutContent(next),
    ...(current.url === undefined ? {} : { url: current.url }),
    ...(current.data === undefined ? {} : { data: current.data }),
  }
}

/** Returns the bytes of base64 text, with or without white space; undefined for other text. */
export function decodeBase64(text: string): Buffer | undefined {
  return isBase64(text) || text.trim() === '' ? Buffer.from(text, 'base64') : undefined
}

export function isBinary(body: unknown): body is Resource {
  return isObject(body) && body.resourceType === 'Binary'
}

// Removes content from the storage that no resource names any more.

const AT_ONCE = 100

/** The digest that identifies a storage; databases outlive storages. */
export function storageDigest({ storageUrl }: Pick<Config, 'storageUrl'>): Buffer {
  return createHash('sha256').update(storageUrl).digest().subarray(0, 16)
}

/** Removes due contents, the oldest hundred; returns how many. Any number of workers may call it. */
export async function sweepContents({ config, database, storage }: Services): Promise<number> {
  const due = await leaseContents(database, storageDigest(config), AT_ONCE)
  for (const content of due) {
    if (content.isUsed) await keepLeasedContent(database, content)
    else {
      await storage.delete(content.key)
      await forgetLeasedContent(database, content)
    }
  }
  return due.filter(({ isUsed }) => !isUsed).length
}

/** Anything but a media type must not reach a header. */
export function safeContentType(contentType: unknown): string {
  return typeof contentType === 'string' &&
    /^[\w.+-]+\/[\w.+-]+(\s*;[\x20-\x7e]*)?$/.test(contentType)
    ? contentType
    : 'application/octet-stream'
}

/** Types that browsers show without running anything in them. */
const SHOWN =
  /^(image\/(png|jpeg|gif|webp|avif|bmp|tiff)|audio\/[\w.+-]+|video\/[\w.+-]+|text\/(plain|csv)|application\/(pdf|json|fhir\+json|dicom))\s*(;|$)/i

/** A page or an SVG gets an origin of its own, without scripts, should a browser show it at all. */
const SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'"

/** Viewers of browsers do not work in a sandbox; what they show runs nothing. */
const framedBy = (ancestors: readonly string[]) => `frame-ancestors ${ancestors.join(' ')}`

export function contentHeaders(
  contentType: string,
  filename: string | undefined,
  ancestors: readonly string[] = [],
): Record<string, string> {
  const type = safeContentType(contentType)
  const disposition = SHOWN.test(type) ? 'inline' : 'attachment'
  return {
    'Content-Type': type,
    // Browsers look at X-Frame-Options only where this says nothing of frames.
    'Content-Security-Policy':
      disposition === 'inline' && ancestors.length > 0 ? framedBy(ancestors) : SANDBOX,
    ...(filename === undefined && disposition === 'inline'
      ? {}
      : { 'Content-Disposition': disposition + filenameParameters(filename) }),
  }
}

/** A quoted ASCII form for old readers, the whole name for all others (RFC 6266 §4.3, RFC 8187). */
function filenameParameters(filename: string | undefined): string {
  if (filename === undefined) return ''
  const plain = filename.replace(/[^\x20-\x7e]|["\\%]/g, '_')
  const encoded = encodeURIComponent(filename.toWellFormed()).replace(
    /['()*]/g,
    (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`,
  )
  return `; filename="${plain}"; filename*=UTF-8''${encoded}`
}

const LONGEST_FILENAME = 255

/** The last part of a path, without control characters; undefined when nothing is left. */
export function cleanFilename(name: string | null): string | undefined {
  const last = (name ?? '').split(/[\\/]/).at(-1) ?? ''
  const clean = last
    .replace(/\p{Cc}/gu, '')
    .trim()
    .slice(0, LONGEST_FILENAME)
    .toWellFormed()
  return clean === '' ? undefined : clean
}
