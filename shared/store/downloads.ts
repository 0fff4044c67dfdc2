/** Versions whose external attachments are to be fetched: rows of table `job` until a worker is done with them. */
import { randomUUID } from 'node:crypto'
import type { Connection } from '../database.ts'

export interface DownloadInput {
  readonly projectId: string
  readonly type: string
  readonly id: string
  readonly ver: number
}

export interface Download {
  readonly job: string
  readonly input: DownloadInput
  /** This one included. */
  readonly attempt: number
}

/** An attempt that has not ended by now has died with its worker. */
const LEASE = '15 minutes'

/** Done once the transaction of `connection` is committed. Nothing for a Project that is gone. */
export async function addDownload(
  connection: Connection,
  project: number,
  input: DownloadInput,
): Promise<void> {
  await connection.query({
    name: 'download-add',
    text: `insert into job (id, project, kind, state, input) values ($1, $2, 'download', 'waiting', $3)`,
    values: [randomUUID(), project, JSON.stringify(input)],
  })
}

/** The one that has waited longest. */
export async function takeDownload(connection: Connection): Promise<Download | undefined> {
  const [download] = await connection.query<Download>({
    name: 'download-take',
    text: `update job set state = 'active', touched = clock_timestamp() + interval '${LEASE}',
        started = coalesce(started, clock_timestamp()),
        progress = to_jsonb(coalesce(progress::int, 0) + 1)
      where id = (select id from job where kind = 'download' and touched <= clock_timestamp()
        order by touched limit 1 for update skip locked)
      returning id as job, input, progress::int as attempt`,
    values: [],
  })
  return download
}

export async function repeatDownload(
  connection: Connection,
  job: string,
  delayMs: number,
): Promise<void> {
  await connection.query({
    name: 'download-repeat',
    text: `update job set state = 'waiting',
      touched = clock_timestamp() + $2::float8 * interval '1 ms' where id = $1`,
    values: [job, delayMs],
  })
}
