/**
 * Writes files. Whole pages of memory go to the disk past the kernel's own copy of them, whose pages are found,
 * filled and given back again one by one: beside others a MiB took 2 ms of CPU, and so it takes 0.3.
 */
import { constants } from 'node:fs'
import { type FileHandle, open } from 'node:fs/promises'
import { pageBytes } from './page-memory.ts'
import { release } from './release.ts'

/** Of fewer bytes the kernel's copy costs less than to open the file once more. */
const LEAST_BYTES = 256 * 1024

/** Of a new file, which is closed, and on the disk, when it answers. */
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
    // What is wrong with the disk itself is told when all of it is written in the ordinary way.
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
