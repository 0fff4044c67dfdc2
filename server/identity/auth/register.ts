/** Self-registration: a new User with a new Project, or as a patient of an existing one. */

import { hashPassword, requireGoodPassword } from '../../../shared/access/credentials/passwords.ts'
import { SYSTEM_PROJECT, system } from '../../../shared/access/project-context.ts'
import { grantedScope } from '../../../shared/access/scopes.ts'
import { badRequest, HttpError } from '../../../shared/core/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { addMail } from '../../../shared/outbound/mails.ts'
import { admitUser, createProfile, foundProject } from '../../../shared/projects/init.ts'
import { knownAddressMail, registrationMail } from '../../../shared/projects/mail-texts.ts'
import { allowLinkMail, createSecurityRequest } from '../../../shared/projects/security-requests.ts'
import { hasLostPassword } from '../../../shared/projects/signed-in-user.ts'
import { createUser, findUser, projectOfUser, readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { readRegistry } from '../../../shared/store/lookups.ts'
import type { Context } from '../../http/context.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { registerOnce } from '../login-states.ts'
import { changeLogin, createLogin, loginExpiry, loginUserId } from '../login-store.ts'
import { type App, findApp, type SignInRequest, signInRequest } from './apps.ts'
import { readCaptcha, type SignInFields, verifyCaptcha } from './fields.ts'
import {
  beginLogin,
  choose,
  factorStep,
  type LoginStep,
  loginResult,
  openLogin,
} from './login-steps.ts'

const SHORTEST_EMAIL = 3
const LONGEST_EMAIL = 72
const LONGEST_NAME = 128
/**
 * Creates a User of the named Project, otherwise a server-scoped one. A registered address gets the same reply, with
 * an unusable Login: only a mail informs its owner. Errors: 400, 429.
 */
export async function registerUser(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<LoginStep> {
  const firstName = fields.required('firstName', 'First name', 1, LONGEST_NAME)
  const lastName = fields.required('lastName', 'Last name', 1, LONGEST_NAME)
  fields.required('email', 'Email', SHORTEST_EMAIL, LONGEST_EMAIL)
  const email = fields.email('email')
  const password = fields.required('password', 'Password')
  const captcha = readCaptcha(fields)
  const request = signInRequest(fields)
  fields.check()
  const app = await findApp(services, ctx, request)
  const { projectId } = app
  const project =
    projectId === undefined
      ? undefined
      : await readRegistry(services.repository, 'Project', projectId)
  requireOpenRegistration(services, project)
  await verifyCaptcha(services, captcha, project)
  await requireGoodPassword(password, 'password', services.config)
  const address = rateLimitAddress(ctx.ip)
  const passwordHash = await services.hashing.run(
    { account: email, address, trust: 'stranger' },
    () => hashPassword(password),
  )
  const person = { firstName, lastName, email, passwordHash, projectId }
  const user = await createUser(services.repository, system, person).catch((error: unknown) => {
    const isKnown = error instanceof HttpError && error.status === 409
    if (!isKnown) throw error
    return undefined
  })
  const login =
    user === undefined
      ? await createDecoyLogin(services, ctx, { app, request })
      : await beginLogin(services, ctx, {
          signIn: { app, request },
          user,
          method: 'password',
          options: {
            isRegistration: true,
          },
        })
  // Not awaited: the mails of the two cases take different times.
  const mailed = mailOwner(services, email, projectId, user)
  mailed.catch((cause: unknown) => services.log.error({ cause }, 'A registration was not mailed'))
  return { login: login?.id }
}

/** Creates an unusable Login, for an address that is already registered. */
async function createDecoyLogin(
  services: Services,
  ctx: Context,
  { app, request }: { readonly app: App; readonly request: SignInRequest },
): Promise<Resource> {
  const { client, projectId } = app
  return await createLogin(services, ctx, {
    authMethod: 'password',
    authTime: new Date().toISOString(),
    expires: loginExpiry(client?.id),
    scope: grantedScope(request.scope),
    project: projectId === undefined ? undefined : { reference: `Project/${projectId}` },
  })
}

/** Mails the owner of the address about the registration or the attempt. */
async function mailOwner(
  { repository, redis, database, config }: Services,
  email: string,
  projectId: string | undefined,
  newcomer: Resource | undefined,
): Promise<void> {
  const user = newcomer ?? (await findUser(repository, email, projectId))
  if (user === undefined || !(await allowLinkMail(redis, user))) return
  const type = newcomer === undefined ? 'reset' : 'invite'
  const link = await createSecurityRequest(repository, system, { type, user })
  const text = newcomer === undefined ? knownAddressMail : registrationMail
  await addMail(database, projectId ?? SYSTEM_PROJECT.id, text(config, email, link))
}

/** Errors: 400 if registration is closed, here or in this Project. */
export function requireOpenRegistration({ config }: Services, project: Resource | undefined): void {
  if (config.registerEnabled || project?.defaultPatientAccessPolicy !== undefined) return
  throw badRequest('Registration is disabled')
}

/**
 * Creates the Project, profile, admin membership and default client in one transaction, after the second factor.
 * Errors: 400.
 */
export async function registerProject(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<LoginStep> {
  const name = fields.required('projectName', 'Project name', 4, 72)
  const { login, user } = await bareLogin(services, ctx, fields)
  const isOpen = services.config.registerEnabled && projectOfUser(user) === undefined
  if (!isOpen) throw badRequest('Registration is disabled')
  const factor = await factorStep(services, login, user)
  if (factor !== undefined) return factor
  const { membership } = await services.repository.transaction(async (inside) => {
    await changeLogin({ repository: inside }, login, registerOnce)
    return await foundProject(inside, system, { name, owner: user, config: services.config })
  })
  return await finish(services, ctx, login, membership)
}

/** Makes the User a patient under the Project's patient policy, after the second factor. Errors: 400. */
export async function registerPatient(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<LoginStep> {
  const projectId = fields.uuid('projectId')
  const { login, user } = await bareLogin(services, ctx, fields)
  const project = await readRegistry(services.repository, 'Project', projectId)
  const policy = project?.defaultPatientAccessPolicy
  const isOpen = isObject(policy) && typeof policy.reference === 'string'
  if (!isOpen || projectOfUser(user) !== projectId) {
    throw badRequest('Project does not allow open registration', 'projectId')
  }
  const factor = await factorStep(services, login, user)
  if (factor !== undefined) return factor
  const home = { id: projectId, name: String(project?.name ?? '') }
  const membership = await services.repository.transaction(async (inside) => {
    await changeLogin({ repository: inside }, login, registerOnce)
    const profile = await createProfile(inside, system, { projectId, type: 'Patient', user })
    return await admitUser(inside, system, home, {
      user,
      profile,
      details: { accessPolicy: policy },
    })
  })
  return await finish(services, ctx, login, membership)
}

async function bareLogin(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<{ login: Resource; user: Resource }> {
  const login = await openLogin(services, ctx, fields)
  if (login.membership !== undefined) throw badRequest('Login already has a membership', 'login')
  const userId = loginUserId(login)
  if (userId === undefined) throw badRequest('Please follow the link in the mail', 'login')
  const user = await readUser(services.repository, userId)
  if (user === undefined || hasLostPassword(login, user)) throw badRequest('Login revoked', 'login')
  return { login, user }
}

async function finish(
  services: Services,
  ctx: Context,
  login: Resource,
  membership: Resource | undefined,
): Promise<LoginStep> {
  if (membership === undefined) throw new Error('Registration created no membership')
  return await loginResult(services, ctx, await choose(services, ctx, login, membership))
}
