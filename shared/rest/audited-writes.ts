/**
 * Writes of Projects, ProjectMemberships and Users: one transaction holds the write, its AuditEvent, and the loss of
 * unproven credentials by a new member.
 */

import { type Principal, servicePrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT, system } from '../access/project-context.ts'
import { type Issue, issue } from '../core/errors.ts'
import { type Resource, targetIn } from '../fhir/resource.ts'
import { addMail, type Mail } from '../outbound/mails.ts'
import { isProven, revokeUnprovenLogins, voidAndNotify } from '../projects/ownership.ts'
import { readUser, revokeUserLogins } from '../projects/users.ts'
import { changedFields, recordChange } from '../request/admin-audit.ts'
import { type CallerContext, type FhirContext, withRepository } from '../request/request.ts'
import { readRegistry } from '../store/lookups.ts'
import type { Repository } from '../store/repository.ts'
import { maskedFor, parseVersion } from '../store/rows/rows.ts'
import type { Deletion, WriteResult } from '../store/rows/version.ts'

const ADMINISTRATIVE = new Set(['Project', 'ProjectMembership', 'User'])

function isAudited({ membershipId }: Principal, type: string): boolean {
  return ADMINISTRATIVE.has(type) && membershipId !== undefined
}

/** Runs `write`, which records itself, in one transaction if its type is audited. */
export function writeAudited<T>(
  context: FhirContext,
  type: string,
  write: (inside: FhirContext) => Promise<T>,
): Promise<T> {
  const { services, principal } = context
  if (!isAudited(principal, type)) return write(context)
  return services.repository.transaction((inside) => write(withRepository(context, inside)))
}

/** Adds the AuditEvent of a write; voids unproven credentials of a new member. */
export async function recordWrite(context: FhirContext, written: WriteResult): Promise<void> {
  const { type, outcome } = written
  if (!isAudited(context.principal, type) || outcome === 'unchanged') return
  await auditWrite(context, written)
  if (type === 'ProjectMembership' && outcome === 'created') {
    await claimUser(context, parseVersion(written))
  }
}

async function auditWrite(
  { services: { repository }, principal }: FhirContext,
  written: WriteResult,
): Promise<void> {
  const { type, id, ver, outcome } = written
  const before =
    ver === 1 ? undefined : await versionBefore(repository, principal, { type, id, ver })
  await recordChange(repository, principal, {
    project: principal.project,
    interaction: outcome === 'created' ? 'create' : 'update',
    target: `${type}/${id}`,
    fields: changedFields(before ?? {}, parseVersion(written)),
  })
}

/** Redacted like the new version, so that invisible elements do not count as changes. */
async function versionBefore(
  repository: Repository,
  principal: Principal,
  { type, id, ver }: Pick<WriteResult, 'type' | 'id' | 'ver'>,
): Promise<Resource | undefined> {
  const before = await repository.readVersion(system, type, id, String(ver - 1))
  return before.content === undefined ? undefined : parseVersion(maskedFor(principal, before))
}

/** Revokes unproven credentials of a user added as a member without an invite, and notifies the user by mail. */
async function claimUser(
  { services, principal }: FhirContext,
  membership: Resource,
): Promise<void> {
  const [reference, project] = [membership.user, membership.project].map((value) => targetIn(value))
  if (reference?.type !== 'User' || project === undefined) return
  const { repository, config } = services
  const user = await readUser(repository, reference.id)
  if (user === undefined || isProven(user)) return
  const name = String((await readRegistry(repository, 'Project', project.id))?.name ?? project.id)
  const addProjectMail = (id: string, mail: Mail) =>
    repository.withStore(({ connection }) => addMail(connection, id, mail))
  const actor = servicePrincipal(SYSTEM_PROJECT, principal)
  const admission = { config, repository, addMail: addProjectMail }
  await voidAndNotify(admission, actor, { id: project.id, name }, user)
  await revokeUnprovenLogins(services, reference.id)
}

/** Sequential: each deletion is audited. */
export async function afterDeletions(
  interaction: CallerContext,
  deleted: readonly Deletion[],
): Promise<readonly Issue[]> {
  const all = await Array.fromAsync(deleted, (deletion) => afterDeletion(interaction, deletion))
  return all.flat()
}

/** Adds the AuditEvent of a deletion; returns warnings, such as a disabled login. */
export async function afterDeletion(
  { services, principal }: CallerContext,
  { type, id, membership }: Deletion,
): Promise<readonly Issue[]> {
  if (isAudited(principal, type)) {
    await recordChange(services.repository, principal, {
      project: principal.project,
      interaction: 'delete',
      target: `${type}/${id}`,
    })
  }
  if (type === 'User') await revokeUserLogins(services, id, () => true)
  if (membership === undefined) return []
  const text = `The login of ProjectMembership/${membership} works no more`
  return [issue('warning', 'business-rule', text)]
}
