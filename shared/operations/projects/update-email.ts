/** `User/$update-email`: sets a new address and starts its verification. */
import { requireArea } from '../../access/grant.ts'
import { type Principal, servicePrincipal } from '../../access/principal.ts'
import { SYSTEM_PROJECT } from '../../access/project-context.ts'
import { badRequest, forbidden, notFound, tooManyRequests } from '../../core/errors.ts'
import { requireNamedMail } from '../../fhir/bot-declarations.ts'
import { type Resource, referenceTo, targetIn, toObjects } from '../../fhir/resource.ts'
import { EMAIL_ADDRESS } from '../../projects/fields.ts'
import { emailChangedMail, verifyEmailMail } from '../../projects/mail-texts.ts'
import { newEmailChanges } from '../../projects/ownership.ts'
import { allowLinkMail, createSecurityRequest } from '../../projects/security-requests.ts'
import { requireReauthentication, signedInUser } from '../../projects/signed-in-user.ts'
import { normalEmail, projectOfUser, readUser } from '../../projects/users.ts'
import { recordChange } from '../../request/admin-audit.ts'
import { readPreferences } from '../../request/negotiate.ts'
import { readInputs } from '../../request/parameters.ts'
import { textReply, versionHeaders } from '../../request/reply.ts'
import type { Operation } from '../../request/request.ts'
import type { Services } from '../../request/services.ts'
import { equals, find } from '../../store/lookups.ts'
import type { Transaction } from '../../store/repository.ts'
import { parseVersion, present } from '../../store/rows/rows.ts'

/** For the user in person, a Project admin or a super admin. Mails the old address. Errors: 400, 403, 404, 409, 429. */
export const updateEmail: Operation = {
  name: 'update-email',
  on: [{ type: 'User', level: 'instance' }],
  methods: ['POST'],
  inputs: {
    email: 'text!: The new one',
    updateProfileTelecom: 'flag: Also in the profile',
    skipEmailVerification: 'flag: It is known to be theirs',
    password: 'text: The password of the caller, for their own address',
  },
  text: { summary: 'Change the e-mail address of a user', answer: 'User' },
  async run(call) {
    const { services, principal, request, id = '' } = call
    const inputs = readInputs(call)
    const user = await readUser(services.repository, id)
    const by = await requireMayChange(services, principal, {
      user,
      id,
      password: inputs.text('password'),
    })
    if (user === undefined) throw notFound()
    const email = normalEmail(inputs.required('email'))
    if (!EMAIL_ADDRESS.test(email)) throw badRequest('email must be an e-mail address', 'email')
    requireNamedMail(principal.declared, email)
    const projectId = projectOfUser(user)
    const hasProfile = inputs.flag('updateProfileTelecom') === true
    if (hasProfile && projectId === undefined) {
      throw badRequest('Cannot update profile of server-scoped User', 'updateProfileTelecom')
    }
    // Counted before the write: a refusal shows whether an address is registered.
    if (by === 'owner' && !(await allowLinkMail(services.redis, user))) throw tooManyRequests(3600)
    const actor = servicePrincipal(SYSTEM_PROJECT, principal)
    const home = hasProfile ? await services.principals.project(projectId ?? '') : undefined
    const written = await services.repository.transaction(async (inside) => {
      const changed = await inside.patch(actor, { type: 'User', id }, (current) => ({
        ...current,
        // The owner has not yet verified the new address.
        ...(by === 'owner' ? { email, emailVerified: false } : newEmailChanges(current, email)),
      }))
      // Another Project may have a profile with the same id.
      if (home) await changeTelecom(inside, servicePrincipal(home, principal), user, email)
      if (inputs.flag('skipEmailVerification') !== true) {
        const link = await createSecurityRequest(inside, actor, {
          type: 'verify-email',
          user: parseVersion(changed),
        })
        const mail = verifyEmailMail(services.config, email, link)
        await inside.addMail(projectId ?? principal.project.id, mail)
      }
      await notifyOldAddress(inside, services.config, {
        projectId: projectId ?? principal.project.id,
        user,
        email,
      })
      await recordChange(inside, principal, {
        project: principal.project,
        interaction: 'update',
        target: `User/${id}`,
        fields: ['email'],
      })
      return changed
    })
    const { extended } = readPreferences(request)
    return textReply(200, present(written, principal, extended), versionHeaders(written))
  },
}

interface EmailChange {
  readonly user: Resource | undefined
  readonly id: string
  readonly password: string | undefined
}

/** Administrators also change their own address in person. Errors: 400, 403, 429. */
async function requireMayChange(
  services: Services,
  principal: Principal,
  { user, id, password }: EmailChange,
): Promise<'owner' | 'administrator'> {
  if (principal.user === id) {
    requireArea(principal, 'account')
    const { loginId, membershipId } = principal
    const session = loginId === undefined ? undefined : await services.principals.forLogin(loginId)
    const isOwn = session?.membership.id === membershipId
    const own = session && isOwn ? await signedInUser(services, session) : undefined
    if (own?.id !== id) throw forbidden()
    await requireReauthentication(services, session?.login, own, password)
    return 'owner'
  }
  requireArea(principal, 'administration')
  if (principal.isSuperAdmin && principal.rules === undefined) return 'administrator'
  const isOurs = user !== undefined && projectOfUser(user) === principal.project.id
  if (!isOurs || !principal.isProjectAdmin) throw forbidden()
  return 'administrator'
}

interface OldAddress {
  readonly projectId: string
  readonly user: Resource
  readonly email: string
}

/** Informs the owner of a stolen account at the old address. */
export async function notifyOldAddress(
  inside: Transaction,
  config: Services['config'],
  { projectId, user, email }: OldAddress,
): Promise<void> {
  if (typeof user.email !== 'string' || user.email === email) return
  await inside.addMail(projectId, emailChangedMail(config, user))
}

/** Keeps the old address as `old` in the profiles of the user's memberships. */
async function changeTelecom(
  inside: Transaction,
  actor: Principal,
  user: Resource,
  email: string,
): Promise<void> {
  const condition = equals('user', 'reference', referenceTo(user))
  for (const membership of await find(inside, actor, 'ProjectMembership', {
    conditions: [condition],
    count: 100,
  })) {
    const profile = targetIn(membership.profile)
    if (profile === undefined) continue
    await inside.patch(actor, { type: profile.type, id: profile.id }, (current) => {
      const telecom = toObjects(current.telecom)
      const kept = telecom
        .filter(({ value }) => value !== email)
        .map((point) => (point.value === user.email ? { ...point, use: 'old' } : point))
      const added = { system: 'email', use: 'work', value: email }
      return { ...current, telecom: [...kept, added] }
    })
  }
}
