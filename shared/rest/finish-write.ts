/** Final steps of a write: side effects and the reply. */
import { type Principal, systemPrincipal } from '../access/principal.ts'
import { SYSTEM_PROJECT } from '../access/project-context.ts'
import { allOk, created, type Issue, issue, outcome } from '../core/errors.ts'
import { parseReference, type Resource, referenceIn } from '../fhir/resource.ts'
import { addMail, type Mail } from '../outbound/mails.ts'
import { isProven, revokeUnprovenLogins, takeIn } from '../projects/ownership.ts'
import { systemPrincipalFor } from '../projects/provision.ts'
import { readUser } from '../projects/users.ts'
import { changedFields, recordChange } from '../request/admin-audit.ts'
import { versionText } from '../request/binary/attachments.ts'
import {
  absoluteUrl,
  emptyReply,
  outcomeReply,
  textReply,
  versionHeaders,
} from '../request/reply.ts'
import type { CallerContext, FhirContext, FhirReply } from '../request/request.ts'
import { maskedFor, parseVersion } from '../store/rows/rows.ts'
import type { Deletion, WriteResult } from '../store/rows/version.ts'

const ADMINISTRATIVE = new Set(['Project', 'ProjectMembership', 'User'])
const system = systemPrincipal(SYSTEM_PROJECT)

/** Records the write and replies as the Prefer header requests. */
export async function finishWrite(
  context: FhirContext,
  written: WriteResult,
  warnings: readonly Issue[] = [],
): Promise<FhirReply> {
  const { type, outcome } = written
  const isByMember = context.principal.membershipId !== undefined
  if (ADMINISTRATIVE.has(type) && isByMember && outcome !== 'unchanged') {
    await auditWrite(context, written)
    if (type === 'ProjectMembership' && outcome === 'created') {
      await claimUser(context, parseVersion(written))
    }
  }
  return writeReply(context, written, warnings)
}

function writeReply(
  context: FhirContext,
  written: WriteResult,
  warnings: readonly Issue[],
): FhirReply {
  const { returned } = context.preferences
  const isNew = written.outcome === 'created'
  const status = isNew ? 201 : 200
  const location = `${written.type}/${written.id}/_history/${written.ver}`
  const headers = {
    ...versionHeaders(written),
    ...(isNew || context.request.method === 'POST'
      ? { Location: absoluteUrl(context.services, location) }
      : {}),
  }
  const { lastUpdated } = written
  if (returned === 'minimal') return { ...emptyReply(status, headers), lastUpdated }
  if (returned === 'representation') {
    return { ...textReply(status, versionText(context, written), headers), lastUpdated }
  }
  const { id, issue } = isNew ? created : allOk
  return { ...outcomeReply(status, outcome(id, ...issue, ...warnings), headers), lastUpdated }
}

async function auditWrite(
  { services, principal }: FhirContext,
  written: WriteResult,
): Promise<void> {
  const { type, id, ver, outcome } = written
  const before = ver === 1 ? undefined : await versionBefore(services, principal, { type, id, ver })
  await recordChange(services.repository, principal, {
    project: principal.project,
    interaction: outcome === 'created' ? 'create' : 'update',
    target: `${type}/${id}`,
    fields: changedFields(before ?? {}, parseVersion(written)),
  })
}

/** Revokes unproven credentials of a user who becomes a member without an invite, and notifies the user by mail. */
async function claimUser(
  { services, principal }: FhirContext,
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
  await takeIn(admission, systemPrincipalFor(principal), { id: project.id, name }, user)
  await revokeUnprovenLogins(services, reference.id)
}

/** Redacted like the new version, so that invisible elements do not count as changes. */
async function versionBefore(
  { repository }: FhirContext['services'],
  principal: Principal,
  { type, id, ver }: Pick<WriteResult, 'type' | 'id' | 'ver'>,
): Promise<Resource | undefined> {
  const before = await repository.readVersion(system, type, id, String(ver - 1))
  return before.content === undefined ? undefined : parseVersion(maskedFor(principal, before))
}

/** Sequential: each deletion is audited. */
export async function afterDeletions(
  interaction: CallerContext,
  deleted: readonly Deletion[],
): Promise<readonly Issue[]> {
  const warnings: Issue[] = []
  for (const deletion of deleted) warnings.push(...(await afterDeletion(interaction, deletion)))
  return warnings
}

/** Adds the AuditEvent of a deletion; returns warnings, such as a disabled login. */
export async function afterDeletion(
  { services, principal }: CallerContext,
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
  const text = `The login of ProjectMembership/${membership} works no more`
  return [issue('warning', 'business-rule', text)]
}
