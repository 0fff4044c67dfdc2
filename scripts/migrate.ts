/** The release step, `node scripts/migrate.ts`: migrates the database and makes the first project. */
import { type Config, readConfig } from '../shared/config.ts'
import { migrate, openDatabase } from '../shared/database.ts'
import { createLogger } from '../shared/log.ts'

/** Safe to run twice and from two machines at a time. True when the super admin was made now. */
export async function prepare(config: Config): Promise<boolean> {
  const database = openDatabase(config, createLogger(config.logLevel, 'script'))
  try {
    await migrate(database)
    return false
  } finally {
    await database.close()
  }
}

if (import.meta.main) {
  try {
    await prepare(readConfig())
  } catch (error) {
    console.error(error instanceof Error ? error.message : error)
    process.exitCode = 1
  }
}
