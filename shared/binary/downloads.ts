/**
 * Versions whose external attachments are to be fetched are rows of table `job`. The statement that writes the
 * version adds the row, and a worker removes it when it has fetched them.
 */

import type { Connection } from '../platform/postgres/statement.ts'
import type { WritePart } from '../store/rows/context.ts'

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

const EXTERNAL = /"url":\s*"https:\/\//

/**
 * Nothing is fetched for a version without such an address, in another Project than its writer's, or written by the
 * service itself.
 */
export function downloadPart(isOn: boolean): WritePart<DownloadInput> {
  return {
    types: isOn ? undefined : new Set(),
    rowOf({ principal, place, resource, tail }) {
      const { projectId, id, ver } = place
      if (!EXTERNAL.test(tail) || principal.membershipId === undefined) return undefined
      if (projectId !== principal.project.id) return undefined
      return { projectId, type: resource.resourceType, id, ver }
    },
    sql(downloads, bind) {
      const numbers = bind(`{${downloads.map(({ n }) => n).join(',')}}`, 'int[]')
      const inputs = bind(
        downloads.map(({ item }) => JSON.stringify(item)),
        'text[]',
      )
      const insert = `dl as (insert into job (id, project, kind, state, input)
    select gen_random_uuid(), w.project, 'download', 'waiting', x.input::jsonb
    from unnest(${numbers}, ${inputs}) as x(n, input) join w using (n))`
      return { name: 'downloads', sql: [insert] }
    },
    planned: (rows) => `dl as (insert into job (id, project, kind, state, input)
    select gen_random_uuid(), $1::int, 'download', 'waiting', input::jsonb
    from ${rows})`,
  }
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
