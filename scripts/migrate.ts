/**
 * The release step, `node scripts/migrate.ts`: migrates the database and creates the first project.
 * `--who` also prints the first sign-in; secrets are settings and are not printed.
 */

import { writeFeatures } from '../shared/api/write-features.ts'
import { type Config, readConfig } from '../shared/core/config/config.ts'
import { createLogger } from '../shared/core/log.ts'
import { openDatabase } from '../shared/postgres/database.ts'
import { connectionErrorReason } from '../shared/postgres/pool.ts'
import { keepSessionSettings } from '../shared/postgres/sessions.ts'
import { migrate } from '../shared/store/migrate.ts'
import { openRepository } from '../shared/store/open-repository.ts'
import { isSeeded, requireSuperAdminSettings, seed, superAdminClient } from './seed.ts'

/** Safe to run twice and concurrently. True when the super admin was created now. */
export async function prepare(config: Config): Promise<boolean> {
  return (await released(config)).isFirst
}

/** Migrates and seeds; `client` is the id of the first client, if it still exists. */
async function released(config: Config) {
  const { databaseUrl, databaseDirectUrl } = config
  // Migrations take a session lock, and time.
  const direct = {
    ...config,
    databaseUrl: databaseDirectUrl ?? databaseUrl,
    databaseDirectUrl: undefined,
  }
  const database = openDatabase(direct, createLogger(config.logLevel, 'script'))
  try {
    await migrate(database)
    if (databaseDirectUrl !== undefined) await keepSessionSettings(database)
    const repository = await openRepository(database, writeFeatures())
    // Only a first start needs the super admin's credentials.
    const isFirst =
      !(await isSeeded(repository)) &&
      (await seed({ database, repository }, requireSuperAdminSettings(config))) === 'created'
    return { isFirst, client: await superAdminClient(repository) }
  } finally {
    await database.close()
  }
}

if (import.meta.main) {
  try {
    const config = readConfig()
    for (const doubt of config.warnings) console.error(doubt)
    const { isFirst, client = 'gone' } = await released(config)
    console.log('Migrated')
    if (isFirst || process.argv.includes('--who')) {
      console.log(
        `The super admin is ${config.superAdminEmail}, with the password of SUPER_ADMIN_PASSWORD`,
      )
      console.log(`Its client is ${client}, with the secret of SUPER_ADMIN_CLIENT_SECRET`)
      console.log(`The service is at ${config.baseUrl}`)
    }
  } catch (error) {
    const refusal = connectionErrorReason(error)
    const reason = error instanceof Error ? error.message : error
    console.error(refusal ? `PostgreSQL refuses the connection: ${refusal}` : reason)
    process.exitCode = 1
  }
}
