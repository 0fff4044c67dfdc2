/** Exports that have ended for good: what they leave in the storage, and in the tables. */
import type { Connection } from '../../../platform/postgres/statement.ts'
import type { ExportFile } from './files.ts'
import type { PartKind } from './part.ts'

/** A download that had begun by then is let come to its end. */
const DOWNLOAD = "interval '1 hour'"

export interface EndedExport {
  readonly id: string
  readonly projectId: string
}

/** Cancelled, failed or expired; nobody works on it any more, and no download has just begun. */
export async function endedExport(connection: Connection): Promise<EndedExport | undefined> {
  const [found] = await connection.query<EndedExport>({
    name: 'export-ended',
    text: `select j.id, j.input->>'projectId' as "projectId" from export_job j
      where not j.swept and (j.expires < clock_timestamp() or (j.state in ('cancelled', 'error')
          and coalesce(j.downloaded < clock_timestamp() - ${DOWNLOAD}, true)))
        and not exists (select 1 from export_part p
          where p.job = j.id and p.state = 'active' and p.lease > clock_timestamp())
      order by j.finished limit 1 for update of j skip locked`,
    values: [],
  })
  return found
}

/** Blocks of one taking of a part. */
export interface Written {
  readonly part: number
  readonly kind: PartKind
  readonly epoch: number
  /** The last one that was written down; -1 for none. */
  readonly last: number
}

export async function writtenBlocks(
  connection: Connection,
  job: string,
): Promise<readonly Written[]> {
  return connection.query<Written>({
    name: 'export-written',
    text: `select p.n as part, p.kind, e.epoch, coalesce(max((b.value->>1)::int), -1) as last
      from export_part p cross join generate_series(1, p.epoch) e(epoch)
      left join export_file f on f.job = p.job and f.part = p.n
      left join jsonb_array_elements(f.blocks) b on (b.value->>0)::int = e.epoch
      where p.job = $1 and p.kind <> 'plan' group by p.n, p.kind, e.epoch`,
    values: [job],
  })
}

/** Files that may be there as one object each. */
export async function wholeFiles(
  connection: Connection,
  job: string,
): Promise<readonly Pick<ExportFile, 'part' | 'seq'>[]> {
  return connection.query({
    name: 'export-whole',
    text: `select f.part, f.seq from export_job j join export_file f on f.job = j.id
      where j.id = $1 and (j.input->>'presigned')::boolean`,
    values: [job],
  })
}

const TABLES = ['export_part', 'export_file', 'export_member', 'export_list', 'export_compartment']

/** The job itself stays, for whoever asks what has become of it. */
export async function markSwept(connection: Connection, job: string): Promise<void> {
  for (const table of TABLES) {
    await connection.query({ text: `delete from ${table} where job = $1`, values: [job] })
  }
  await connection.query({
    name: 'export-swept',
    text: 'update export_job set swept = true where id = $1',
    values: [job],
  })
}

/** Removes exports that ended before a time and have no files left. */
export async function forgetExports(connection: Connection, before: Date): Promise<void> {
  await connection.query({
    name: 'export-forget',
    text: `with j as (delete from export_job where swept and finished < $1 returning id),
        c as (delete from export_compartment c using j where c.job = j.id)
      delete from export_list l using j where l.job = j.id`,
    values: [before],
  })
}
