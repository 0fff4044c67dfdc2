/** What a policy's chain leads to is looked up row by row: one probe of a B-tree instead of one of all keys. */
import type { Knex } from 'knex'

/**
 * Types that others refer to for their sake: Patient, Encounter, RelatedPerson, Practitioner,
 * PractitionerRole, Organization, Location, CareTeam, Group, EpisodeOfCare, Coverage, Device. The first
 * key of a row is its own. A statement has to ask in the same words, of which no other index is reminded.
 */
const INDEX = `
create index resource_self on resource ((keys[1]))
  where (type in (112, 51, 125, 117, 118, 109, 79, 20, 65, 55, 37, 41)) is true
`

export async function up(knex: Knex): Promise<void> {
  await knex.raw(INDEX)
}

export async function down(knex: Knex): Promise<void> {
  await knex.raw('drop index resource_self')
}
