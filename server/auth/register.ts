/** Self registration: a new User, then a Project of their own or a place among a Project's patients. */

import { requireGoodPassword } from '../../shared/access/password-rules.ts'
import { hashPassword } from '../../shared/access/passwords.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { admitUser, createProfile, foundProject } from '../../shared/api/found-project.ts'
import { createUser, findUser, projectOfUser, readUser } from '../../shared/api/users.ts'
import { badRequest, HttpError } from '../../shared/errors.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { SYSTEM_PROJECT } from '../../shared/store/projects.ts'
import { parseVersion } from '../../shared/store/rows.ts'
import type { Context } from '../context.ts'
import { userIdOf } from '../logins.ts'
import { findApp, signInRequest } from './apps.ts'
import type { Fields } from './fields.ts'
import { choose, openLogin } from './login.ts'
import { captchaIn, requireHuman } from './recaptcha.ts'
import { beginLogin, loginResult } from './sign-in.ts'

const SHORTEST_EMAIL = 3
const LONGEST_EMAIL = 72
const LONGEST_NAME = 128
const system = systemPrincipal(SYSTEM_PROJECT)

/** A User of the named Project, else a server scoped one. Errors: 400. */
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
  const captcha = captchaIn(fields)
  const request = signInRequest(fields)
  fields.check()
  const app = await findApp(services, ctx, request)
  const { projectId } = app
  const project = projectId === undefined ? undefined : await readProject(services, projectId)
  requireOpenRegistration(services, project)
  await requireHuman(services, captcha, project)
  await requireGoodPassword(password, 'password', services.config)
  const isTaken = (await findUser(services.repository, email, projectId)) !== undefined
  if (isTaken) throw badRequest('Email already registered', 'email')
  const passwordHash = await hashPassword(password)
  const user = await createUser(services.repository, system, {
    firstName,
    lastName,
    email,
    passwordHash,
    projectId,
  }).catch((error: unknown) => {
    const isRace = error instanceof HttpError && error.status === 409
    throw isRace ? badRequest('Email already registered', 'email') : error
  })
  const login = await beginLogin(services, ctx, { app, request }, user, 'password', {
    isRegistration: true,
  })
  return { login: login?.id }
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
  const { login, user } = await bareLogin(services, fields)
  const isOpen = services.config.registerEnabled && projectOfUser(user) === undefined
  if (!isOpen) throw badRequest('Registration is disabled')
  const { membership } = await services.repository.transaction((inside) =>
    foundProject(inside, system, name, user, services.config),
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
  const { login, user } = await bareLogin(services, fields)
  const project = await readProject(services, projectId)
  const policy = project?.defaultPatientAccessPolicy
  const isOpen = isObject(policy) && typeof policy.reference === 'string'
  if (!isOpen || projectOfUser(user) !== projectId) {
    throw badRequest('Project does not allow open registration', 'projectId')
  }
  const home = { id: projectId, name: String(project?.name ?? '') }
  const membership = await services.repository.transaction(async (inside) => {
    const profile = await createProfile(inside, system, projectId, 'Patient', user)
    return await admitUser(inside, system, home, user, profile, { accessPolicy: policy })
  })
  return await finish(services, ctx, login, membership)
}

async function bareLogin(
  services: Services,
  fields: Fields,
): Promise<{ login: Resource; user: Resource }> {
  const login = await openLogin(services, fields)
  if (login.membership !== undefined) throw badRequest('Login already has a membership', 'login')
  const user = await readUser(services.repository, userIdOf(login) ?? '')
  if (user === undefined) throw badRequest('Login revoked', 'login')
  return { login, user }
}

async function finish(
  services: Services,
  ctx: Context,
  login: Resource,
  membership: Resource | undefined,
): Promise<Record<string, unknown>> {
  if (membership === undefined) throw new Error('A registration made no membership')
  return await loginResult(services, ctx, await choose(services, ctx, login, membership))
}

export async function readProject(
  { repository }: Services,
  id: string,
): Promise<Resource | undefined> {
  const [found] = await repository.readMany(system, [{ type: 'Project', id }])
  return found?.content === undefined ? undefined : parseVersion(found)
}
