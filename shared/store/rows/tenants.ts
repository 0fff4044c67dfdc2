/** Project id ↔ the small integer that leads every primary key. */
import { SYSTEM_PROJECT_NUMBER } from '../../access/principal.ts'
import type { Database } from '../../postgres/database.ts'
import type { Connection } from '../../postgres/statement.ts'

export interface Tenants {
  projectNumber(connection: Connection, rowId: string): Promise<number | undefined>
}

/** Numbers are never reused, so cached ones stay valid; unknown ids are read again. */
export function createTenants(): Tenants {
  const numbers = new Map<string, number>()
  return {
    async projectNumber(connection, rowId) {
      const known = numbers.get(rowId)
      if (known !== undefined) return known
      const [row] = await connection.query<{ project: number }>({
        name: 'tenant',
        text: 'select project from tenant where fhir_id = $1',
        values: [rowId],
      })
      if (row) numbers.set(rowId, row.project)
      return row?.project
    },
  }
}

export const REGISTRY_PROJECT = SYSTEM_PROJECT_NUMBER

export async function readSalt(database: Database): Promise<Buffer> {
  const rows = await database.query<{ salt: Buffer }>({
    text: 'select salt from search_key_salt',
    values: [],
  })
  const salt = rows[0]?.salt
  if (salt === undefined) throw new Error('search_key_salt has no row')
  return salt
}
