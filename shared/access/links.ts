/** `Project.link`: what a Principal reads of other Projects. */
import { REGISTRY_TYPES } from './policy.ts'
import type { LinkedProject, Principal } from './principal.ts'

/** Its secret is its Project's alone, whoever is an admin elsewhere. */
const NEVER_SHARED = 'ClientApplication'

/** Linked Projects that share a type with the Principal's; a super admin names Projects instead. */
export function linkedProjects(
  { project, isSuperAdmin }: Principal,
  type: string,
): readonly LinkedProject[] {
  if (isSuperAdmin || project.linked === undefined) return []
  if (type === NEVER_SHARED || REGISTRY_TYPES.has(type)) return []
  return project.linked.filter(({ exports }) => exports.length === 0 || exports.includes(type))
}

/** The Principal in its own Project, without those it is linked to. */
export function unlinked(principal: Principal): Principal {
  return { ...principal, project: { ...principal.project, linked: [] } }
}
