/** `User/$update-email`: another address, which is to be verified. */
import type { Principal } from '../../access/principal.ts'
import { badRequest, forbidden, notFound } from '../../errors.ts'
import { isObject, parseReference, type Resource, referenceTo } from '../../fhir/resource.ts'
import type { Services } from '../../services.ts'
import { find } from '../../store/lookups.ts'
import { referenceIn } from '../../store/memberships.ts'
import type { Transaction } from '../../store/repository.ts'
import { parseVersion, present } from '../../store/rows.ts'
import { recordChange } from '../admin-audit.ts'
import { verifyEmailMail } from '../mail-texts.ts'
import { readPreferences } from '../negotiate.ts'
import type { Operation } from '../operation.ts'
import { versionHeaders } from '../preconditions.ts'
import { onBehalfOf } from '../provision.ts'
import { textReply } from '../reply.ts'
import { createSecurityRequest } from '../security-requests.ts'
import { signedInUser } from '../signed-in-user.ts'
import { normalEmail, projectOfUser, readUser } from '../users.ts'
import { readInputs } from './parameters.ts'

const EMAIL = /^[^\s@,;:<>()[\]\\"]{1,64}@[^\s@,;:<>()[\]\\"]{1,253}$/

/** By the user, an admin of the Project it belongs to, or a super admin. Errors: 400, 403, 404, 409. */
export const updateEmail: Operation = {
  name: 'update-email',
  on: [{ type: 'User', level: 'instance' }],
  methods: ['POST'],
  async run(call) {
    const { services, principal, request, id = '' } = call
    const inputs = readInputs(call, [
      { name: 'email', kind: 'text' },
      { name: 'updateProfileTelecom', kind: 'flag' },
      { name: 'skipEmailVerification', kind: 'flag' },
    ])
    const user = await readUser(services.repository, id)
    if (!(await mayChange(services, principal, user, id))) throw forbidden()
    if (user === undefined) throw notFound()
    const email = normalEmail(inputs.required('email'))
    if (!EMAIL.test(email)) throw badRequest('email must be an e-mail address', 'email')
    const projectId = projectOfUser(user)
    const hasProfile = inputs.flag('updateProfileTelecom') === true
    if (hasProfile && projectId === undefined) {
      throw badRequest('Cannot update profile of server-scoped User', 'updateProfileTelecom')
    }
    const actor = onBehalfOf(principal)
    const written = await services.repository.transaction(async (inside) => {
      const changed = await inside.patch(actor, 'User', id, (current) => ({
        ...current,
        email,
        emailVerified: false,
      }))
      if (hasProfile) await changeTelecom(inside, actor, user, email)
      if (inputs.flag('skipEmailVerification') !== true) {
        const link = await createSecurityRequest(
          inside,
          actor,
          'verify-email',
          parseVersion(changed),
        )
        const mail = verifyEmailMail(services.config, email, link)
        await inside.addMail(projectId ?? principal.project.id, mail)
      }
      await recordChange(inside, principal, principal.project, 'update', `User/${id}`, ['email'])
      return changed
    })
    const { extended } = readPreferences(request)
    return textReply(200, present(written, principal, extended), versionHeaders(written))
  },
}

async function mayChange(
  services: Services,
  principal: Principal,
  user: Resource | undefined,
  id: string,
): Promise<boolean> {
  if (principal.isSuperAdmin && principal.rules === undefined) return true
  const { loginId, membershipId } = principal
  const session = loginId === undefined ? undefined : await services.principals.forLogin(loginId)
  const isOwn = session?.membership.id === membershipId
  if (session && isOwn && (await signedInUser(services, session))?.id === id) return true
  if (user === undefined || !principal.isProjectAdmin) return false
  return projectOfUser(user) === principal.project.id
}

/** In the profiles of the user's memberships, the old address stays as an old one. */
async function changeTelecom(
  inside: Transaction,
  actor: Principal,
  user: Resource,
  email: string,
): Promise<void> {
  const values = [referenceTo(user)]
  const condition = { code: 'user', type: 'reference', modifier: undefined, values } as const
  for (const membership of await find(inside, actor, 'ProjectMembership', [condition], 100)) {
    const profile = parseReference(referenceIn(membership.profile))
    if (profile === undefined) continue
    await inside.patch(actor, profile.type, profile.id, (current) => {
      const telecom = Array.isArray(current.telecom) ? current.telecom.filter(isObject) : []
      const kept = telecom
        .filter(({ value }) => value !== email)
        .map((point) => (point.value === user.email ? { ...point, use: 'old' } : point))
      const added = { system: 'email', use: 'work', value: email }
      return { ...current, telecom: [...kept, added] }
    })
  }
}
