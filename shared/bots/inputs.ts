/**
 * Inputs kept for replays: files in storage, each encrypted with a key in the run's row, so that a file without its row
 * is unreadable.
 */
import { randomBytes } from 'node:crypto'
import { seal, unseal } from '../access/credentials/sealing.ts'
import type { Storage } from '../outbound/storage/storage.ts'
import type { ExecuteJob } from '../queue/jobs.ts'
import type { Services } from '../request/services.ts'
import { type InputArchive, removeOldBotRuns, trimBotRuns } from './run-records.ts'

export type ArchivedInput = Pick<
  ExecuteJob,
  'contentType' | 'inputKind' | 'input' | 'headers' | 'path' | 'hasRawBody'
> & {
  /** The input with secrets redacted, if it had any. */
  readonly shown?: string | undefined
}

const KEY_BYTES = 32

interface InputOfAttempt {
  readonly projectId: string
  readonly job: ExecuteJob
  readonly attempt: number
  readonly input: string | undefined
  readonly shown: string | undefined
}

export async function archiveInput(
  storage: Storage,
  { projectId, job, attempt, input, shown }: InputOfAttempt,
): Promise<InputArchive> {
  const { cookie: _, ...headers } = job.headers
  const { contentType, inputKind, path, hasRawBody } = job
  const hidden = shown === input ? {} : { shown }
  const kept = { contentType, inputKind, input, headers, path, hasRawBody, ...hidden }
  const key = randomBytes(KEY_BYTES)
  const place = `bot-input/${projectId}/${job.runId}-${attempt}`
  const sealed = seal(JSON.stringify(kept), key)
  await storage.put(place, oneChunk(sealed))
  return { place, key: key.toString('base64') }
}

/** Errors: 404 when the file is gone. */
export async function readArchivedInput(
  storage: Storage,
  { place, key }: InputArchive,
): Promise<ArchivedInput> {
  const sealed = Buffer.concat(await (await storage.get(place)).toArray())
  // Written by archiveInput, under an authenticated key.
  return JSON.parse(unseal(sealed, Buffer.from(key, 'base64')).toString()) as ArchivedInput
}

export async function deleteOldRuns({ database, storage }: Services): Promise<void> {
  await forget(storage, await removeOldBotRuns(database))
}

export async function trimRuns(
  { database, storage }: Services,
  bots: readonly string[],
): Promise<void> {
  await forget(storage, await trimBotRuns(database, bots))
}

async function forget(storage: Storage, places: readonly string[]): Promise<void> {
  for (const place of places) await storage.delete(place)
}

async function* oneChunk(bytes: Buffer): AsyncGenerator<Uint8Array> {
  yield bytes
}
