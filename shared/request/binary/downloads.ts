/** Downloads of external attachments, as rows of table `job` added by the statement that writes the version. */

import { leaseNext, releaseLeased } from '../../postgres/leases.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { WritePart } from '../../store/rows/context.ts'
import { JOBS, jobLease, type LeasedJob } from '../../store/rows/upkeep-jobs.ts'

export interface DownloadInput {
  readonly projectId: string
  readonly type: string
  readonly id: string
  readonly ver: number
}

export interface Download extends LeasedJob {
  readonly input: DownloadInput
  /** Includes this one. */
  readonly attempt: number
}

const EXTERNAL = /"url":\s*"https:\/\//

/** Skips versions without external URLs, in another Project than the writer's, or written by the service itself. */
export function downloadPart(isOn: boolean): WritePart<DownloadInput> {
  return {
    types: isOn ? undefined : new Set(),
    buildRow({ principal, place, resource, tail }) {
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

export async function leaseDownload(connection: Connection): Promise<Download | undefined> {
  return await leaseNext<Download>(connection, JOBS, {
    name: 'download-lease',
    // Workers of the previous version record no lease, only the time when others may take the job.
    where: `x.kind = 'download' and (x.held is not null or x.touched <= clock_timestamp())`,
    orderBy: 'x.touched',
    set: `state = 'active', started = coalesce(x.started, clock_timestamp()),
      progress = to_jsonb(coalesce(x.progress::int, 0) + 1)`,
    returning: 'x.id, x.input, x.progress::int as attempt',
  })
}

/** Retries after `delayMs`. Returns false when the lease was lost. */
export async function repeatDownload(
  connection: Connection,
  job: LeasedJob,
  delayMs: number,
): Promise<boolean> {
  return await releaseLeased(connection, JOBS, jobLease(job), {
    name: 'download-repeat',
    set: `state = 'waiting', held = null,
      touched = clock_timestamp() + $3::float8 * interval '1 ms'`,
    values: [delayMs],
  })
}
