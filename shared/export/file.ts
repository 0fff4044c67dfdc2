/**
 * Export files, stored compressed or plain and sent either way. Blocks of whole lines are compressed separately and
 * form one gzip member: some clients stop after the first of several members. https://www.rfc-editor.org/rfc/rfc1952
 */
import { Readable } from 'node:stream'
import { constants, createDeflateRaw, inflateRaw } from 'node:zlib'
import { create as contentDisposition } from 'content-disposition'
import { notAcceptable, notFound } from '../core/errors.ts'
import { isResourceType } from '../fhir/definitions.ts'
import type { ByteRange, Storage } from '../outbound/storage/storage.ts'
import { readStored, readWholeStored } from '../outbound/storage/storage.ts'
import { readRange } from '../request/binary/read.ts'
import { acceptsType, takesGzip } from '../request/negotiate.ts'
import { emptyReply } from '../request/reply.ts'
import type { FhirReply, FhirRequest } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { type ExportFile, type FileKind, findFile } from './rows/files.ts'
import { type ExportJob, extendForDownload } from './rows/jobs.ts'

/** Approximate bytes of lines per block; a longer line is its own block. */
export const BLOCK_BYTES = 4 * 1024 * 1024

/** Deflate, no name, no time, unknown system. */
export const GZIP_HEADER = Buffer.from([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff])
const LAST_BLOCK = Buffer.from([3, 0])
const GZIP_TRAILER_BYTES = LAST_BLOCK.length + 8

const { Z_SYNC_FLUSH } = constants
/** Each piece is a round trip to the thread pool, and the default of 16 KiB would need many. */
const PIECE_BYTES = 1024 * 1024

export async function packBlock(lines: Uint8Array, level: number): Promise<Buffer> {
  const packing = createDeflateRaw({ level, finishFlush: Z_SYNC_FLUSH, chunkSize: PIECE_BYTES })
  const pieces: Buffer<ArrayBuffer>[] = []
  packing.end(lines)
  for await (const piece of packing) pieces.push(piece)
  const packed = Buffer.concat(pieces)
  // Each has its own MiB, which would otherwise stay until garbage collection.
  for (const { buffer } of pieces) if (buffer.byteLength === PIECE_BYTES) buffer.transfer(0)
  return packed
}

export async function unpackBlock(packed: Buffer): Promise<Buffer> {
  const stored = storedPieces(packed)
  if (stored !== undefined) return Buffer.concat(stored)
  return new Promise((resolve, reject) => {
    const options = { finishFlush: Z_SYNC_FLUSH, chunkSize: PIECE_BYTES }
    inflateRaw(packed, options, (error, lines) => (error ? reject(error) : resolve(lines)))
  })
}

export const STORED_BYTES = 0xffff
export const STORED_HEADER_BYTES = 5

/** https://www.rfc-editor.org/rfc/rfc1951#section-3.2.4 */
export function writeStoredHeader(target: Uint8Array, at: number, length: number): void {
  const rest = STORED_BYTES - length
  target[at] = 0
  target[at + 1] = length
  target[at + 2] = length >> 8
  target[at + 3] = rest
  target[at + 4] = rest >> 8
}

function storedPieces(packed: Buffer): Buffer[] | undefined {
  const pieces: Buffer[] = []
  for (let at = 0; at < packed.length; ) {
    if (packed[at] !== 0) return undefined
    const start = at + STORED_HEADER_BYTES
    at = start + packed.readUInt16LE(at + 1)
    pieces.push(packed.subarray(start, at))
  }
  return pieces
}

/** `crc` and `bytes` cover all lines. */
export function gzipTrailer(crc: number, bytes: number): Buffer {
  const trailer = Buffer.alloc(GZIP_TRAILER_BYTES)
  LAST_BLOCK.copy(trailer)
  trailer.writeUInt32LE(crc >>> 0, 2)
  trailer.writeUInt32LE(bytes % 2 ** 32, 6)
  return trailer
}

export function fileKey(projectId: string, job: string, part: number, seq: number): string {
  return `exports/${projectId}/${job}/${part}-file-${seq}`
}

interface BlockPlace {
  readonly job: string
  readonly part: number
  /** Fencing token of the part's lease. */
  readonly token: number
  readonly seq: number
}

export function blockKey(projectId: string, { job, part, token, seq }: BlockPlace): string {
  return `exports/${projectId}/${job}/${part}-${token}-${seq}`
}

export function contentHeaders(name: string) {
  return {
    'Content-Type': 'application/fhir+ndjson',
    'Content-Disposition': contentDisposition(name),
  }
}

