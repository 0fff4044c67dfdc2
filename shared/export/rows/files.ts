/** Export files: their blocks and their names. */

import { typeNumber } from '../../fhir/definitions.ts'
import { isHeld } from '../../jobs/part-queue.ts'
import type { Database } from '../../postgres/database.ts'
import { type Lease, leaseValues } from '../../postgres/leases.ts'
import { type Connection, hasRows } from '../../postgres/statement.ts'
import type { PartKind } from './jobs.ts'
import { type LeasedExportPart, PARTS, partLease } from './parts.ts'

export type FileKind = 'output' | 'deleted' | 'error'

/** A separately stored block of whole lines: its lease token, its number under that lease, and its sizes. */
type Block = readonly [token: number, seq: number, bytes: number, packed: number, rows: number]

export interface ExportFile {
  readonly part: number
  readonly seq: number
  readonly kind: FileKind
  readonly type: string
  readonly number: number
  readonly rows: number
  /** Bytes of all lines; `packed` counts the stored bytes. */
  readonly bytes: number
  readonly packed: number
  readonly crc: number
  /** Starts with the rest of a patient from the previous part's file. */
  readonly goesOn: boolean
  readonly blocks: readonly Block[]
}

type OpenFile = Omit<ExportFile, 'number'>

const COLUMNS = `part, seq, kind, type, number, rows::float8 as rows, bytes::float8 as bytes,
  packed::float8 as packed, crc::float8 as crc, goes_on as "goesOn"`

/** A stored block and its file so far; an incomplete file continues with the next block. */
export interface StoredBlock {
  readonly file: Pick<ExportFile, 'seq' | 'type' | 'crc' | 'goesOn'>
  readonly block: Block
  readonly isWhole: boolean
}

/** Progress of a part: after a row of a type. */
export interface Position {
  readonly type: string
  readonly after: string
}

interface WrittenBlocks {
  /** The kind of their files. */
  readonly kind: FileKind
  readonly blocks: readonly StoredBlock[]
  readonly reached: Position
  readonly isLast: boolean
}

/** $1 to $3: the part, $4 and $5: its progress, $6: whether it ends here, $7: the kind of its files, $8: the blocks. */
const BLOCKS_SQL = `with b as (select x.*, $7::text || ' ' || x.type as name,
          row_number() over (partition by x.type, x.whole order by x.seq) as place
        from jsonb_to_recordset($8::jsonb) as x(seq int, type text, rows bigint, bytes bigint, packed bigint,
          crc bigint, block jsonb, whole boolean, goes_on boolean)),
      p as (update export_part p set after = $4, type = coalesce($5, p.type),
          rows = p.rows + (select sum(b.rows) from b), tries = 0, failures = 0,
          state = case when $6 then 'done' else p.state end,
          lease = case when $6 then null else p.lease end
        from export_job j where j.id = p.job and j.state = 'active'
          and ${isHeld(PARTS, 'p')} returning p.job, p.n),
      w as (select jsonb_object_agg(name, files) as whole from (select name, count(*) as files
        from b where whole group by name) x having count(*) > 0),
      j as (update export_job j set numbers = j.numbers || (select jsonb_object_agg(name,
            coalesce((j.numbers->>name)::int, 0) + files::int) from jsonb_each_text(w.whole) x(name, files))
        from p, w where j.id = p.job returning j.numbers, w.whole),
      f as (insert into export_file as f
          (job, part, seq, kind, type, rows, bytes, packed, crc, blocks, goes_on, number)
        select p.job, p.n, b.seq, $7, b.type, b.rows, b.bytes, b.packed, b.crc,
          jsonb_build_array(b.block), b.goes_on, case when b.whole
            then (j.numbers->>b.name)::int - (j.whole->>b.name)::int + b.place end
        from p cross join b left join j on true
        on conflict (job, part, seq) do update set rows = f.rows + excluded.rows,
          bytes = f.bytes + excluded.bytes, packed = f.packed + excluded.packed,
          crc = excluded.crc, blocks = f.blocks || excluded.blocks, number = excluded.number)
      select n from p`

/** Records stored blocks, at most one per file. The last ones end their part. False when the lease or job has ended. */
export async function addBlocks(
  connection: Connection,
  taken: LeasedExportPart,
  { kind, blocks, reached, isLast }: WrittenBlocks,
): Promise<boolean> {
  const rows = blocks.map(({ file, block, isWhole }) => {
    const { seq, type, crc, goesOn } = file
    const [, , bytes, packed, rows] = block
    return { seq, type, rows, bytes, packed, crc, block, whole: isWhole, goes_on: goesOn }
  })
  return await hasRows(connection, {
    name: 'export-blocks',
    text: BLOCKS_SQL,
    values: [
      ...leaseValues(partLease(taken)),
      reached.after,
      taken.part.types.length > 0 ? typeNumber(reached.type) : null,
      isLast,
      kind,
      JSON.stringify(rows),
    ],
  })
}

/** SQL: increments the file number for the kind and type `f.name`. */
const NEXT_NUMBER = `jsonb_build_object(f.name, coalesce((j.numbers->>f.name)::int, 0) + 1)`

