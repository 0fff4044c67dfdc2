/** Stored terminology as values: the text of a large one takes a second to parse. */
import { LRUCache } from 'lru-cache'
import type { Resource } from '../fhir/resource.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { Version } from '../store/rows/version.ts'

/** In characters; smaller texts cost nothing. */
const SMALLEST_KEPT = 50_000
const MOST_KEPT = 20_000_000

const kept = new LRUCache<string, Resource>({ maxSize: MOST_KEPT })

/** The resource with its platform meta, which nobody may change. */
export function parsedOnce(version: Version): Resource {
  const size = version.content?.length ?? 0
  if (size < SMALLEST_KEPT) return parseVersion(version)
  // It begins with the Project; the time tells a version from one that was rolled back, the size from one of
  // which a policy hides more or less.
  const { metaExtension, type, id, ver, lastUpdated } = version
  const key = `${metaExtension} ${type} ${id} ${ver} ${lastUpdated.getTime()} ${size}`
  const known = kept.get(key)
  if (known !== undefined) return known
  const resource = parseVersion(version)
  kept.set(key, resource, { size })
  return resource
}
