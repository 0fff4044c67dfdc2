/** Takes the files of exports that have ended out of the storage. */
import { blockKey, fileKey } from '../../../shared/bulk/exports/file.ts'
import {
  endedExport,
  markSwept,
  wholeFiles,
  writtenBlocks,
} from '../../../shared/bulk/exports/rows/ended.ts'
import type { Services } from '../../../shared/services.ts'
import { mostUnderWay } from './writer.ts'

/** One export; false when there is none. */
export async function sweepExport({ database, storage, log }: Services): Promise<boolean> {
  const ended = await endedExport(database)
  if (ended === undefined) return false
  const { id, projectId } = ended
  for (const { part, kind, epoch, last } of await writtenBlocks(database, id)) {
    // A worker that died may have stored a few more than it could write down.
    for (let seq = 0; seq <= last + mostUnderWay(kind); seq++) {
      await storage.delete(blockKey(projectId, id, part, epoch, seq))
    }
  }
  for (const { part, seq } of await wholeFiles(database, id)) {
    await storage.delete(fileKey(projectId, id, part, seq))
  }
  await markSwept(database, id)
  log.info({ export: id }, 'The files of an export are gone')
  return true
}
