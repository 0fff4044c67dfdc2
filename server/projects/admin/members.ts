/** Members of a Project: read, changed and removed by its administrators. */

import { provenApplicant } from '../../../shared/access/credentials/hashing.ts'
import { requireGoodPassword } from '../../../shared/access/credentials/passwords.ts'
import type { Principal } from '../../../shared/access/principal.ts'
import { servicePrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest, forbidden, notFound } from '../../../shared/core/errors.ts'
import { isObject, type Resource, referenceIn, referenceTo } from '../../../shared/fhir/resource.ts'
import { Fields } from '../../../shared/projects/fields.ts'
import {
  administeredProject,
  provenEmailChanges,
  requireUnlessLimited,
} from '../../../shared/projects/ownership.ts'
import { findUser, setPassword } from '../../../shared/projects/users.ts'
import { changeAudited, changedFields, recordChange } from '../../../shared/request/admin-audit.ts'
import type { Services } from '../../../shared/request/services.ts'
import { compilePatch } from '../../../shared/rest/patch/fhirpath.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Version, WriteOptions, WriteResult } from '../../../shared/store/rows/version.ts'
import { requireValid } from '../../../shared/validation/validate.ts'

const TYPE = 'ProjectMembership'

export interface MemberPath {
  readonly projectId: string
  readonly id: string
}

/** Errors: 403, 404. */
export async function readMember(
  services: Services,
  caller: Principal,
  path: MemberPath,
): Promise<Version> {
  await administeredProject(services.principals, caller, path.projectId, [TYPE, 'read'])
  return await requireMemberVersion(services, caller, path)
}

/** Replaces the whole membership. Errors: 400, 403, 404, 412. */
export async function replaceMember(
  services: Services,
  caller: Principal,
  path: MemberPath,
  { body, options }: { readonly body: Record<string, unknown>; readonly options: WriteOptions },
): Promise<WriteResult> {
  if (body.resourceType !== TYPE || body.id !== path.id) {
    await administeredProject(services.principals, caller, path.projectId)
    throw forbidden()
  }
  for (const field of ['project', 'user', 'profile']) {
    if (body[field] === undefined) throw badRequest(`${TYPE}.${field} is required`, field)
  }
  return await change(services, caller, path, {
    interaction: 'update',
    apply: () => body as Resource,
    options,
  })
}

/** Applies a JSON Patch, where `replace` of an absent `/admin` adds it. Errors: 400, 403, 404, 412. */
export async function patchMember(
  services: Services,
  caller: Principal,
  path: MemberPath,
  { body, options }: { readonly body: unknown; readonly options: WriteOptions },
): Promise<WriteResult> {
  const apply = (current: Resource) => compilePatch(withAddedAdmin(body, current))(current)
  return await change(services, caller, path, { interaction: 'patch', apply, options })
}

/** Removes the membership; user and profile stay. Errors: 400 for the owner, 403, 404, 412. */
export async function removeMember(
  services: Services,
  caller: Principal,
  path: MemberPath,
  options: WriteOptions,
): Promise<Version> {
  const { repository, principals } = services
  const project = await administeredProject(principals, caller, path.projectId, [TYPE, 'delete'])
  await requireMemberVersion(services, caller, path)
  return await changeAudited(repository, caller, {
    make: (inside) => inside.delete(unlimited(caller), TYPE, path.id, options),
    record: { project, interaction: 'delete', target: `${TYPE}/${path.id}` },
  })
}

interface MemberChange {
  readonly interaction: 'update' | 'patch'
  readonly apply: (current: Resource) => Resource
  readonly options: WriteOptions
}

async function change(
  services: Services,
  caller: Principal,
  path: MemberPath,
  { interaction, apply, options }: MemberChange,
): Promise<WriteResult> {
  const { repository, principals } = services
  const project = await administeredProject(principals, caller, path.projectId, [TYPE, 'update'])
  await requireMemberVersion(services, caller, path)
  let fields: readonly string[] = []
  const next = (current: Resource) => {
    const changed = withFixed(current, apply(current))
    requireValid(changed, { strict: true })
    fields = changedFields(current, changed)
    return changed
  }
  return await changeAudited(repository, caller, {
    make: (inside) => inside.patch(unlimited(caller), { type: TYPE, id: path.id }, next, options),
    record: ({ outcome }) =>
      outcome === 'unchanged'
        ? undefined
        : { project, interaction, target: `${TYPE}/${path.id}`, fields },
  })
}

/** Removes the policy, already checked for this interaction; the write rules of memberships still apply. */
function unlimited(caller: Principal): Principal {
  return { ...caller, rules: undefined }
}

/** Restores immutable elements silently; a missing profile is an error. */
function withFixed(current: Resource, next: Resource): Resource {
  if (referenceIn(next.profile) === undefined) {
    throw badRequest(`${TYPE}.profile is required`, 'profile')
  }
  const { meta } = current
  return { ...next, project: current.project, user: current.user, ...(meta ? { meta } : {}) }
}

function withAddedAdmin(body: unknown, current: Resource): unknown {
  if (!Array.isArray(body) || current.admin !== undefined) return body
  return body.map((operation) =>
    isObject(operation) && operation.op === 'replace' && operation.path === '/admin'
      ? { ...operation, op: 'add' }
      : operation,
  )
}

/** Errors: 404 for a missing membership, 403 for one of another Project. */
async function requireMemberVersion(
  { repository }: Services,
  caller: Principal,
  { projectId, id }: MemberPath,
): Promise<Version> {
  const [found] = await repository.readMany(servicePrincipal(SYSTEM_PROJECT, caller), [
    { type: TYPE, id },
  ])
  if (found?.content === undefined) throw notFound()
  if (parseVersion(found).meta?.project !== projectId) throw forbidden()
  return found
}

/** Sets the password of a user of the caller's Project. Errors: 400, 403. */
export async function setProjectPassword(
  services: Services,
  caller: Principal,
  body: Record<string, unknown>,
): Promise<void> {
  if (!caller.isProjectAdmin) throw forbidden()
  requireUnlessLimited(caller, ['User', 'update'])
  await setFor(services, caller, body, caller.project.id)
}

/** Sets the password of any user; without `projectId` of a server-scoped one. Errors: 400. */
export async function setAnyPassword(
  services: Services,
  caller: Principal,
  body: Record<string, unknown>,
): Promise<void> {
  const projectId = new Fields(body).text('projectId')
  await setFor(services, caller, body, projectId)
}

async function setFor(
  services: Services,
  caller: Principal,
  body: Record<string, unknown>,
  projectId: string | undefined,
): Promise<void> {
  const fields = new Fields(body)
  const email = fields.requiredEmail('email', 'Email is required')
  const password = fields.requiredText('password', 'Password is required')
  // For an administrator, always the Project of the caller.
  fields.text('projectId')
  fields.check()
  await requireGoodPassword(password, 'password', services.config)
  const user = await findUser(services.repository, email, projectId)
  if (user === undefined) throw badRequest('User not found', 'email')
  const id = user.id ?? ''
  await services.hashing.run(provenApplicant(id), () =>
    setPassword(services, id, password, { change: provenEmailChanges }),
  )
  await recordChange(services.repository, caller, {
    project: caller.project,
    interaction: 'operation',
    target: referenceTo(user),
    fields: ['password'],
  })
}
