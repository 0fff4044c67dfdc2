/** Records of runs: a row per attempt, kept for a week and at most the latest thousand per bot. */
import type { Connection } from '../postgres/statement.ts'

const KEPT = '7 days'
const KEPT_OF_A_BOT = 1000
const FORGOTTEN_AT_ONCE = 5000

export interface BotRunRecord extends RecordedCalls {
  readonly status: string
  readonly durationMs: number
  readonly cpuMs: number
  readonly memoryMb?: number | undefined
  readonly version: number
  readonly attempt: number
  /** Reason and duration of the wait for a slot in the worker. */
  readonly hold?: { readonly reason: string; readonly ms: number } | undefined
  readonly mode: 'sync' | 'async' | 'event' | 'schedule'
  readonly requester?: string | undefined
  readonly runAs?: string | undefined
  readonly traceId: string
  readonly error?: string | undefined
  readonly log: string
  readonly archive?: InputArchive | undefined
}

export interface RecordedCalls {
  readonly calls?: readonly CallRecord[] | undefined
  readonly callCount?: number | undefined
}

/** A request of a run, without headers and bodies. */
export interface CallRecord {
  readonly method: string
  /** Relative to `fhir/R4/`; for other services the URL without its query. */
  readonly path: string
  readonly status?: number
  readonly ms?: number
  /** `Type/id/_history/version` of a write; `Type/id` of a deletion or a Bundle entry. */
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
      encodeArray(rows, ({ bot }) => bot),
      encodeArray(rows, ({ started }) => started.toISOString()),
      encodeArray(rows, ({ id }) => id),
      encodeArray(rows, ({ project }) => project),
      // Nested JSON contains only quotes and backslashes to escape in an array.
      encodeArray(rows, ({ record }) => JSON.stringify(JSON.stringify(record))),
      encodeArray(rows, ({ record }) => record.archive !== undefined),
    ],
  })
}

/** Encodes a PostgreSQL array; the driver would scan every value for escapes. */
function encodeArray(
  rows: readonly BotRunRow[],
  toValue: (row: BotRunRow) => string | number | boolean,
): string {
  return `{${rows.map(toValue).join(',')}}`
}

export type BotRunCursor = Pick<BotRunRow, 'started' | 'id'>

export interface RunQuery {
  readonly bot: string
  readonly project: number | undefined
  readonly after?: BotRunCursor | undefined
  /** Only the attempts of this run. */
  readonly id?: string | undefined
  readonly count: number
}

/** Latest first; all Projects if `project` is undefined. */
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

/** Keeps the latest runs per bot; returns the locations of the other inputs. */
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

/** Deletes runs older than a week; returns the locations of their inputs. */
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
