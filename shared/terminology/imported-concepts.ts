/** Reading what was imported, on the connection of whoever asks: inside a transaction on that one. */
import type { Connection } from '../platform/postgres/statement.ts'
import { importedMappings } from './concept-mappings.ts'
import { conceptOwner, listImported } from './store-concepts.ts'

type Bound<F> = F extends (connection: Connection, ...rest: infer Rest) => infer Result
  ? (...rest: Rest) => Result
  : never

export interface ImportedConcepts {
  readonly owner: Bound<typeof conceptOwner>
  readonly list: Bound<typeof listImported>
  readonly mappings: Bound<typeof importedMappings>
}

export function createImportedConcepts({
  connection,
}: {
  readonly connection: Connection
}): ImportedConcepts {
  return {
    owner: (projectId, type, id) => conceptOwner(connection, projectId, type, id),
    list: (owner, query) => listImported(connection, owner, query),
    mappings: (owner, system, code, isReverse) =>
      importedMappings(connection, owner, system, code, isReverse),
  }
}
