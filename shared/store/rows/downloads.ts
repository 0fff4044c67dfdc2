/**
 * Versions whose external attachments are to be fetched: rows of table `job`, put there by the
 * statement that writes the version, until a worker is done with them.
 */

import type { Principal } from '../../access/principal.ts'
import type { Connection } from '../../platform/postgres/statement.ts'
import type { Store } from './context.ts'
import type { Place } from './ports.ts'
import type { Bind, Listed } from './side-rows.ts'
import type { DownloadInput } from './write-rows.ts'

export interface Download {
  readonly job: string
  readonly input: DownloadInput
  /** This one included. */
  readonly attempt: number
}

/** An attempt that has not ended by now has died with its worker. */
const LEASE = '15 minutes'

const EXTERNAL = /"url":\s*"https:\/\//

/**
 * Undefined where nothing is to be fetched: downloads are off, or the version has no such address, is in
 * another Project than its writer, or is written by the service itself.
 */
export function downloadOf(
  { autoDownload }: Store,
  principal: Principal,
  type: string,
  { projectId, id, ver }: Place,
  tail: string,
): DownloadInput | undefined {
  if (!autoDownload || !EXTERNAL.test(tail)) return undefined
  const isOwn = projectId === principal.project.id && principal.membershipId !== undefined
  return isOwn ? { projectId, type, id, ver } : undefined
}

/** For the rows that are really written. */
export function downloadRows(downloads: readonly Listed<DownloadInput>[], bind: Bind): string {
  const numbers = bind(`{${downloads.map(({ n }) => n).join(',')}}`, 'int[]')
  const inputs = bind(
    downloads.map(({ item }) => JSON.stringify(item)),
    'text[]',
  )
  return `dl as (insert into job (id, project, kind, state, input)
    select gen_random_uuid(), w.project, 'download', 'waiting', x.input::jsonb
    from unnest(${numbers}, ${inputs}) as x(n, input) join w using (n))`
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
