/** Reports committed changes, so that caches of all processes drop stale entries. */
import { type CacheChange, REPORTED_TYPES, type ReportedType } from '../../core/cache.ts'
import type { WritePart } from '../rows/context.ts'
import { platformMeta } from '../rows/version.ts'

/** The store calls a part for its `types` only. */
const reportedType = (type: string) => type as ReportedType

export function changePart(
  report: (change: CacheChange) => Promise<void>,
): WritePart<Omit<CacheChange, 'number'>> {
  return {
    types: new Set(REPORTED_TYPES),
    buildRow({ resource: { resourceType, meta }, place }) {
      // A new Login cannot be cached yet.
      if (resourceType === 'Login' && place.ver === 1) return undefined
      const home = typeof meta?.project === 'string' ? meta.project : undefined
      return { type: reportedType(resourceType), id: place.id, home }
    },
    buildDeletionRow: (version) => ({
      type: reportedType(version.type),
      id: version.id,
      home: platformMeta(version).project,
    }),
    committed: ({ project, row }) => report({ ...row, number: project }),
  }
}
