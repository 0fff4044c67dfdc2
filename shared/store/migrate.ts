/** Runs missing migrations, and compares the index revision of the code with that of the stored rows. */

import { setTimeout as delay } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import type { Knex } from 'knex'
import createKnex from 'knex'
import type { Database } from '../postgres/database.ts'
import { rawPool } from '../postgres/pool.ts'
import type { Connection } from '../postgres/statement.ts'
import { INDEX_REVISION } from './index/keys.ts'
import { addRevisionJob } from './rows/upkeep-jobs.ts'

const MIGRATION_LOCK = 6_221_483_007_210_001n
const LOCK_RETRY_MS = 100
const BASELINE = '001-baseline.ts'
const REPLACED = [
  '001-resources.ts',
  '002-search.ts',
  '003-pending-runs.ts',
  '004-concepts.ts',
  '005-idempotent-requests.ts',
  '006-joins.ts',
  '007-own-parameters.ts',
  '008-refresh-tokens.ts',
  '009-mail.ts',
  '010-version-key.ts',
  '011-stored-contents.ts',
  '012-wide-ranges.ts',
  '013-version-time.ts',
  '015-full-text.ts',
  '017-sealed-replies.ts',
  '018-events.ts',
  '019-schedules.ts',
  '020-exports.ts',
  '021-imports.ts',
  '024-bot-runs.ts',
  '025-export-pages.ts',
  '026-subscription-state.ts',
  '028-account-holders.ts',
  '033-delivery-speed.ts',
  '037-self-keys.ts',
  '039-export-rows.ts',
  '046-wide-ranges.ts',
  '057-export-list.ts',
  '062-export-shared-parts.ts',
  '065-export-compartments.ts',
]

/** Updates the schema; safe to repeat and to run from several machines at once. */
export async function migrate(database: Database): Promise<void> {
  const { connection } = rawPool(database.knex).config
  // Building an index may take longer than the limits of requests.
  const limits = { statement_timeout: 0, lock_timeout: 0 }
  const settings = { ...Object(connection), ...limits }
  const guard = createKnex({ client: 'pg', connection: settings, pool: { min: 0, max: 1 } })
  const runner = createKnex({ client: 'pg', connection: settings, pool: { min: 0, max: 1 } })
  try {
    await takeLock(guard)
    const source = {
      directory: fileURLToPath(new URL('schema', import.meta.url)),
      loadExtensions: ['.ts'],
      // Migrations only add, so after a rollback this version also runs on a newer schema.
      disableMigrationsListValidation: true,
    }
    // The advisory lock excludes others, so knex's own lock can only be left over from a crash.
    await runner.migrate.forceFreeMigrationsLock(source)
    await adoptBaseline(runner)
    const [, applied]: [number, string[]] = await runner.migrate.latest(source)
    // A new database has no rows of older code.
    if (applied.includes(BASELINE)) await settleIndexRevision(database)
  } finally {
    // Ending the session releases the advisory lock.
    await runner.destroy()
    await guard.destroy()
  }
}

/** Asks again and again: the build of an index waits for every running statement, also for one that waits for the lock. */
async function takeLock(guard: Knex): Promise<void> {
  const text = `select pg_try_advisory_lock(${MIGRATION_LOCK}) as taken`
  while (!(await guard.raw(text)).rows[0].taken) await delay(LOCK_RETRY_MS)
}

/** Marks the baseline as applied if all migrations that it replaces are. */
async function adoptBaseline(knex: Knex): Promise<void> {
  if (!(await knex.schema.hasTable('knex_migrations'))) return
  const applied: string[] = await knex('knex_migrations').whereIn('name', REPLACED).pluck('name')
  if (applied.length === 0) return
  const missing = REPLACED.filter((name) => !applied.includes(name))
  if (missing.length > 0) {
    throw new Error(
      `The database has ${applied.length} of the ${REPLACED.length} migrations that ${BASELINE} replaces; ` +
        `the first that is missing is ${missing[0]}. Run the release step of the last revision that has these ` +
        'files (git log -- shared/store/schema), then this one again; or begin with an empty database',
    )
  }
  await knex.transaction(async (transaction) => {
    await transaction('knex_migrations').whereIn('name', REPLACED).delete()
    await transaction('knex_migrations').insert({
      name: BASELINE,
      batch: 1,
      migration_time: new Date(),
    })
  })
}

export async function checkIndexRevision(connection: Connection): Promise<void> {
  if ((await oldestIndexRevision(connection)) !== INDEX_REVISION) await addRevisionJob(connection)
}

export async function oldestIndexRevision(connection: Connection): Promise<number> {
  const [row] = await connection.query<{ rev: number }>({
    text: 'select rev from index_revision',
  })
  return row?.rev ?? 0
}

export async function settleIndexRevision(connection: Connection): Promise<void> {
  await connection.query({ text: 'update index_revision set rev = $1', values: [INDEX_REVISION] })
}
