/** Records of a bot's runs: a row an attempt, for a week and at most the latest thousand of a bot. */
import type { Connection } from '../postgres/statement.ts'

const KEPT = '7 days'
const KEPT_OF_A_BOT = 1000
/** Rows that one statement forgets. */
const FORGOTTEN_AT_ONCE = 5000

export interface BotRunRecord extends RecordedCalls {
  /** `ok` or why it failed. */
  readonly status: string
  readonly durationMs: number
  readonly cpuMs: number
  /** Heap at its end; absent when it was not measured. */
  readonly memoryMb?: number | undefined
  /** Version of the Bot. */
  readonly version: number
  readonly attempt: number
  /** Why and how long it waited in its worker for its slot. */
  readonly hold?: { readonly reason: string; readonly ms: number } | undefined
  /** The way it was started. */
  readonly mode: 'sync' | 'async' | 'event' | 'schedule'
  /** `Type/id` of the caller's profile. */
  readonly requester?: string | undefined
  /** `Type/id` of the profile that it ran as. */
  readonly runAs?: string | undefined
  readonly traceId: string
  /** The error in the caller's answer. */
  readonly error?: string | undefined
  /** The last of it. */
  readonly log: string
  readonly archive?: InputArchive | undefined
}

export interface RecordedCalls {
  /** The first of them. */
  readonly calls?: readonly CallRecord[] | undefined
  readonly callCount?: number | undefined
}

/** A request that a run has made. Nothing of its headers and bodies is kept. */
export interface CallRecord {
  readonly method: string
  /** Below `fhir/R4/`; of another service, the address without its query. */
  readonly path: string
  /** Absent where there was no answer. */
  readonly status?: number
  readonly ms?: number
  /** `Type/id/_history/version` of a write, `Type/id` of a deletion and of entries of a Bundle. */
  readonly wrote?: readonly string[]
}

/** Where its input is kept, and the key that opens it: neither is of use without the other. */
export interface InputArchive {
  readonly place: string
  readonly key: string
}

export interface BotRunRow {
  readonly bot: string
  readonly started: Date
  /** The run id. */
  readonly id: string
  /** Number of the Project in which it ran. */
  readonly project: number
  readonly record: BotRunRecord
}

/** Stores rows that are not there yet. */
export async function addBotRuns(database: Connection, rows: readonly BotRunRow[]): Promise<void> {
  await database.query({
    name: 'bot-run-add',
    text: `insert into bot_run (bot, started, id, project, record, archived)
      select * from unnest($1::uuid[], $2::timestamptz[], $3::uuid[], $4::int[], $5::text[], $6::boolean[])
      on conflict do nothing`,
    values: [
      encodeArray(rows, ({ bot }) => bot),
      encodeArray(rows, ({ started }) => started.toISOString()),
      encodeArray(rows, ({ id }) => id),
      encodeArray(rows, ({ project }) => project),
      // JSON in JSON: of what an array has to escape there are only quotes and backslashes in it.
      encodeArray(rows, ({ record }) => JSON.stringify(JSON.stringify(record))),
      encodeArray(rows, ({ record }) => record.archive !== undefined),
    ],
  })
}

/** An array as PostgreSQL reads it. The driver looks through every value for what it has to escape. */
function encodeArray(
  rows: readonly BotRunRow[],
  toValue: (row: BotRunRow) => string | number | boolean,
): string {
  return `{${rows.map(toValue).join(',')}}`
}

/** Where a page begins: behind this run. */
export type BotRunCursor = Pick<BotRunRow, 'started' | 'id'>

export interface RunQuery {
  readonly bot: string
  readonly project: number | undefined
  readonly after?: BotRunCursor | undefined
  /** The attempts of this run alone. */
  readonly id?: string | undefined
  readonly count: number
}

/** The latest first; `project` undefined: those of every Project. */
export async function findBotRuns(
  database: Connection,
  { bot, project, after, id, count }: RunQuery,
): Promise<readonly BotRunRow[]> {
  const rows = await database.query<StoredRow>({
    name: 'bot-run-find',
    text: `select bot, started, id, project, record from bot_run
      where bot = $1 and ($2::int is null or project = $2)
        and ($3::timestamptz is null or (started, id) < ($3, $4::uuid))
        and ($6::uuid is null or id = $6)
      order by started desc, id desc limit $5`,
    values: [bot, project ?? null, after?.started ?? null, after?.id ?? null, count, id ?? null],
  })
  return rows.map(toRow)
}

/** The latest attempt of a run whose input is kept. */
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

/** Keeps the latest of each of these bots; answers where inputs of the others are. */
export async function trimBotRuns(
  database: Connection,
  bots: readonly string[],
): Promise<readonly string[]> {
  const removed = await database.query<RemovedRow>({
    name: 'bot-run-trim',
    text: `delete from bot_run r using unnest($1::uuid[]) as b (bot), lateral (
        select started from bot_run where bot = b.bot
        order by started desc, id desc offset ${KEPT_OF_A_BOT} limit 1
      ) as last
      where r.bot = b.bot and r.started <= last.started
      returning case when r.archived then r.record end as record`,
    values: [bots],
  })
  return archivePlaces(removed)
}

/** Forgets runs that are a week old; answers where their inputs are. */
export async function removeOldBotRuns(database: Connection): Promise<readonly string[]> {
  const removed = await database.query<RemovedRow>({
    name: 'bot-run-remove-old',
    text: `delete from bot_run where (bot, started, id) in (
      select bot, started, id from bot_run
      where started < clock_timestamp() - interval '${KEPT}' limit ${FORGOTTEN_AT_ONCE})
      returning case when archived then record end as record`,
    values: [],
  })
  return archivePlaces(removed)
}

interface StoredRow extends Omit<BotRunRow, 'record'> {
  readonly record: string
}

interface RemovedRow {
  /** Null for a run whose input was not kept. */
  readonly record: string | null
}

// Both written by addBotRuns.
function archivePlaces(rows: readonly RemovedRow[]): readonly string[] {
  return rows.flatMap(({ record }) => {
    const { archive } = JSON.parse(record ?? '{}') as Partial<BotRunRecord>
    return archive === undefined ? [] : [archive.place]
  })
}

function toRow({ record, ...row }: StoredRow): BotRunRow {
  return { ...row, record: JSON.parse(record) as BotRunRecord }
}
