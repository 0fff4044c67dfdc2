/** Who may administer which Project. */
import type { Interaction } from '../access/grant.ts'
import { may } from '../access/policy.ts'
import type { Principal, ProjectContext } from '../access/principal.ts'
import { forbidden, notFound } from '../errors.ts'
import type { Principals } from '../identity/principals.ts'

/** Errors: 403 for no project admin and for a foreign project, 404 for an unknown one. */
export async function administeredProject(
  principals: Principals,
  caller: Principal,
  projectId: string,
): Promise<ProjectContext> {
  if (!caller.isSuperAdmin) {
    if (!caller.isProjectAdmin || caller.project.id !== projectId) throw forbidden()
    return caller.project
  }
  const project = await principals.project(projectId)
  if (project === undefined) throw notFound()
  return project
}

/** A super admin with a policy gets only what the policy lists. Errors: 403. */
export function requireUnlessLimited(
  caller: Principal,
  ...needs: readonly (readonly [type: string, interaction: Interaction])[]
): void {
  if (!caller.isSuperAdmin) return
  if (!needs.every(([type, interaction]) => may(caller, type, interaction))) throw forbidden()
}
