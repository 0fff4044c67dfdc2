/** Patients with accounts, which new resources of their compartments inherit: few, so few pages to look at. */
import type { Knex } from 'knex'

/** 112 is Patient; a statement that asks in the same words is answered from this index. */
const INDEX = `
create index account_holder on version (project, id)
  where type = 112 and meta_ext like '%"accounts":%'
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(INDEX)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop index account_holder')
}
