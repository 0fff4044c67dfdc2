/** Stored terminology as values: the text of a large one takes a second to parse. */
import { LRUCache } from 'lru-cache'
import type { Resource } from '../fhir/resource.ts'
import type { Connection } from '../platform/postgres/statement.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { Version } from '../store/rows/version.ts'
import { conceptOwner, importedMappings, listImported } from './store-concepts.ts'

/** In characters; smaller texts cost nothing. */
const SMALLEST_KEPT = 50_000
const MOST_KEPT = 20_000_000

const kept = new LRUCache<string, Resource>({ maxSize: MOST_KEPT })

/** The resource with its platform meta, which nobody may change. */
export function parsedOnce(version: Version): Resource {
  const size = version.content?.length ?? 0
  if (size < SMALLEST_KEPT) return parseVersion(version)
  // The key begins with the Project; the time separates a version from one that was rolled back, the size from one
  // that a policy cuts differently.
  const { metaExtension, type, id, ver, lastUpdated } = version
  const key = `${metaExtension} ${type} ${id} ${ver} ${lastUpdated.getTime()} ${size}`
  const known = kept.get(key)
  if (known !== undefined) return known
  const resource = parseVersion(version)
  kept.set(key, resource, { size })
  return resource
}

/** Reading what was imported, on the connection of whoever asks: inside a transaction on that one. */
type Bound<F> = F extends (connection: Connection, ...rest: infer Rest) => infer Result
  ? (...rest: Rest) => Result
  : never

interface ImportedConcepts {
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
    mappings: (owner, mapped) => importedMappings(connection, owner, mapped),
  }
}
