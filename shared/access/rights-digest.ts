/** Digest of the read rights of a member, to compare earlier rights with current ones. */
import { createHash } from 'node:crypto'
import type { Principal } from './principal.ts'

/** Base64. Equal digests mean equal visibility. */
export function rightsDigest({ rules, isProjectAdmin, isSuperAdmin, project }: Principal): string {
  const told = [rules?.grants, rules?.scoped].map((grants) =>
    grants
      ?.filter(({ interactions }) => interactions.has('search') || interactions.has('read'))
      .map(({ type, interactions, criteria, hidden }) => {
        return { type, interactions: [...interactions].sort(), criteria, hidden }
      }),
  )
  const linked = project.linked?.map(({ id, exports }) => [id, exports])
  const links = linked === undefined || linked.length === 0 ? {} : { linked }
  const text = JSON.stringify({ told, isProjectAdmin, isSuperAdmin, ...links })
  return createHash('sha256').update(text).digest('base64')
}
