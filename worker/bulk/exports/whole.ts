/** Files of exports as one object each, for callers who fetch them from the storage itself. */
import { plainContent } from '../../../shared/bulk/exports/download.ts'
import { fileKey } from '../../../shared/bulk/exports/file.ts'
import { filesOfPart } from '../../../shared/bulk/exports/rows/files.ts'
import { readExport } from '../../../shared/bulk/exports/rows/jobs.ts'
import { renewLease, type TakenPart } from '../../../shared/bulk/exports/rows/parts.ts'
import type { Services } from '../../../shared/services.ts'
import { LeaseLost } from '../../loop.ts'

/** Of a part that is written. Whoever takes it over makes the same objects again. Errors: LeaseLost. */
export async function makeWhole(
  { database, storage }: Services,
  { job, part }: TakenPart,
  signal: AbortSignal,
): Promise<void> {
  if (!job.input.presigned) return
  for (const file of await filesOfPart(database, job.id, part.n)) {
    const key = fileKey(job.input.projectId, job.id, part.n, file.seq)
    await storage.put(key, untilAborted(plainContent(storage, job, file), signal))
    if (await renewLease(database, job.id, part)) continue
    // What comes here after the files of the export are gone would stay.
    const now = await readExport(database, job.id)
    if (now === undefined || now.state === 'error') await storage.delete(key)
    throw new LeaseLost()
  }
}

async function* untilAborted(
  pieces: AsyncIterable<Buffer>,
  signal: AbortSignal,
): AsyncGenerator<Buffer> {
  for await (const piece of pieces) {
    signal.throwIfAborted()
    yield piece
  }
}
