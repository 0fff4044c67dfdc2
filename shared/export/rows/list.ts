/**
 * Rows that the plan of an export has found: sorted arrays of row ids, `low` and `high` the first and the last of an array.
 * A row may be in several. Exports by patient have them for each compartment.
 */
import { typeNumber } from '../../fhir/definitions.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { Bind } from '../../store/rows/side-rows.ts'
import type { Range } from './jobs.ts'

/** How many rows of a type a statement has listed. */
export interface ListedRows {
  readonly type: number
  readonly rows: number
}

/**
 * A statement that lists what `rows` gives, of which it reads the columns `type`, `id` and `ver`: how many versions
 * there are. Answers `Listed`.
 */
export function listingSql(job: string, rows: string): string {
  return `insert into export_list (job, type, low, high, ids, versions)
    select ${job}, type, ids[1], ids[cardinality(ids)], ids, versions
    from (select type, array_agg(distinct id order by id) as ids, sum(ver) as versions
      from (${rows}) r group by type) x
    returning type, cardinality(ids) as rows`
}

/** Inserts the result of `rows`, of which it reads `patient`, `place`, `ruling` and `id`. */
export function compartmentsSql(job: string, rows: string): string {
  return `insert into export_compartment (job, patient, place, ruling, ids)
    select ${job}, patient, place, ruling, array_agg(distinct id order by id)
    from (${rows}) r group by patient, place, ruling`
}

/** The number of the type at a place of a compartment. */
export function typeAtPlace(table: string): string {
  const patient = typeNumber('Patient')
  return `(case ${table}.place when 0 then ${patient} else ${table}.place end)`
}

/** Selects the listed ids of a type, each once and in order, as the column `id`. */
export function listedIdsSql(job: string, type: number, range: Range, bind: Bind): string {
  return `select distinct id from (${listedRowsSql(job, type, range, bind)}) l order by id`
}

/** The same in no order, and some of them perhaps several times. */
export function listedRowsSql(
  job: string,
  type: number,
  { low, high, ids }: Range,
  bind: Bind,
): string {
  const [above, upTo] = [low, high].map((id) => id && bind(id, 'uuid'))
  const tests = [
    `l.job = ${bind(job, 'uuid')} and l.type = ${bind(type, 'smallint')}`,
    ...(above === undefined ? [] : [`l.high > ${above} and x.id > ${above}`]),
    ...(upTo === undefined ? [] : [`l.low <= ${upTo} and x.id <= ${upTo}`]),
    ...(ids === undefined ? [] : [`x.id = any(${bind(ids, 'uuid[]')})`]),
  ]
  return `select x.id from export_list l cross join lateral unnest(l.ids) x(id)
    where ${tests.join(' and ')}`
}

/** Returns the types that have at most so many versions for each listed row. */
export async function listedWithFew(
  connection: Connection,
  job: string,
  types: readonly number[],
  most: number,
): Promise<ReadonlySet<number>> {
  const rows = await connection.query<{ type: number }>({
    text: `select type from export_list where job = $1 and type = any($2) group by type
      having bool_and(versions is not null) and sum(versions) <= $3::float8 * sum(cardinality(ids))`,
    values: [job, types, most],
  })
  return new Set(rows.map(({ type }) => type))
}

/** Makes arrays of `size` of what is listed of a type, one behind the other. Answers their last ids. */
export async function cutList(
  connection: Connection,
  job: string,
  type: number,
  size: number,
): Promise<readonly string[]> {
  const rows = await connection.query<{ high: string }>({
    text: `with d as (delete from export_list where job = $1 and type = $2 returning ids, versions),
        s as (select sum(versions) / sum(cardinality(ids)) as each from d
          having bool_and(versions is not null)),
        i as (select distinct x.id from d cross join lateral unnest(d.ids) x(id)),
        c as (select id, (row_number() over (order by id) - 1) / $3 as n from i),
        a as (select array_agg(id order by id) as ids from c group by n)
      insert into export_list (job, type, low, high, ids, versions)
        select $1, $2, ids[1], ids[cardinality(ids)], ids,
          (select ceil(each * cardinality(ids)) from s) from a returning high`,
    values: [job, type, size],
  })
  return rows.map(({ high }) => high).sort()
}
