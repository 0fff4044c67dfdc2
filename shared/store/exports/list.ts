/**
 * Rows that an export has found before they are read: arrays of row ids, sorted, some of them perhaps in
 * several. `low` and `high` are the first and the last of an array.
 */
import type { Connection } from '../../database.ts'
import type { Bind } from '../side-rows.ts'
import type { Range } from './select.ts'

/** How many rows of a type a statement has listed. */
export interface Listed {
  readonly type: number
  readonly rows: number
}

/** A statement that lists what `rows` gives, of which it reads the columns `type` and `id`. Answers `Listed`. */
export function listingSql(job: string, rows: string): string {
  return `insert into export_list (job, type, low, high, ids)
    select ${job}, type, ids[1], ids[cardinality(ids)], ids
    from (select type, array_agg(distinct id order by id) as ids from (${rows}) r group by type) x
    returning type, cardinality(ids) as rows`
}

/** Those of a type, each once and in their order, as the column `id`. */
export function listedIdsSql(
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
  return `select distinct x.id from export_list l cross join lateral unnest(l.ids) x(id)
    where ${tests.join(' and ')} order by x.id`
}

/** Makes arrays of `size` of what is listed of a type, one behind the other. Answers their last ids. */
export async function cutList(
  connection: Connection,
  job: string,
  type: number,
  size: number,
): Promise<readonly string[]> {
  const rows = await connection.query<{ high: string }>({
    text: `with d as (delete from export_list where job = $1 and type = $2 returning ids),
        i as (select distinct x.id from d cross join lateral unnest(d.ids) x(id)),
        c as (select id, (row_number() over (order by id) - 1) / $3 as n from i),
        a as (select array_agg(id order by id) as ids from c group by n)
      insert into export_list (job, type, low, high, ids)
        select $1, $2, ids[1], ids[cardinality(ids)], ids from a returning high`,
    values: [job, type, size],
  })
  return rows.map(({ high }) => high).sort()
}
