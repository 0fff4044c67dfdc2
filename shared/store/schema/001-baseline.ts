/** The schema of version 0.1: each file of the folder beside this one holds the tables of a subject. */
import { readFile } from 'node:fs/promises'
import type { Knex } from 'knex'

const SUBJECTS = ['resources', 'search', 'terminology', 'bots', 'events', 'jobs', 'bulk'] as const

export async function up(knex: Knex): Promise<void> {
  for (const subject of SUBJECTS) {
    const file = new URL(`001-baseline/${subject}.sql`, import.meta.url)
    await knex.raw(await readFile(file, 'utf8'))
  }
}

/** Nothing comes before the baseline. */
export async function down(): Promise<void> {
  throw new Error('The baseline cannot be undone; drop the database instead')
}
