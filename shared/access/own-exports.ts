/** The record of an export: who asked for it reads it, admins of its Project read all of them; we write it. */
import type { Grant, Interaction } from './policy.ts'
import type { Principal } from './principal.ts'

const TYPE = 'BulkDataExport'
const ALLOWED: readonly Interaction[] = ['read', 'vread', 'history', 'search']

/** What lets it through, and no other; undefined for what admins read, and for other types. */
export function ownExportGrants(
  principal: Principal,
  type: string,
  interaction: Interaction,
): readonly Grant[] | undefined {
  const { profile, isProjectAdmin, isSuperAdmin } = principal
  if (type !== TYPE || isSuperAdmin) return undefined
  if (!ALLOWED.includes(interaction)) return []
  if (isProjectAdmin) return undefined
  if (profile === undefined) return []
  const known = made.get(principal)
  if (known !== undefined) return known
  const grants: readonly Grant[] = [
    {
      source: 'own exports',
      type,
      interactions: new Set(ALLOWED),
      criteria: [{ code: '_author', type: 'reference', modifier: undefined, values: [profile] }],
      said: [`${TYPE}?_author=${profile}`],
      hidden: [],
      readonly: [],
      constraints: [],
      account: undefined,
    },
  ]
  made.set(principal, grants)
  return grants
}

const made = new WeakMap<Principal, readonly Grant[]>()
