/** Passwords that administrators set for others. */
import { provenApplicant } from '../../../shared/access/credentials/hashing.ts'
import { requireGoodPassword } from '../../../shared/access/credentials/password-rules.ts'
import type { Principal } from '../../../shared/access/principal.ts'
import { badRequest, forbidden } from '../../../shared/errors.ts'
import { referenceTo } from '../../../shared/fhir/resource.ts'
import { requireUnlessLimited } from '../../../shared/projects/access.ts'
import { Fields } from '../../../shared/projects/fields.ts'
import { proven } from '../../../shared/projects/ownership.ts'
import { findUser, setPassword } from '../../../shared/projects/users.ts'
import { recordChange } from '../../../shared/request/admin-audit.ts'
import type { Services } from '../../../shared/services.ts'

/** Of a user that belongs to the caller's Project alone. Errors: 400, 403. */
export async function setProjectPassword(
  services: Services,
  caller: Principal,
  body: Record<string, unknown>,
): Promise<void> {
  if (!caller.isProjectAdmin) throw forbidden()
  requireUnlessLimited(caller, ['User', 'update'])
  await setFor(services, caller, body, caller.project.id)
}

/** Of any user; without `projectId` of a server scoped one. Errors: 400. */
export async function setAnyPassword(
  services: Services,
  caller: Principal,
  body: Record<string, unknown>,
): Promise<void> {
  const fields = new Fields(body)
  const projectId = fields.text('projectId')
  fields.check()
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
  fields.check()
  await requireGoodPassword(password, 'password', services.config)
  const user = await findUser(services.repository, email, projectId)
  if (user === undefined) throw badRequest('User not found', 'email')
  const id = user.id ?? ''
  await services.hashing.run(provenApplicant(id), () => setPassword(services, id, password, proven))
  await recordChange(services.repository, caller, caller.project, 'operation', referenceTo(user), [
    'password',
  ])
}
