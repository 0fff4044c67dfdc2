/** Records of runs: a row per attempt, kept for a week and at most the latest thousand per bot and Project. */

import { randomBytes } from 'node:crypto'
import { seal, unseal } from '../access/credentials/sealing.ts'
import type { Storage } from '../outbound/storage/storage.ts'
import { arrayLiteral, type Connection } from '../postgres/statement.ts'
import type { ExecuteJob, ExecuteReply } from '../queue/jobs.ts'
import type { Services } from '../request/services.ts'

const KEPT = '7 days'
const KEPT_OF_A_BOT = 1000
const FORGOTTEN_AT_ONCE = 5000

export interface BotRunRecord extends RecordedCalls {
  readonly status: string
  readonly durationMs: number
  readonly cpuMs: number
  readonly memoryMb?: number | undefined
  readonly version: number
  /** Absent: live. */
  readonly label?: string | undefined
  readonly attempt: number
  /** Reason and duration of the wait for the key, the rate, or a slot in the worker. */
  readonly hold?: { readonly reason: string; readonly ms: number } | undefined
  /** The same for runs of one key: a hash. */
  readonly key?: string | undefined
  /** Earlier events that a debounced one has replaced. */
  readonly replaced?: number | undefined
  readonly mode: 'sync' | 'async' | 'event' | 'schedule'
  readonly requester?: string | undefined
  readonly runAs?: string | undefined
  readonly traceId: string
  readonly error?: string | undefined
  readonly log: string
  readonly archive?: InputArchive | undefined
}

export interface StreamRecord {
  readonly status: number
  readonly bytes: number
  readonly chunks: number
}

export interface RecordedCalls {
  readonly calls?: readonly CallRecord[] | undefined
  readonly callCount?: number | undefined
  readonly stream?: StreamRecord | undefined
}

/** A request of a run, without headers and bodies. */
export interface CallRecord {
  readonly method: string
  /** Relative to `fhir/R4/`; for other services the URL without its query. */
  readonly path: string
  readonly status?: number
  readonly ms?: number
  /** `Type/id/_history/version` of a write; `Type/id` of a deletion. */
  readonly wrote?: readonly string[]
}

export interface InputArchive {
  readonly place: string
  readonly key: string
}

export interface BotRunRow {
  readonly bot: string
  readonly started: Date
  readonly id: string
  readonly project: number
  readonly record: BotRunRecord
}

export async function addBotRuns(database: Connection, rows: readonly BotRunRow[]): Promise<void> {
  await database.query({
    name: 'bot-run-add',
    text: `insert into bot_run (bot, started, id, project, record, archived)
      select * from unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::int[], $5::text[], $6::boolean[])
      on conflict do nothing`,
    values: [
      arrayLiteral(rows.map(({ bot }) => bot)),
      arrayLiteral(rows.map(({ started }) => started)),
      arrayLiteral(rows.map(({ id }) => id)),
      arrayLiteral(rows.map(({ project }) => project)),
      // Nested JSON contains only quotes and backslashes to escape in an array.
      arrayLiteral(rows.map(({ record }) => JSON.stringify(JSON.stringify(record)))),
      arrayLiteral(rows.map(({ record }) => record.archive !== undefined)),
    ],
  })
}

export type BotRunCursor = Pick<BotRunRow, 'started' | 'id'>

export interface RunQuery {
  /** All bots if undefined. */
  readonly bot: string | undefined
  /** All Projects if undefined. */
  readonly project: number | undefined
  readonly after?: BotRunCursor | undefined
  /** Only the attempts of this run. */
  readonly id?: string | undefined
  readonly isOk?: boolean | undefined
  /** Started at this time or later. */
  readonly since?: Date | undefined
  /** Started before this time. */
  readonly until?: Date | undefined
  readonly count: number
}

/** Latest first. */
export async function findBotRuns(
  database: Connection,
  { bot, project, after, id, isOk, since, until, count }: RunQuery,
): Promise<readonly BotRunRow[]> {
  const isOfBot = bot === undefined ? '$1::uuid is null' : 'bot = $1'
  const rows = await database.query<StoredRow>({
    name: bot === undefined ? 'bot-runs-find' : 'bot-run-find',
    // Inside texts of the record quotes are escaped, so that only the element matches.
    text: `select bot, started, id, project, record from bot_run
      where ${isOfBot} and ($2::int is null or project = $2)
        and ($3::timestamptz is null or (started, id) < ($3, $4::uuid))
        and ($6::uuid is null or id = $6)
        and ($7::boolean is null or (record like '%"status":"ok"%') = $7)
        and ($8::timestamptz is null or started >= $8) and ($9::timestamptz is null or started < $9)
      order by started desc, id desc limit $5`,
    values: [
      bot ?? null,
      project ?? null,
      after?.started ?? null,
      after?.id ?? null,
      count,
      id ?? null,
      isOk ?? null,
      since ?? null,
      until ?? null,
    ],
  })
  return rows.map(toRow)
}

export async function findArchivedRun(
  database: Connection,
  bot: string,
  project: number | undefined,
  id: string,
): Promise<BotRunRow | undefined> {
  const [row] = await database.query<StoredRow>({
    name: 'bot-run-archived',
    text: `select bot, started, id, project, record from bot_run
      where bot = $1 and id = $2 and archived and ($3::int is null or project = $3)
      order by started desc limit 1`,
    values: [bot, id, project ?? null],
  })
  return row && toRow(row)
}

