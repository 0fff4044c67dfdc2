/**
 * Storage in a folder. A file is written below `incoming` and renamed when it is whole and on the
 * disk, so that what bears a key is never half a file.
 */
import { randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import { access, mkdir, open, readdir, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { contentMissing } from './errors.ts'
import { release } from './release.ts'
import type { Storage } from './storage.ts'

/** Longer than any upload; what is older was left by a crash. */
const ABANDONED_MS = 24 * 3600 * 1000

export async function openDisk(folder: string): Promise<Storage> {
  const incoming = path.join(folder, 'incoming')
  const fileOf = (key: string) => path.join(folder, key)
  await removeAbandoned(incoming)
  return {
    async put(key, source) {
      const file = fileOf(key)
      const draft = path.join(incoming, randomUUID())
      await Promise.all([incoming, path.dirname(file)].map(makeFolder))
      try {
        await writeWhole(draft, source)
        await rename(draft, file)
      } catch (error) {
        await rm(draft, { force: true })
        throw error
      }
    },
    async get(key, range) {
      const handle = await open(fileOf(key)).catch((error: unknown) => {
        throw isAbsent(error) ? contentMissing(error) : error
      })
      return handle.createReadStream(range)
    },
    async delete(key) {
      await rm(fileOf(key), { force: true })
    },
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

async function writeWhole(file: string, source: AsyncIterable<Uint8Array>): Promise<void> {
  const handle = await open(file, 'wx', 0o600)
  try {
    for await (const chunk of source) {
      await handle.writeFile(chunk)
      release(chunk)
    }
    await handle.datasync()
  } finally {
    await handle.close()
  }
}

/** A folder that cannot be read now is said by `check`. */
async function removeAbandoned(incoming: string): Promise<void> {
  const drafts = await readdir(incoming).catch(() => [])
  for (const name of drafts) {
    const draft = path.join(incoming, name)
    const changed = await stat(draft).catch(() => undefined)
    if (changed && Date.now() - changed.mtimeMs > ABANDONED_MS) await rm(draft, { force: true })
  }
}

function isAbsent(error: unknown): boolean {
  return (error as NodeJS.ErrnoException).code === 'ENOENT'
}
