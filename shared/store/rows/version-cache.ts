/**
 * The newest versions that this process has lately read or written. A change of one of them need not read
 * it first: the writing statement checks that it is still the newest. Answers are never made from these
 * alone, so the caches of processes need no invalidation.
 */
import { LRUCache } from 'lru-cache'
import type { RowKey } from './fetch.ts'
import type { VersionRow } from './rows.ts'
import { REGISTRY_PROJECT } from './tenants.ts'

export interface RecentVersions {
  get(key: RowKey): VersionRow | undefined
  keep(row: VersionRow): void
  drop(row: VersionRow): void
}

const MAX_CHARACTERS = 32_000_000
const MAX_EACH = 100_000
/** The bytes of a row beside its texts. */
const ROW = 500

export function createRecentVersions(): RecentVersions {
  const rows = new LRUCache<string, VersionRow>({
    maxSize: MAX_CHARACTERS,
    maxEntrySize: MAX_EACH,
    sizeCalculation: ({ content, meta_ext }) => (content?.length ?? 0) + meta_ext.length + ROW,
  })
  return {
    get: ({ everywhere, ...key }) => (everywhere ? undefined : rows.get(nameOf(key))),
    keep(row) {
      // Rows of the registry hold secrets, and some are not in sight of all who may ask for them.
      if (row.project !== REGISTRY_PROJECT && row.content !== null) rows.set(nameOf(row), row)
    },
    drop: (row) => void rows.delete(nameOf(row)),
  }
}

function nameOf({ project, type, id }: Pick<VersionRow, 'project' | 'type' | 'id'>): string {
  return `${project}/${type}/${id}`
}
