/** Histories are sorted by type, id and version within a time anyway: their index needs no id. */
import type { Knex } from 'knex'

const replaceIndex = (columns: string) => `
drop index version_lu;
create index version_lu on version (${columns});
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(replaceIndex('project, type, lu'))
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw(replaceIndex('project, type, lu, id'))
}