/** Ids of the latest runs of a bot whose input is kept. */
export async function findArchivedRuns(
  database: Connection,
  {
    bot,
    project,
    since,
    until,
    count,
  }: Required<Pick<RunQuery, 'since' | 'until' | 'count' | 'project'>> & { readonly bot: string },
): Promise<readonly string[]> {
  const rows = await database.query<{ readonly id: string }>({
    name: 'bot-runs-archived',
    text: `select id from bot_run
      where bot = $1 and archived and ($2::int is null or project = $2)
        and ($3::timestamptz is null or started >= $3)
        and ($4::timestamptz is null or started < $4)
      group by id order by max(started) desc limit $5`,
    values: [bot, project ?? null, since ?? null, until ?? null, count],
  })
  return rows.map(({ id }) => id)
}

/** The runs of a bot in one Project: another Project may have a bot with the same id. */
export type RunsOfBot = Pick<BotRunRow, 'bot' | 'project'>

/** Keeps the latest runs per bot and Project; returns the locations of the other inputs. */
export async function trimBotRuns(
  database: Connection,
  bots: readonly RunsOfBot[],
): Promise<readonly string[]> {
  const removed = await database.query<RemovedRow>({
    name: 'bot-run-trim',
    text: `delete from bot_run r using unnest($1::uuid[], $2::int[]) as b (bot, project), lateral (
        select started from bot_run where bot = b.bot and project = b.project
        order by started desc, id desc offset ${KEPT_OF_A_BOT} limit 1
      ) as last
      where r.bot = b.bot and r.project = b.project and r.started <= last.started
      returning case when r.archived then r.record end as record`,
    values: [bots.map(({ bot }) => bot), bots.map(({ project }) => project)],
  })
  return archivePlaces(removed)
}

/** Deletes runs older than a week; returns the locations of their inputs. */
export async function removeOldBotRuns(database: Connection): Promise<readonly string[]> {
  const removed = await database.query<RemovedRow>({
    name: 'bot-run-remove-old',
    text: `delete from bot_run where (bot, started, id) in (
      select bot, started, id from bot_run
      where started < clock_timestamp() - interval '${KEPT}' limit ${FORGOTTEN_AT_ONCE})
      returning case when archived then record end as record`,
  })
  return archivePlaces(removed)
}

interface StoredRow extends Omit<BotRunRow, 'record'> {
  readonly record: string
}

interface RemovedRow {
  readonly record: string | null
}

function archivePlaces(rows: readonly RemovedRow[]): readonly string[] {
  return rows.flatMap(({ record }) => {
    const { archive } = JSON.parse(record ?? '{}') as Partial<BotRunRecord>
    return archive === undefined ? [] : [archive.place]
  })
}

function toRow({ record, ...row }: StoredRow): BotRunRow {
  return { ...row, record: JSON.parse(record) as BotRunRecord }
}

// Inputs, answers and fetches kept for replays: files in storage, each encrypted with a key in the run's row, so that a file without its row
// is unreadable.

export type ArchivedInput = Pick<
  ExecuteJob,
  'contentType' | 'inputKind' | 'input' | 'headers' | 'path' | 'parameters' | 'hasRawBody'
> & {
  /** The input with secrets redacted, if it had any. */
  readonly shown?: string | undefined
  /** Absent for a streamed or a very large one. */
  readonly answer?: RunAnswer | undefined
  readonly fetches?: readonly RecordedFetch[] | undefined
}

/** Secrets are redacted. */
export interface RunAnswer {
  /** `ok`, or the kind of failure. */
  readonly status: string
  readonly kind: ExecuteReply['kind']
  readonly body: string
}

/** A request to another service and its response. */
export interface RecordedFetch {
  readonly method: string
  readonly url: string
  /** SHA-256 of the body, in base64. */
  readonly sent: string
  /** Absent for a failed or a very large one. */
  readonly response?:
    | {
        readonly status: number
        readonly statusText: string
        readonly headers: Readonly<Record<string, string>>
        readonly url: string
        /** Base64. */
        readonly body: string
        /** The run has not read it to its end. */
        readonly isPartial?: boolean
      }
    | undefined
  readonly error?: string | undefined
}

/** Longer answers are not archived. */
const MOST_ANSWER = 1024 * 1024

const KEY_BYTES = 32

interface InputOfAttempt {
  readonly projectId: string
  readonly job: ExecuteJob
  readonly attempt: number
  readonly input: string | undefined
  readonly shown: string | undefined
  readonly answer: RunAnswer | undefined
  readonly fetches: readonly RecordedFetch[]
}

export async function archiveInput(
  storage: Storage,
  { projectId, job, attempt, input, shown, answer, fetches }: InputOfAttempt,
): Promise<InputArchive> {
  const { cookie: _, ...headers } = job.headers
  const { contentType, inputKind, path, parameters, hasRawBody } = job
  const event = { contentType, inputKind, input, headers, path, parameters, hasRawBody }
  const kept = {
    ...event,
    shown: shown === input ? undefined : shown,
    answer: (answer?.body.length ?? 0) > MOST_ANSWER ? undefined : answer,
    fetches,
  }
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
  bots: readonly RunsOfBot[],
): Promise<void> {
  await forget(storage, await trimBotRuns(database, bots))
}

async function forget(storage: Storage, places: readonly string[]): Promise<void> {
  for (const place of places) await storage.delete(place)
}

async function* oneChunk(bytes: Buffer): AsyncGenerator<Uint8Array> {
  yield bytes
}
