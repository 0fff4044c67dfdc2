/** Chains stop here: what they hand to the next step is an array, and an array has an end. */
import type { Knex } from 'knex'

const FUNCTION = `
create function search_cap(keys bigint[], most int) returns bigint[]
language plpgsql immutable parallel safe as $$
begin
  if cardinality(keys) > most then
    raise exception 'more than % keys', most using errcode = 'BT001';
  end if;
  return keys;
end $$
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(FUNCTION)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop function search_cap')
}
