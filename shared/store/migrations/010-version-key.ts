/**
 * Versions by id before type: ids grow with time, so new entries go to the right edge of the B-tree,
 * whose pages stay full. With the type in front each page was split in half: 88 bytes a row, not 50.
 */
import type { Knex } from 'knex'

const replaceKey = (columns: string) => `
alter table version drop constraint version_pkey;
alter table version add primary key (${columns});
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(replaceKey('project, id, type, ver'))
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(replaceKey('project, type, id, ver'))
}
