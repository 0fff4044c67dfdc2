/** The release step, `node scripts/migrate.ts`: migrates the database and makes the first project. */

import { writeFeatures } from '../shared/api/write-features.ts'
import { type Config, readConfig } from '../shared/config/config.ts'
import { createLogger } from '../shared/log.ts'
import { openDatabase } from '../shared/platform/postgres/database.ts'
import { connectionRefusal } from '../shared/platform/postgres/refusal.ts'
import { migrate } from '../shared/store/migrate.ts'
import { openRepository } from '../shared/store/open-repository.ts'
import { isSeeded, seed, superAdminOf } from './seed.ts'

/** Safe to run twice and from two machines at a time. True when the super admin was made now. */
export async function prepare(config: Config): Promise<boolean> {
  const database = openDatabase(config, createLogger(config.logLevel, 'script'))
  try {
    await migrate(database)
    const repository = await openRepository(database, writeFeatures())
    // Only a first start needs the super admin's credentials.
    if (await isSeeded(repository)) return false
    return (await seed({ database, repository }, superAdminOf(config))) === 'created'
  } finally {
    await database.close()
  }
}

if (import.meta.main) {
  try {
    const config = readConfig()
    const isFirst = await prepare(config)
    console.log(isFirst ? `Migrated; the super admin is ${config.superAdminEmail}` : 'Migrated')
  } catch (error) {
    const refusal = connectionRefusal(error)
    const reason = error instanceof Error ? error.message : error
    console.error(refusal ? `PostgreSQL refuses the connection: ${refusal}` : reason)
    process.exitCode = 1
  }
}
