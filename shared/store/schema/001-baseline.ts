/** Schema of version 0.1; the folder next to this file has one SQL file per subject. */
import { readFile } from 'node:fs/promises'
import type { Knex } from 'knex'

const SUBJECTS = ['resources', 'search', 'terminology', 'bots', 'events', 'jobs', 'bulk'] as const

export async function up(knex: Knex): Promise<void> {
  for (const subject of SUBJECTS) {
    const file = new URL(`001-baseline/${subject}.sql`, import.meta.url)
    await knex.raw(await readFile(file, 'utf8'))
  }
}

export async function down(): Promise<void> {
  throw new Error('The baseline cannot be undone; drop the database instead')
}
