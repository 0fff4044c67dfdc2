/**
 * Inputs of runs that are kept to be run again: files in the storage, each sealed by a key of its own that
 * is in the run's row, so that a file without its row is noise. `$replay` runs one again.
 */
import { randomBytes } from 'node:crypto'
import { seal, unseal } from '../access/credentials/sealing.ts'
import { badRequest, notFound } from '../errors.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject } from '../fhir/resource.ts'
import type { ExecuteJob } from '../platform/queue/jobs.ts'
import type { Storage } from '../platform/storage/storage.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import type { Services } from '../services.ts'
import { createJob, runBot } from './execute.ts'
import { findBot, runAs } from './execute-bot.ts'
import { findArchivedRun, type InputArchive, removeOldBotRuns, trimBotRuns } from './run-records.ts'
import { requireAuthor } from './runs.ts'

/** The parts of a job that its bot gets. */
export type KeptInput = Pick<
  ExecuteJob,
  'contentType' | 'inputKind' | 'input' | 'headers' | 'path' | 'hasRawBody'
>

const KEY_BYTES = 32

interface InputOfAttempt {
  readonly projectId: string
  readonly job: ExecuteJob
  readonly attempt: number
  readonly input: string | undefined
}

export async function keepInput(
  storage: Storage,
  { projectId, job, attempt, input }: InputOfAttempt,
): Promise<InputArchive> {
  const { cookie: _, ...headers } = job.headers
  const { contentType, inputKind, path, hasRawBody } = job
  const kept = { contentType, inputKind, input, headers, path, hasRawBody }
  const key = randomBytes(KEY_BYTES)
  const place = `bot-input/${projectId}/${job.runId}-${attempt}`
  const sealed = seal(JSON.stringify(kept), key)
  await storage.put(place, oneChunk(sealed))
  return { place, key: key.toString('base64') }
}

/** Errors: 404 when the file is gone. */
export async function readInput(
  storage: Storage,
  { place, key }: InputArchive,
): Promise<KeptInput> {
  const sealed = Buffer.concat(await (await storage.get(place)).toArray())
  // Written by keepInput: nobody else has the key.
  return JSON.parse(unseal(sealed, Buffer.from(key, 'base64')).toString()) as KeptInput
}

/** Forgets runs that are a week old, and their inputs. */
export async function forgetOldRuns({ database, storage }: Services): Promise<void> {
  await forget(storage, await removeOldBotRuns(database))
}

/** Keeps the latest runs of each of these bots, and forgets the inputs of the others. */
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

const RUN_ID = /^(?:urn:uuid:)?([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/i

/** Errors: 400, 403 for who is no project admin, 404 also for a run whose input was not kept. */
export const replay: Operation = {
  name: 'replay',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['POST'],
  area: 'administration',
  ownFormat: true,
  async run(call) {
    const { services, principal, id = '' } = call
    await requireAuthor(call)
    const runId = readRunId(call)
    const project = principal.isSuperAdmin ? undefined : principal.project.number
    const row = await findArchivedRun(services.database, id, project, runId)
    if (row?.record.archive === undefined) throw notFound()
    const kept = await readInput(services.storage, row.record.archive)
    const found = await findBot(call)
    const acting = await runAs(services, principal, found)
    return await runBot(call, { ...createJob(call, found, acting), ...kept }, found)
  },
}

/** JSON `{runId}`, or Parameters with the same name as `$runs` gives it. */
function readRunId({ request }: OperationCall): string {
  const body = parseBody(request.body ?? '')
  const parameters = isObject(body) && Array.isArray(body.parameter) ? body.parameter : []
  const part = parameters.filter(isObject).find(({ name }) => name === 'runId')
  const given = isObject(body) ? (body.runId ?? part?.valueUuid ?? part?.valueString) : undefined
  const [, runId] = RUN_ID.exec(String(given)) ?? []
  if (runId === undefined) throw badRequest('Expected runId, the id of a run')
  return runId
}