export async function nameFile(connection: Connection, lease: Lease, seq: number): Promise<void> {
  await connection.query({
    name: 'export-file-name',
    text: `with f as (select f.kind || ' ' || f.type as name from export_file f
        join export_part p on p.job = f.job and p.n = f.part and ${isHeld(PARTS, 'p')}
        where f.seq = $4 and f.number is null),
      j as (update export_job j set numbers = j.numbers || ${NEXT_NUMBER}
        from f where j.id = $1 returning (j.numbers->>f.name)::int as number)
      update export_file set number = j.number from j
      where job = $1 and part = $2 and seq = $4`,
    values: [...leaseValues(lease), seq],
  })
}

/** Returns a part's last file, complete or not, and its number of files. */
export async function lastFile(
  connection: Connection,
  job: string,
  part: number,
): Promise<(OpenFile & { readonly number: number | null }) | undefined> {
  const [file] = await connection.query<OpenFile & { number: number | null }>({
    name: 'export-last-file',
    text: `select ${COLUMNS}, blocks from export_file where job = $1 and part = $2
      order by seq desc limit 1`,
    values: [job, part],
  })
  return file
}

/** Publishes complete files as the next page. A file that another part may continue waits: pages never change. */
export async function addPage(database: Database, job: string): Promise<number> {
  return database.transaction(async (connection) => {
    const values = [job]
    await connection.query({ text: 'select 1 from export_job where id = $1 for update', values })
    const [row] = await connection.query<{ pages: number }>({
      text: `with f as (update export_file f set page = j.pages + 1 from export_job j
          where j.id = $1 and f.job = j.id and f.number is not null and f.page is null
            and (j.input->>'organizedBy' is null or f.kind <> 'output' or exists (select 1
              from export_part p where p.job = f.job and p.n = f.part and p.state = 'done'))
          returning 1)
        update export_job set pages = pages + least(1, (select count(*) from f))
        where id = $1 returning pages`,
      values,
    })
    return row?.pages ?? 0
  })
}

export async function listFiles(
  connection: Connection,
  job: string,
  page?: number,
): Promise<readonly Omit<ExportFile, 'blocks'>[]> {
  return connection.query({
    name: 'export-files',
    text: `select ${COLUMNS} from export_file where job = $1 and number is not null
        and ($2::int is null or page = $2) order by kind, type collate "C", number`,
    values: [job, page ?? null],
  })
}

export async function filesOfPart(
  connection: Connection,
  job: string,
  part: number,
): Promise<readonly ExportFile[]> {
  return connection.query({
    name: 'export-part-files',
    text: `select ${COLUMNS}, blocks from export_file
      where job = $1 and part = $2 and number is not null order by seq`,
    values: [job, part],
  })
}

export async function findFile(
  connection: Connection,
  job: string,
  { kind, type, number }: Pick<ExportFile, 'kind' | 'type' | 'number'>,
): Promise<ExportFile | undefined> {
  const [file] = await connection.query<ExportFile>({
    name: 'export-file',
    text: `select ${COLUMNS}, blocks from export_file
      where job = $1 and kind = $2 and type = $3 and number = $4`,
    values: [job, kind, type, number],
  })
  return file
}

/** Grace period for downloads in progress. */
const DOWNLOAD = "interval '1 hour'"

interface EndedExport {
  readonly id: string
  readonly projectId: string
}

/** Returns a cancelled, failed or expired export without running parts or recent downloads. */
export async function endedExport(connection: Connection): Promise<EndedExport | undefined> {
  const [found] = await connection.query<EndedExport>({
    name: 'export-ended',
    text: `select j.id, j.input->>'projectId' as "projectId" from export_job j
      where not j.swept and (j.expires < clock_timestamp() or (j.state in ('cancelled', 'error')
          and coalesce(j.downloaded < clock_timestamp() - ${DOWNLOAD}, true)))
        and not exists (select 1 from export_part p
          where p.job = j.id and p.state = 'active' and p.lease > clock_timestamp())
      order by j.finished limit 1 for update of j skip locked`,
  })
  return found
}

interface Written {
  readonly part: number
  readonly kind: PartKind
  readonly token: number
  readonly last: number
}

export async function writtenBlocks(
  connection: Connection,
  job: string,
): Promise<readonly Written[]> {
  return connection.query<Written>({
    name: 'export-written',
    text: `select p.n as part, p.kind, e.token, coalesce(max((b.value->>1)::int), -1) as last
      from export_part p cross join generate_series(1, p.epoch) e(token)
      left join export_file f on f.job = p.job and f.part = p.n
      left join jsonb_array_elements(f.blocks) b on (b.value->>0)::int = e.token
      where p.job = $1 and p.kind <> 'plan' group by p.n, p.kind, e.token`,
    values: [job],
  })
}

/** Returns files that may be stored as one object each. */
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

const TABLES = ['export_part', 'export_file', 'export_member', 'export_compartment']

/** Keeps the job itself, so that its status can still be read. */
export async function deleteExportRows(connection: Connection, job: string): Promise<void> {
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
export async function deleteOldExports(connection: Connection, before: Date): Promise<void> {
  await connection.query({
    name: 'export-forget',
    text: `with j as (delete from export_job where swept and finished < $1 returning id)
      delete from export_compartment c using j where c.job = j.id`,
    values: [before],
  })
}
