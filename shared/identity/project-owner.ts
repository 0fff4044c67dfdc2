/** The owner of a Project stays its active member: super admins change `Project.owner` first. */
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { badRequest } from '../core/errors.ts'
import { type Resource, referenceIn, targetIn } from '../fhir/resource.ts'
import { readMany } from '../store/read/read.ts'
import { readRow, type StoreContext, type WriteAttempt } from '../store/rows/context.ts'
import { parseVersion, toVersion } from '../store/rows/rows.ts'

/** Errors: 400. */
export async function checkOwnerDeletion(
  store: StoreContext,
  principal: Principal,
  id: string,
): Promise<void> {
  const row = await readRow(store, principal, 'ProjectMembership', id)
  if (row === undefined || row.content === null) return
  const membership = parseVersion(toVersion(row))
  if (!(await isOwner(store, principal, membership))) return
  throw badRequest('Cannot delete the owner of the project')
}

/** Errors: 400. */
export async function checkOwnerStaysActive(attempt: WriteAttempt): Promise<void> {
  const { store, principal, before, kept } = attempt
  const isDeactivated = before !== undefined && before.active !== false && kept.active === false
  if (!isDeactivated || !(await isOwner(store, principal, before))) return
  throw badRequest('Cannot deactivate the owner of the project', 'active')
}

async function isOwner(
  store: StoreContext,
  principal: Principal,
  membership: Resource,
): Promise<boolean> {
  const project = targetIn(membership.project)
  if (project === undefined) return false
  const [found] = await readMany(store, systemPrincipal(principal.project), [project])
  const owner = found?.content === undefined ? undefined : parseVersion(found).owner
  return owner !== undefined && referenceIn(owner) === referenceIn(membership.user)
}
