/** Side effects of writes of people, memberships and Projects, whatever way they come in. */

import { type Principal, systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import { type Issue, issue } from '../errors.ts'
import { parseReference, type Resource, referenceIn } from '../fhir/resource.ts'
import { addMail, type Mail } from '../platform/mail/mails.ts'
import { changedFields, recordChange } from '../request/admin-audit.ts'
import type { Interaction } from '../request/request.ts'
import { parseVersion } from '../store/rows/rows.ts'
import type { Deletion, WriteResult } from '../store/rows/version.ts'
import { endStrangers, isProven, takeIn } from './ownership.ts'
import { onBehalfOf } from './provision.ts'
import { readUser } from './users.ts'

const ADMINISTRATIVE = new Set(['Project', 'ProjectMembership', 'User'])
const system = systemPrincipal(SYSTEM_PROJECT)

/** Adds the AuditEvent of a write, in the Project of the caller. */
export async function recordWrite(
  { services, principal }: Interaction,
  written: WriteResult,
): Promise<void> {
  const { type, id, ver, outcome } = written
  if (!ADMINISTRATIVE.has(type) || principal.membershipId === undefined) return
  if (outcome === 'unchanged') return
  const before = ver === 1 ? undefined : await versionBefore(services, type, id, ver)
  const fields = changedFields(before ?? {}, parseVersion(written))
  const interaction = outcome === 'created' ? 'create' : 'update'
  const { repository } = services
  await recordChange(repository, principal, {
    project: principal.project,
    interaction,
    target: `${type}/${id}`,
    fields,
  })
  if (type === 'ProjectMembership' && outcome === 'created') {
    await takeInMember(services, principal, parseVersion(written))
  }
}

/** A member that is written without an invite is as unknown as an invited one. */
async function takeInMember(
  services: Interaction['services'],
  principal: Principal,
  membership: Resource,
): Promise<void> {
  const [reference, project] = [membership.user, membership.project].map((value) =>
    parseReference(referenceIn(value)),
  )
  if (reference?.type !== 'User' || project === undefined) return
  const { repository, config, database, principals } = services
  const user = await readUser(repository, reference.id)
  if (user === undefined || isProven(user)) return
  const name = (await principals.project(project.id))?.name ?? project.id
  const addMailOf = (id: string, mail: Mail) => addMail(database, id, mail)
  const admission = { config, repository, addMail: addMailOf }
  await takeIn(admission, onBehalfOf(principal), { id: project.id, name }, user)
  await endStrangers(services, reference.id)
}

async function versionBefore(
  { repository }: Interaction['services'],
  type: string,
  id: string,
  ver: number,
): Promise<Resource | undefined> {
  const before = await repository.readVersion(system, type, id, String(ver - 1))
  return before.content === undefined ? undefined : parseVersion(before)
}

/** The same of several, one after the other: each of them is an entry of the audit. */
export async function afterDeletions(
  interaction: Pick<Interaction, 'services' | 'principal'>,
  deleted: readonly Deletion[],
): Promise<readonly Issue[]> {
  const warnings: Issue[] = []
  for (const deletion of deleted) warnings.push(...(await afterDeletion(interaction, deletion)))
  return warnings
}

/** Adds the AuditEvent of a deletion; returns warnings, such as that a login works no more. */
export async function afterDeletion(
  { services, principal }: Pick<Interaction, 'services' | 'principal'>,
  { type, id, membership }: Deletion,
): Promise<readonly Issue[]> {
  if (ADMINISTRATIVE.has(type) && principal.membershipId !== undefined) {
    const { repository } = services
    await recordChange(repository, principal, {
      project: principal.project,
      interaction: 'delete',
      target: `${type}/${id}`,
    })
  }
  if (membership === undefined) return []
  services.principals.forget()
  const text = `The login of ProjectMembership/${membership} works no more`
  return [issue('warning', 'business-rule', text)]
}
