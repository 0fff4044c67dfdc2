/**
 * Types of which an export has few resources share a part: `types`, in their order; `type` is the one that `after`
 * is of. What is listed is told with how many `versions` it has.
 */
import type { Knex } from 'knex'

/** A part of one type each, of what a shared part has not begun yet; what it has begun stays its own. */
const APART = `
insert into export_part (job, n, kind, type)
  select p.job, m.last + row_number() over (partition by p.job order by p.n, t.place), 'output', t.type
  from export_part p
  join (select job, max(n) as last from export_part group by job) m on m.job = p.job
  cross join lateral unnest(p.types) with ordinality t(type, place)
  where p.kind = 'shared' and p.state <> 'done'
    and t.place > coalesce(array_position(p.types, p.type), 1);
update export_part set kind = 'output', type = coalesce(type, types[1]) where kind = 'shared';
alter table export_part drop column types;
alter table export_list drop column versions;
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(`alter table export_part add column types smallint[];
    alter table export_list add column versions bigint`)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(APART)
}
