/**
 * Storage in a folder. A file is written below `incoming` and renamed when it is whole and on the
 * disk, so that what bears a key is never half a file. A folder goes with its last file.
 */
import { randomUUID } from 'node:crypto'
import { constants } from 'node:fs'
import { access, mkdir, open, readdir, rename, rm, rmdir, stat } from 'node:fs/promises'
import path from 'node:path'
import { contentMissing } from '../../errors.ts'
import { writeWhole } from './disk-write.ts'
import type { Storage } from './storage.ts'

/** So often a folder may go while a file is put into it. */
const PLACINGS = 8
/**
 * What is read at a time of a range; Node allocates no more than is left of it. By Node's own 64 KiB a MiB takes twice
 * the CPU, and comes at a third of the speed from the disk.
 */
const READ_BYTES = 256 * 1024

export function openDisk(folder: string): Storage {
  const incoming = path.join(folder, 'incoming')
  const fileOf = (key: string) => path.join(folder, key)
  return {
    async put(key, source) {
      const file = fileOf(key)
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
      const handle = await open(fileOf(key)).catch((error: unknown) => {
        throw isAbsent(error) ? contentMissing(error) : error
      })
      return handle.createReadStream(range && { ...range, highWaterMark: READ_BYTES })
    },
    async delete(key) {
      await rm(fileOf(key), { force: true })
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
