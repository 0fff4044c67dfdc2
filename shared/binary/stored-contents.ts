/** Removes content from the storage that no resource names any more. */
import { createHash } from 'node:crypto'
import type { Config } from '../config/config.ts'
import type { Services } from '../services.ts'
import { dueContents, forgetContent, keepContent } from '../store/write/stored-contents.ts'

const AT_ONCE = 100

/** Tells one storage from another; databases outlive them. */
export function placeOf({ storageUrl }: Pick<Config, 'storageUrl'>): Buffer {
  return createHash('sha256').update(storageUrl).digest().subarray(0, 16)
}

/** What is due, the oldest hundred; answers how many were removed. Any number of workers may do so. */
export async function sweepContents({ config, database, storage }: Services): Promise<number> {
  const due = await dueContents(database, placeOf(config), AT_ONCE)
  for (const { key, isUsed } of due) {
    if (isUsed) await keepContent(database, key)
    else {
      await storage.delete(key)
      await forgetContent(database, key)
    }
  }
  return due.filter(({ isUsed }) => !isUsed).length
}
