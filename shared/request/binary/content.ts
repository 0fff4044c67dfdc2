/**
 * Location and response headers of Binary content. Stored: `url` as
 * `storage:<key>?size=…&sha256=…&filename=…&form=…`, never shown; or `data`, for bot code from `$deploy`, so that
 * workers need no shared disk.
 */
import { createHash, type Hash, hash, randomUUID } from 'node:crypto'
import { Readable } from 'node:stream'
import { create as contentDisposition } from 'content-disposition'
import type { Config } from '../../core/config/config.ts'
import { badStructure, HttpError, tooLarge, unavailable } from '../../core/errors.ts'
import { isBase64 } from '../../fhir/primitives.ts'
import { isObject, type Resource } from '../../fhir/resource.ts'
import {
  type ByteRange,
  readChunks,
  readWholeStored,
  type Storage,
} from '../../outbound/storage/storage.ts'
import type { Connection } from '../../postgres/statement.ts'
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
  /** True when it was sent as `data` of a resource. */
  readonly isData: boolean
}

/** Returns the content of a stored Binary; empty when it was created without content. */
export function readBinaryContent(version: Version): BinaryContent {
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

const DATA = 'data'

/** Errors: 404 when storage has lost the content. */
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

/** For small content. Errors: 413 above `maxBytes`. */
export async function readWhole(
  services: Services,
  content: BinaryContent,
  maxBytes: number,
): Promise<Buffer> {
  if (content.size > maxBytes) throw tooLarge()
  return await readWholeStored(await openContent(services, content))
}

export type Upload = Buffer | Readable

/**
 * Returns the `url` for the resource; callers that fail to store it call `removeContent`. Errors: 413 above
 * MAX_UPLOAD_BYTES, 400 when the upload is interrupted, 503 when storage is full or unavailable.
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

/** Marks content as used, in the transaction of its resource if there is one. The sweep recovers from failures. */
export async function settleContent({ repository, log }: Services, url: string): Promise<void> {
  const { pathname } = new URL(url)
  await repository.withStore(({ connection }) => keep(connection, log, pathname))
}

async function keep(connection: Connection, log: Services['log'], key: string): Promise<void> {
  await keepContent(connection, key).catch((error: Error) => {
    log.debug({ reason: error.message }, 'Content stays in doubt')
  })
}

/** True for the same bytes with the same metadata. */
export function isSameContent(url: string, other: unknown): boolean {
  return (
    typeof other === 'string' &&
    URL.canParse(other) &&
    new URL(other).search === new URL(url).search
  )
}

/** Removes content from `storeContent` when the resource was not stored. */
export async function removeContent(services: Services, url: string): Promise<void> {
  await discard(services, new URL(url).pathname)
}

/**
 * Wraps services for work that may be rolled back: `undo` removes content stored meanwhile. `settle` marks it as used
 * after a commit: a transaction that reads one state does not see the mark's row.
 */
export function undoable(services: Services): {
  readonly services: Services
  undo(): Promise<void>
  settle(): Promise<void>
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
    async settle() {
      const { database, log } = services
      await Promise.all(keys.splice(0).map((key) => keep(database, log, key)))
    },
  }
}

async function discard({ storage, database, log }: Services, key: string): Promise<void> {
  try {
    await storage.delete(key)
    await forgetContent(database, key)
  } catch (error) {
    // The sweep finds it within a day.
    log.debug({ key, reason: (error as Error).message }, 'Content without a resource was left')
  }
}

async function* metered(
  upload: Upload,
  maxBytes: number,
  meter: { bytes: number; digest: Hash },
): AsyncGenerator<Uint8Array> {
  // Destroying the request would prevent a reply, so the stream is kept.
  const chunks = Buffer.isBuffer(upload) ? [upload] : readChunks(upload)
  const iterator = asUpload(chunks)
  for await (const chunk of iterator) {
    meter.bytes += chunk.length
    if (meter.bytes > maxBytes) throw tooLarge()
    meter.digest.update(chunk)
    yield chunk
  }
}

/** A disconnected caller is not a server error. */
async function* asUpload(
  chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>,
): AsyncGenerator<Uint8Array> {
  try {
    yield* chunks
  } catch (error) {
    throw error instanceof HttpError ? error : badStructure('Content is incomplete')
  }
}

export function withoutContent({ data: _data, url: _url, ...rest }: Resource): Resource {
  return rest
}

/** Restores stored elements that callers neither see nor set. */
export function withStoredContent(current: Resource, next: Resource): Resource {
  return {
    ...withoutContent(next),
    ...(current.url === undefined ? {} : { url: current.url }),
    ...(current.data === undefined ? {} : { data: current.data }),
  }
}

/** Decodes base64 with or without whitespace; returns undefined for other text. */
export function decodeBase64(text: string): Buffer | undefined {
  return isBase64(text) || text.trim() === '' ? Buffer.from(text, 'base64') : undefined
}

export function isBinary(body: unknown): body is Resource {
  return isObject(body) && body.resourceType === 'Binary'
}

const AT_ONCE = 100

/** Identifies a storage; databases outlive storages. */
export function storageDigest({ storageUrl }: Pick<Config, 'storageUrl'>): Buffer {
  return hash('sha256', storageUrl, 'buffer').subarray(0, 16)
}

/** Removes up to a hundred expired contents, oldest first; returns the number. Safe to run concurrently. */
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

/** Only media types may reach the header. */
export function safeContentType(contentType: unknown): string {
  return typeof contentType === 'string' &&
    /^[\w.+-]+\/[\w.+-]+(\s*;[\x20-\x7e]*)?$/.test(contentType)
    ? contentType
    : 'application/octet-stream'
}

/** Types that browsers display without running code. */
const SHOWN =
  /^(image\/(png|jpeg|gif|webp|avif|bmp|tiff)|audio\/[\w.+-]+|video\/[\w.+-]+|text\/(plain|csv)|application\/(pdf|json|fhir\+json|dicom))\s*(;|$)/i

/** Isolates HTML and SVG in an opaque origin without scripts. */
const SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'"

/** Browsers' viewers fail in a sandbox; these types run no code. */
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
    // Browsers honour X-Frame-Options only without frame-ancestors.
    'Content-Security-Policy':
      disposition === 'inline' && ancestors.length > 0 ? framedBy(ancestors) : SANDBOX,
    ...(filename === undefined && disposition === 'inline'
      ? {}
      : {
          'Content-Disposition': contentDisposition(filename?.toWellFormed(), {
            type: disposition,
          }),
        }),
  }
}

const LONGEST_FILENAME = 255

/** Returns the last part of a path without control characters; undefined if empty. */
export function cleanFilename(name: string | null): string | undefined {
  const last = (name ?? '').split(/[\\/]/).at(-1) ?? ''
  const clean = last
    .replace(/\p{Cc}/gu, '')
    .trim()
    .slice(0, LONGEST_FILENAME)
    .toWellFormed()
  return clean === '' ? undefined : clean
}
