/** Row ids found by the plan, as sorted arrays with their bounds `low` and `high`; a row may be in several. */
import { typeNumber } from '../../fhir/definitions.ts'
import type { Connection } from '../../postgres/statement.ts'
import type { Bind } from '../../store/rows/side-rows.ts'
import type { Range } from './jobs.ts'

export interface ListedRows {
  readonly type: number
  readonly rows: number
}

/** SQL: lists the result of `rows`, with columns `type`, `id` and `ver` (the number of versions). Returns `Listed`. */
export function listingSql(job: string, rows: string): string {
  return `insert into export_list (job, type, low, high, ids, versions)
    select ${job}, type, ids[1], ids[cardinality(ids)], ids, versions
    from (select type, array_agg(distinct id order by id) as ids, sum(ver) as versions
      from (${rows}) r group by type) x
    returning type, cardinality(ids) as rows`
}

/** SQL: inserts the result of `rows`, with columns `patient`, `place`, `ruling` and `id`. */
export function compartmentsSql(job: string, rows: string): string {
  return `insert into export_compartment (job, patient, place, ruling, ids)
    select ${job}, patient, place, ruling, array_agg(distinct id order by id)
    from (${rows}) r group by patient, place, ruling`
}

export function typeAtPlace(table: string): string {
  const patient = typeNumber('Patient')
  return `(case ${table}.place when 0 then ${patient} else ${table}.place end)`
}

/** SQL: selects the listed ids of a type, distinct and in order, as column `id`. */
export function listedIdsSql(job: string, type: number, range: Range, bind: Bind): string {
  return `select distinct id from (${listedRowsSql(job, type, range, bind)}) l order by id`
}

/** Like `listedIdsSql`, but unordered and possibly with duplicates. */
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

/** Returns the types with at most this many versions per listed row. */
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

/** Rearranges the list of a type into consecutive arrays of `size`. Returns their last ids. */
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
