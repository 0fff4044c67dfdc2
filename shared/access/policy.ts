/**
 * What a Principal may do with a type. Criteria and field rules join here later; an entry that
 * carries a rule this version cannot judge grants nothing.
 */
import type { Principal } from './principal.ts'

export type Interaction = 'create' | 'read' | 'vread' | 'update' | 'delete' | 'search' | 'history'

/** type (or `*`) → interactions it grants. */
export type Rules = ReadonlyMap<string, ReadonlySet<Interaction>>

/** Types whose rows live in the system project whatever Project they belong to. */
export const REGISTRY_TYPES: ReadonlySet<string> = new Set([
  'Project',
  'ProjectMembership',
  'User',
  'Login',
  'JsonWebKey',
  'DomainConfiguration',
  'UserSecurityRequest',
])

const SUPER_ADMIN_ONLY: ReadonlySet<string> = new Set([
  'Login',
  'JsonWebKey',
  'DomainConfiguration',
])

const PROJECT_ADMIN: ReadonlyMap<string, ReadonlySet<Interaction>> = new Map([
  ['Project', new Set<Interaction>(['read', 'vread', 'search', 'history', 'update'])],
  [
    'ProjectMembership',
    new Set<Interaction>(['create', 'read', 'vread', 'search', 'history', 'update', 'delete']),
  ],
  ['User', new Set<Interaction>(['read', 'vread', 'search', 'history', 'update'])],
  ['UserSecurityRequest', new Set<Interaction>(['read', 'vread', 'search', 'history'])],
])

/** The table of admin and protected types first, then the policy. */
export function may(principal: Principal, type: string, interaction: Interaction): boolean {
  if (principal.isSuperAdmin && principal.rules === undefined) return true
  if (REGISTRY_TYPES.has(type)) {
    if (SUPER_ADMIN_ONLY.has(type) && !principal.isSuperAdmin) return false
    if (!principal.isProjectAdmin) return false
    if (!principal.isSuperAdmin) return PROJECT_ADMIN.get(type)?.has(interaction) ?? false
    return principal.rules?.get(type)?.has(interaction) ?? false
  }
  if (principal.rules === undefined) return true
  const granted = principal.rules.get(type) ?? principal.rules.get('*')
  return granted?.has(interaction) ?? false
}
