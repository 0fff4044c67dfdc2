/** The one row of `search_key_salt`, made by the migrations: row ids and search keys depend on it. */
import type { Database } from '../../platform/postgres/database.ts'

/** One statement. */
export async function readSalt(database: Database): Promise<Buffer> {
  const rows = await database.query<{ salt: Buffer }>({
    text: 'select salt from search_key_salt',
    values: [],
  })
  const salt = rows[0]?.salt
  if (salt === undefined) throw new Error('search_key_salt has no row')
  return salt
}
