/** Storage in a folder. Files are synced, then renamed from `incoming`, so a key never names a partial file. */

import { randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import {
  access,
  type FileHandle,
  mkdir,
  open,
  readdir,
  rename,
  rm,
  rmdir,
  stat,
} from 'node:fs/promises'
import path from 'node:path'
import type { Config } from '../../core/config/config.ts'
import { contentMissing } from '../../core/errors.ts'
import type { Storage } from './storage.ts'
import { release } from './storage.ts'

/** Retries when a folder disappears during a rename. */
const PLACINGS = 8
/** Read size of a range: Node's default of 64 KiB costs more CPU and is slower. */
const READ_BYTES = 256 * 1024

export function openDisk(folder: string): Storage {
  const incoming = path.join(folder, 'incoming')
  const filePath = (key: string) => path.join(folder, key)
  return {
    async put(key, source) {
      const file = filePath(key)
      const draft = path.join(incoming, randomUUID())
      try {
        const handle = await inFolder(incoming, () => open(draft, 'wx', 0o600))
        await writeWhole(handle, draft, source)
        await inFolder(path.dirname(file), () => rename(draft, file))
      } catch (error) {
        await rm(draft, { force: true })
        throw error
      }
    },
    async get(key, range) {
      const handle = await open(filePath(key)).catch((error: unknown) => {
        throw isAbsent(error) ? contentMissing(error) : error
      })
      return handle.createReadStream(range && { ...range, highWaterMark: READ_BYTES })
    },
    async delete(key) {
      await rm(filePath(key), { force: true })
      await removeEmpty(folder, path.dirname(key))
    },
    removeAbandoned: (before) => removeAbandoned(incoming, before),
    async check() {
      await makeFolder(incoming)
      await access(incoming, constants.W_OK)
    },
    async close() {},
  }
}

async function makeFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 })
}

/** The folder usually exists, but may disappear with its last file. */
async function inFolder<T>(folder: string, work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work()
    } catch (error) {
      if (!isAbsent(error) || attempt === PLACINGS) throw error
      await makeFolder(folder)
    }
  }
}

async function removeEmpty(root: string, folder: string): Promise<void> {
  for (let name = folder; name !== '.'; name = path.dirname(name)) {
    try {
      await rmdir(path.join(root, name))
    } catch (error) {
      if (!isAbsent(error)) return
    }
  }
}

/** `check` reports unreadable folders. */
async function removeAbandoned(incoming: string, before: Date): Promise<void> {
  const drafts = await readdir(incoming).catch(() => [])
  for (const name of drafts) {
    const draft = path.join(incoming, name)
    const changed = await stat(draft).catch(() => undefined)
    if (changed && changed.mtime < before) await rm(draft, { force: true })
  }
}

function isAbsent(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'ENOENT'
}

/** Below this size reopening the file costs more than the kernel's copy. */
const LEAST_BYTES = 256 * 1024

/** Writes and syncs a new file before the promise resolves. */
export async function writeWhole(
  handle: FileHandle,
  file: string,
  source: AsyncIterable<Uint8Array>,
): Promise<void> {
  try {
    let size = 0
    for await (const chunk of source) {
      const direct = await writePages(file, chunk, size)
      await writeAll(handle, chunk.subarray(direct), size + direct)
      size += chunk.length
      release(chunk)
    }
    await handle.datasync()
  } finally {
    await handle.close()
  }
}

/** Returns the bytes written: 0 where the memory or the file system does not support direct I/O. */
async function writePages(file: string, chunk: Uint8Array, at: number): Promise<number> {
  const bytes = pageBytes(chunk, at)
  if (bytes < LEAST_BYTES) return 0
  let handle: FileHandle | undefined
  try {
    handle = await open(file, constants.O_WRONLY | constants.O_DIRECT)
    await writeAll(handle, chunk.subarray(0, bytes), at)
    return bytes
  } catch {
    // A real disk fault shows again in the buffered write.
    return 0
  } finally {
    await handle?.close()
  }
}

async function writeAll(handle: FileHandle, bytes: Uint8Array, from: number): Promise<void> {
  // `writeFile` uses the thread pool for each 512 KiB.
  for (let at = 0; at < bytes.length; ) {
    at += (await handle.write(bytes, at, bytes.length - at, from + at)).bytesWritten
  }
}

/**
 * Opens `file:<folder>` or `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true&timeout=<seconds>`, with
 * optional `&sse=AES256`, `&sse=aws:kms&sseKmsKeyId=…` and `&presigned=true` (direct downloads of exports).
 */
export async function openStorage({
  storageUrl,
  maxUploadBytes,
}: Pick<Config, 'storageUrl' | 'maxUploadBytes'>): Promise<Storage> {
  if (storageUrl.startsWith('file:')) return openDisk(storageUrl.slice('file:'.length))
  // Loaded on demand: the client costs start-up time and memory.
  const { openBucket } = await import('./s3.ts')
  return openBucket(new URL(storageUrl), maxUploadBytes)
}

// Page-aligned memory, which direct I/O requires. In V8 only resizable buffers guarantee it.

const PAGE_BYTES = 4096

/** Returns whole pages of zeros. Not a Buffer: V8 does not optimize resizable arrays of a subclass. */
export function allocatePages(bytes: number): Uint8Array<ArrayBuffer> {
  const length = Math.ceil(bytes / PAGE_BYTES) * PAGE_BYTES
  return new Uint8Array(new ArrayBuffer(length, { maxByteLength: length }), 0, length)
}

/** Returns the number of leading bytes that are whole pages, in memory and in the file. */
export function pageBytes({ buffer, byteOffset, byteLength }: Uint8Array, place: number): number {
  const isOnPages = buffer instanceof ArrayBuffer && buffer.resizable
  if (!isOnPages || byteOffset % PAGE_BYTES > 0 || place % PAGE_BYTES > 0) return 0
  return byteLength - (byteLength % PAGE_BYTES)
}