/** Errors: 404, 406. Ranges and conditions apply to the encoding that is sent. */
export async function fileReply(
  services: Services,
  { headers }: Pick<FhirRequest, 'headers'>,
  job: ExportJob,
  name: string,
): Promise<FhirReply> {
  const file = await namedFile(services, job, name)
  requireNdjson(headers.accept)
  const isPacked = takesGzip(headers['accept-encoding'])
  const size = isPacked ? GZIP_HEADER.length + file.packed + GZIP_TRAILER_BYTES : file.bytes
  const etag = `"${job.id}-${name}${isPacked ? '-gzip' : ''}"`
  const common = {
    'Cache-Control': 'private, no-store',
    Vary: 'Accept-Encoding',
    ETag: etag,
    'Accept-Ranges': 'bytes',
  }
  if (matches(headers['if-none-match'], etag)) return emptyReply(304, common)
  const isFresh = [undefined, etag].includes(headers['if-range']?.trim())
  const range = isFresh ? readRange(headers.range, size) : undefined
  if (range === 'unsatisfiable') {
    return emptyReply(416, { ...common, 'Content-Range': `bytes */${size}` })
  }
  if (!(await extendForDownload(services.database, job.id))) throw notFound()
  const { start, end } = range ?? { start: 0, end: size - 1 }
  return {
    status: range === undefined ? 200 : 206,
    headers: {
      ...common,
      ...contentHeaders(name),
      'Content-Length': String(end - start + 1),
      'X-Content-Type-Options': 'nosniff',
      ...(isPacked ? { 'Content-Encoding': 'gzip' } : {}),
      ...(range === undefined ? {} : { 'Content-Range': `bytes ${start}-${end}/${size}` }),
    },
    body: undefined,
    open: async () => {
      const reads = openReads(services.storage)
      const segments = fileSegments(reads, job, file, isPacked)
      const pieces = await started(cut(segments, { start, end }))
      return readable(pieces, reads.close)
    },
  }
}

const NAME = /^([1-9]\d{0,5})\.(?:(deleted|error)\.)?([A-Za-z]+)\.ndjson$/

async function namedFile(
  { database }: Services,
  { id }: ExportJob,
  name: string,
): Promise<ExportFile> {
  const [, number, kind = 'output', type = ''] = NAME.exec(name) ?? []
  if (number === undefined || !isResourceType(type)) throw notFound()
  const file = await findFile(database, id, {
    kind: kind as FileKind,
    type,
    number: Number(number),
  })
  if (file === undefined) throw notFound()
  return file
}

function requireNdjson(accept: string | undefined): void {
  const isAny = accept === undefined || accept.trim() === ''
  if (isAny || acceptsType(accept, ['application/fhir+ndjson', 'application/ndjson'])) return
  throw notAcceptable('The file is application/fhir+ndjson')
}

function matches(header: string | undefined, etag: string): boolean {
  const tags = (header ?? '').split(',').map((tag) => tag.trim().replace(/^W\//, ''))
  return tags.includes(etag) || tags.includes('*')
}

interface Reads extends Pick<Storage, 'get'> {
  /** Aborts the current read, when storage hangs or the caller has disconnected. */
  close(): void
}

function openReads(storage: Storage): Reads {
  let last: Readable | undefined
  let isClosed = false
  return {
    async get(key, range) {
      last = await storage.get(key, range)
      if (isClosed) last.destroy()
      return last
    },
    close() {
      isClosed = true
      last?.destroy()
    },
  }
}

/** Reads the first stored bytes before the response starts, so that errors can still set the status. */
async function started(pieces: AsyncGenerator<Buffer>): Promise<AsyncGenerator<Buffer>> {
  const first: Buffer[] = []
  let size = 0
  while (size <= GZIP_HEADER.length) {
    const { value, done } = await pieces.next()
    if (done === true) break
    first.push(value)
    size += value.length
  }
  return (async function* () {
    yield* first
    yield* pieces
  })()
}

/** `Readable.from` would await the generator's next piece before closing it. */
function readable(pieces: AsyncGenerator<Buffer>, close: () => void): Readable {
  return new Readable({
    highWaterMark: 1,
    read() {
      pieces.next().then(
        ({ value, done }) => this.push(done === true ? null : value),
        (error: Error) => this.destroy(error),
      )
    },
    destroy(error, callback) {
      close()
      callback(error)
    },
  })
}

interface Segment {
  readonly length: number
  read(range: ByteRange): AsyncIterable<Buffer>
}

async function* cut(
  segments: Iterable<Segment>,
  { start, end }: ByteRange,
): AsyncGenerator<Buffer> {
  let at = 0
  for (const { length, read } of segments) {
    const [from, to] = [Math.max(start - at, 0), Math.min(end - at, length - 1)]
    at += length
    if (from <= to) yield* read({ start: from, end: to })
  }
}

export function plainContent(
  storage: Storage,
  job: ExportJob,
  file: ExportFile,
): AsyncGenerator<Buffer> {
  return cut(fileSegments(storage, job, file, false), { start: 0, end: file.bytes - 1 })
}

/** Lines as they are, or as one gzip member. */
function* fileSegments(
  reads: Pick<Storage, 'get'>,
  { id, input }: ExportJob,
  { part, blocks, crc, bytes }: ExportFile,
  isPacked: boolean,
): Generator<Segment> {
  if (isPacked) yield ofBytes(GZIP_HEADER)
  for (const [token, seq, plainLength, length] of blocks) {
    const key = blockKey(input.projectId, { job: id, part, token, seq })
    if (isPacked) {
      yield {
        length,
        async *read(range) {
          yield* readStored(await reads.get(key, range))
        },
      }
    } else {
      yield {
        length: plainLength,
        async *read({ start, end }) {
          const packed = await reads.get(key, { start: 0, end: length - 1 })
          const lines = await unpackBlock(await readWholeStored(packed))
          yield lines.subarray(start, end + 1)
        },
      }
    }
  }
  if (isPacked) yield ofBytes(gzipTrailer(crc, bytes))
}

function ofBytes(bytes: Buffer): Segment {
  return {
    length: bytes.length,
    async *read({ start, end }) {
      // Copied, because the consumer may free its memory.
      yield Buffer.from(bytes.subarray(start, end + 1))
    },
  }
}
