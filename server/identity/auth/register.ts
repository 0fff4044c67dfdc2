/** Self registration: a new User, then a Project of their own or a place among a Project's patients. */
import { hashPassword, requireGoodPassword } from '../../../shared/access/credentials/passwords.ts'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest, HttpError } from '../../../shared/core/errors.ts'
import { isObject, type Resource } from '../../../shared/fhir/resource.ts'
import { addMail } from '../../../shared/outbound/mails.ts'
import { admitUser, createProfile, foundProject } from '../../../shared/projects/init.ts'
import { knownAddressMail, registrationMail } from '../../../shared/projects/mail-texts.ts'
import { createSecurityRequest } from '../../../shared/projects/security-requests.ts'
import { hasLostPassword } from '../../../shared/projects/signed-in-user.ts'
import { createUser, findUser, projectOfUser, readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../http/context.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { connection, loginExpiry, loginUserId } from '../login-store.ts'
import { type App, findApp, requestedScope, type SignInRequest, signInRequest } from './apps.ts'
import type { Fields } from './fields.ts'
import { readCaptcha, verifyCaptcha } from './fields.ts'
import { beginLogin, loginResult } from './login-steps.ts'
import { readOpenLogin, setLoginMembership } from './password-login.ts'
import { allowPasswordMail } from './passwords.ts'

const SHORTEST_EMAIL = 3
const LONGEST_EMAIL = 72
const LONGEST_NAME = 128
const system = systemPrincipal(SYSTEM_PROJECT)

/**
 * A User of the named Project, else a server scoped one. For an address that is registered the answer is the
 * same, with a Login that leads nowhere: only the mail says so, to whom the address belongs. Errors: 400, 429.
 */
export async function registerUser(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
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
  const project = projectId === undefined ? undefined : await readProject(services, projectId)
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
      ? await beginNothing(services, ctx, { app, request })
      : await beginLogin(services, ctx, {
          signIn: { app, request },
          user,
          method: 'password',
          options: {
            isRegistration: true,
          },
        })
  // The answer does not wait for it, as what is mailed differs.
  const mailed = mailOwner(services, email, projectId, user)
  mailed.catch((cause: unknown) => services.log.error({ cause }, 'A registration was not mailed'))
  return { login: login?.id }
}

/** A Login of nobody, for an address that is registered already. */
async function beginNothing(
  { repository }: Services,
  ctx: Context,
  { app, request }: { readonly app: App; readonly request: SignInRequest },
): Promise<Resource> {
  const { client, projectId } = app
  const written = await repository.create(system, {
    resourceType: 'Login',
    authMethod: 'password',
    authTime: new Date().toISOString(),
    expires: loginExpiry(client?.id),
    scope: requestedScope(request),
    ...(projectId === undefined ? {} : { project: { reference: `Project/${projectId}` } }),
    ...connection(ctx.ip, ctx.get('User-Agent')),
  })
  return parseVersion(written)
}

/** Mails the owner of the address that it was registered, or that somebody tried. */
async function mailOwner(
  { repository, redis, database, config }: Services,
  email: string,
  projectId: string | undefined,
  newcomer: Resource | undefined,
): Promise<void> {
  const user = newcomer ?? (await findUser(repository, email, projectId))
  if (user === undefined || !(await allowPasswordMail(redis, user))) return
  const type = newcomer === undefined ? 'reset' : 'invite'
  const link = await createSecurityRequest(repository, system, { type, user })
  const text = newcomer === undefined ? knownAddressMail : registrationMail
  await addMail(database, projectId ?? SYSTEM_PROJECT.id, text(config, email, link))
}

/** Errors: 400 unless anybody may register, here or in this Project. */
export function requireOpenRegistration({ config }: Services, project: Resource | undefined): void {
  if (config.registerEnabled || project?.defaultPatientAccessPolicy !== undefined) return
  throw badRequest('Registration is disabled')
}

/** Project, profile, admin membership and default client, or none of them. Errors: 400. */
export async function registerProject(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const name = fields.required('projectName', 'Project name', 4, 72)
  const { login, user } = await bareLogin(services, ctx, fields)
  const isOpen = services.config.registerEnabled && projectOfUser(user) === undefined
  if (!isOpen) throw badRequest('Registration is disabled')
  const { membership } = await services.repository.transaction((inside) =>
    foundProject(inside, system, { name, owner: user, config: services.config }),
  )
  return await finish(services, ctx, login, membership)
}

/** The User becomes a patient under the Project's policy for patients. Errors: 400. */
export async function registerPatient(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const projectId = fields.uuid('projectId')
  const { login, user } = await bareLogin(services, ctx, fields)
  const project = await readProject(services, projectId)
  const policy = project?.defaultPatientAccessPolicy
  const isOpen = isObject(policy) && typeof policy.reference === 'string'
  if (!isOpen || projectOfUser(user) !== projectId) {
    throw badRequest('Project does not allow open registration', 'projectId')
  }
  const home = { id: projectId, name: String(project?.name ?? '') }
  const membership = await services.repository.transaction(async (inside) => {
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
  fields: Fields,
): Promise<{ login: Resource; user: Resource }> {
  const login = await readOpenLogin(services, ctx, fields)
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
): Promise<Record<string, unknown>> {
  if (membership === undefined) throw new Error('A registration made no membership')
  return await loginResult(
    services,
    ctx,
    await setLoginMembership(services, ctx, login, membership),
  )
}

export async function readProject(
  { repository }: Services,
  id: string,
): Promise<Resource | undefined> {
  const [found] = await repository.readMany(system, [{ type: 'Project', id }])
  return found?.content === undefined ? undefined : parseVersion(found)
}
