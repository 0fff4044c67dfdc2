/** The record of a job: who asked for it reads it, admins of its Project read all of them; we write an export's. */
import type { Grant, Interaction } from './policy.ts'
import type { Principal } from './principal.ts'

const LOOKS: readonly Interaction[] = ['read', 'vread', 'history', 'search']

/** By type, what there is to be done. */
const ALLOWED: ReadonlyMap<string, readonly Interaction[]> = new Map([
  ['BulkDataExport', LOOKS],
  ['AsyncJob', [...LOOKS, 'create', 'update', 'delete']],
])

/** What lets it through, and no other; undefined for what admins read, and for other types. */
export function ownJobGrants(
  principal: Principal,
  type: string,
  interaction: Interaction,
): readonly Grant[] | undefined {
  const { profile, isProjectAdmin, isSuperAdmin } = principal
  const allowed = ALLOWED.get(type)
  if (allowed === undefined || isSuperAdmin) return undefined
  if (!allowed.includes(interaction)) return []
  if (isProjectAdmin) return undefined
  if (profile === undefined) return []
  const known = made.get(principal)?.get(type)
  if (known !== undefined) return known
  const grants: readonly Grant[] = [
    {
      source: 'own jobs',
      type,
      interactions: new Set(allowed),
      criteria: [{ code: '_author', type: 'reference', modifier: undefined, values: [profile] }],
      said: [`${type}?_author=${profile}`],
      hidden: [],
      readonly: [],
      constraints: [],
      account: undefined,
    },
  ]
  made.set(principal, new Map([...(made.get(principal) ?? []), [type, grants]]))
  return grants
}

const made = new WeakMap<Principal, ReadonlyMap<string, readonly Grant[]>>()
