/** The record of a job: who asked for it reads it, admins of its Project read all of them; only the service writes it. */
import type { Grant, Interaction } from './grant.ts'
import type { Principal } from './principal.ts'

const TYPES: ReadonlySet<string> = new Set(['AsyncJob', 'BulkDataExport'])
const LOOKS: ReadonlySet<Interaction> = new Set(['read', 'vread', 'history', 'search'])

/** The grants that make this job visible. undefined: the policy decides, as for admins and other types. */
export function ownJobGrants(
  principal: Principal,
  type: string,
  interaction: Interaction,
): readonly Grant[] | undefined {
  const { profile, isProjectAdmin, isSuperAdmin } = principal
  if (!TYPES.has(type) || isSuperAdmin) return undefined
  if (!LOOKS.has(interaction)) return []
  if (isProjectAdmin) return undefined
  if (profile === undefined) return []
  const known = made.get(principal)?.get(type)
  if (known !== undefined) return known
  const grants: readonly Grant[] = [
    {
      source: 'own jobs',
      type,
      interactions: LOOKS,
      criteria: [{ code: '_author', type: 'reference', modifier: undefined, values: [profile] }],
      said: [`${type}?_author=${profile}`],
      hidden: [],
      readonly: [],
      constraints: [],
      account: undefined,
      isNamed: false,
    },
  ]
  made.set(principal, new Map([...(made.get(principal) ?? []), [type, grants]]))
  return grants
}

const made = new WeakMap<Principal, ReadonlyMap<string, readonly Grant[]>>()
