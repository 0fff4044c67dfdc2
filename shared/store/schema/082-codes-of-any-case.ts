/** Finds imported concepts of CodeSystems that ignore the case of codes. */
import type { Knex } from 'knex'

export async function up(knex: Knex): Promise<void> {
  await knex.raw('create index if not exists concept_lower_code on concept (owner, lower(code))')
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop index concept_lower_code')
}
