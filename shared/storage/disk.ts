/**
 * Storage in a folder. A file is written below `incoming` and renamed when it is whole and on the
 * disk, so that what bears a key is never half a file. A folder goes with its last file.
 * Whole pages of memory are written past the cache of the operating system.
 */

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
import type { Config } from '../core/config/config.ts'
import { contentMissing } from '../core/errors.ts'
import type { Storage } from './storage.ts'
import { release } from './storage.ts'

/** So often a folder may go while a file is put into it. */
const PLACINGS = 8
/**
 * The size of a read of a range; Node allocates no more than is left of it. With Node's own 64 KiB a MiB takes twice
 * the CPU, and comes at a third of the speed from the disk.
 */
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

/** The folder is mostly there, and may go with its last file meanwhile. */
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

/** A folder below `root` and those it is in, as far as there is nothing in them. */
async function removeEmpty(root: string, folder: string): Promise<void> {
  for (let name = folder; name !== '.'; name = path.dirname(name)) {
    try {
      await rmdir(path.join(root, name))
    } catch (error) {
      if (!isAbsent(error)) return
    }
  }
}

/** A folder that cannot be read now is said by `check`. */
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

/** Below this size the kernel's copy costs less than to open the file once more. */
const LEAST_BYTES = 256 * 1024

/** Writes a new file, which is closed, and on the disk, when the promise resolves. */
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

/** How many bytes of the chunk it has written: none where its memory or the file system is not made for it. */
async function writePages(file: string, chunk: Uint8Array, at: number): Promise<number> {
  const bytes = pageBytes(chunk, at)
  if (bytes < LEAST_BYTES) return 0
  let handle: FileHandle | undefined
  try {
    handle = await open(file, constants.O_WRONLY | constants.O_DIRECT)
    await writeAll(handle, chunk.subarray(0, bytes), at)
    return bytes
  } catch {
    // A fault of the disk itself shows again when everything is written in the ordinary way.
    return 0
  } finally {
    await handle?.close()
  }
}

async function writeAll(handle: FileHandle, bytes: Uint8Array, from: number): Promise<void> {
  // `writeFile` would go to the thread pool and back for each 512 KiB.
  for (let at = 0; at < bytes.length; ) {
    at += (await handle.write(bytes, at, bytes.length - at, from + at)).bytesWritten
  }
}

/**
 * `file:<folder>` or `s3://bucket/prefix?region=…&endpoint=…&forcePathStyle=true&timeout=<seconds>`, where the
 * service is to encrypt objects with `&sse=AES256` or `&sse=aws:kms&sseKmsKeyId=…`, and callers fetch what is
 * exported from it themselves with `&presigned=true`.
 */
export async function openStorage({
  storageUrl,
  maxUploadBytes,
}: Pick<Config, 'storageUrl' | 'maxUploadBytes'>): Promise<Storage> {
  if (storageUrl.startsWith('file:')) return openDisk(storageUrl.slice('file:'.length))
  // Loading the client takes 0.3 s and 30 MB, which a folder need not pay.
  const { openBucket } = await import('./s3.ts')
  return openBucket(new URL(storageUrl), maxUploadBytes)
}

/*
 * Memory that begins on a page, as a disk needs it that is to read it by itself. Of what V8 allocates only buffers
 * that may be resized are sure to.
 */

const PAGE_BYTES = 4096

/**
 * Zeros; the bytes are rounded up to whole pages. No Buffer: of a class that extends V8's own, each array of memory that
 * may be resized gets a hidden class of its own, so that code that works on it is never compiled for good.
 */
export function allocatePages(bytes: number): Uint8Array<ArrayBuffer> {
  const length = Math.ceil(bytes / PAGE_BYTES) * PAGE_BYTES
  return new Uint8Array(new ArrayBuffer(length, { maxByteLength: length }), 0, length)
}

/** How many bytes of the chunk, from its start, are whole pages, in memory and at that place of a file. */
export function pageBytes({ buffer, byteOffset, byteLength }: Uint8Array, place: number): number {
  const isOnPages = buffer instanceof ArrayBuffer && buffer.resizable
  if (!isOnPages || byteOffset % PAGE_BYTES > 0 || place % PAGE_BYTES > 0) return 0
  return byteLength - (byteLength % PAGE_BYTES)
}
