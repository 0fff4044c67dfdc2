/**
 * Files of exports as they are stored, and the manifest that names them: blocks of whole lines, each packed by
 * itself and ended with a sync flush, so that one after the other, between a header and a trailer, they are one
 * member of gzip. Several members would be legal too, but some clients stop after the first.
 * https://www.rfc-editor.org/rfc/rfc1952
 */
import { constants, createDeflateRaw, inflateRaw } from 'node:zlib'
import type { Storage } from '../../platform/storage/storage.ts'
import { absoluteUrl } from '../../request/reply.ts'
import type { Services } from '../../services.ts'
import type { ExportFiles, ListedFile } from './announce.ts'
import { listFiles } from './rows/files.ts'
import type { ExportJob } from './rows/jobs.ts'

/** Lines of a block, about; one that is longer is a block of its own. */
export const BLOCK_BYTES = 4 * 1024 * 1024

/** Deflate, no name, no time, unknown system. */
export const GZIP_HEADER = Buffer.from([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff])
/** An empty block that is the last one. */
const LAST_BLOCK = Buffer.from([3, 0])
export const GZIP_TRAILER_BYTES = LAST_BLOCK.length + 8

const { Z_SYNC_FLUSH } = constants
/** Each piece is a way to the thread pool and back: by the default of 16 KiB there were 30 of a block. */
const PIECE_BYTES = 1024 * 1024

/** In the thread pool. */
export async function packBlock(lines: Uint8Array, level: number): Promise<Buffer> {
  const packing = createDeflateRaw({ level, finishFlush: Z_SYNC_FLUSH, chunkSize: PIECE_BYTES })
  const pieces: Buffer<ArrayBuffer>[] = []
  packing.end(lines)
  for await (const piece of packing) pieces.push(piece)
  const packed = Buffer.concat(pieces)
  // Each has a MiB of its own, however little is in it, which V8 would keep until it collects garbage.
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

/** The most that a stored block holds, behind a header: a byte for its form, and its length twice. */
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

/** Undefined when one of the blocks is not a stored one. */
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

/** `crc` and `bytes` are those of all lines. */
export function gzipTrailer(crc: number, bytes: number): Buffer {
  const trailer = Buffer.alloc(GZIP_TRAILER_BYTES)
  LAST_BLOCK.copy(trailer)
  trailer.writeUInt32LE(crc >>> 0, 2)
  trailer.writeUInt32LE(bytes % 2 ** 32, 6)
  return trailer
}

/** Storage key of a file that is one object. */
export function fileKey(projectId: string, job: string, part: number, seq: number): string {
  return `exports/${projectId}/${job}/${part}-file-${seq}`
}

interface BlockPlace {
  readonly job: string
  readonly part: number
  readonly epoch: number
  readonly seq: number
}

/** Storage key of a block. */
export function blockKey(projectId: string, { job, part, epoch, seq }: BlockPlace): string {
  return `exports/${projectId}/${job}/${part}-${epoch}-${seq}`
}

/**
 * Makes the manifest of one page, or of all; `sign`: for callers who fetch the files from the storage itself.
 * https://hl7.org/fhir/uv/bulkdata/STU2/export.html#response---complete-status
 */
export async function manifestOf(
  services: Services,
  { id, at, input }: ExportJob,
  { page, sign }: { readonly page?: number; readonly sign?: Storage['sign'] } = {},
): Promise<ExportFiles & { readonly request: string }> {
  const files = await listFiles(services.database, id, page)
  const all = await Promise.all(
    files.map(async ({ kind, type, number, part, seq, rows, goesOn }) => {
      const name = fileName(kind, type, number)
      const key = fileKey(input.projectId, id, part, seq)
      const url =
        (await sign?.(key, SIGNED_SECONDS, contentHeaders(name))) ??
        `${statusUrl(services, id)}/files/${name}`
      return { kind, part, seq, goesOn, file: { type, url, count: rows } }
    }),
  )
  const going = new Map(
    all.filter(({ goesOn }) => goesOn).map(({ part, seq, file }) => [`${part} ${seq}`, file.url]),
  )
  const of = (wanted: string) =>
    all.flatMap(({ kind, part, seq, file }): ListedFile | [] => {
      if (kind !== wanted) return []
      const continuesInFile = going.get(`${part} ${seq + 1}`)
      return continuesInFile === undefined ? file : { ...file, continuesInFile }
    })
  const deleted = of('deleted')
  return {
    transactionTime: at?.toISOString(),
    request: input.request,
    requiresAccessToken: sign === undefined,
    ...(input.organizedBy === undefined ? {} : { outputOrganizedBy: input.organizedBy }),
    output: of('output'),
    ...(deleted.length === 0 ? {} : { deleted }),
    error: of('error'),
  }
}

/** As it is sent: files that are organized by patients hold several types. Records name that of the patients. */
export function manifestText(manifest: ExportFiles): string {
  if (manifest.outputOrganizedBy === undefined) return JSON.stringify(manifest)
  const output = manifest.output.map((file) => ({ ...file, type: undefined }))
  return JSON.stringify({ ...manifest, output })
}

/** Time to begin a download; who comes later reads the manifest again. */
const SIGNED_SECONDS = 300

export function contentHeaders(name: string) {
  return {
    'Content-Type': 'application/fhir+ndjson',
    'Content-Disposition': `attachment; filename="${name}"`,
  }
}

function fileName(kind: string, type: string, number: number): string {
  return kind === 'output' ? `${number}.${type}.ndjson` : `${number}.${kind}.${type}.ndjson`
}

export function statusUrl(services: Services, id: string): string {
  return absoluteUrl(services, `bulkdata/export/${id}`)
}
