/** From a proven identity to a Login with a membership and a code, in as many steps as it takes. */

import { isAllowedFrom, systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import {
  parseReference,
  type Resource,
  referenceIn,
  referenceTo,
} from '../../../shared/fhir/resource.ts'
import { policyReferences } from '../../../shared/identity/memberships.ts'
import { hasLostPassword } from '../../../shared/projects/signed-in-user.ts'
import { projectOfUser, readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { find } from '../../../shared/store/lookups.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../http/context.ts'
import {
  bindLogin,
  classifySender,
  isBoundToBrowser,
  newBinding,
  rememberSignIn,
  sessionCookie,
  setCookie,
} from '../browser.ts'
import {
  connection,
  hashSecret,
  loginClientId,
  loginExpiry,
  loginUserId,
  newLoginSecret,
  patchLogin,
  requireOpen,
} from '../login-store.ts'
import { type App, requestedScope, type SignInRequest } from './apps.ts'
import { readEnrollment } from './mfa.ts'

type AuthMethod = 'password' | 'google' | 'external' | 'exchange'

const system = systemPrincipal(SYSTEM_PROJECT)
const MEMBERSHIPS = 1000
const SESSION_SECONDS = 3600

export interface LoginOptions {
  /** A membership will be made later. */
  readonly isRegistration?: true
  /** Nobody is there to choose: this membership, or the first one that fits. */
  readonly choose?: { readonly membershipId: string | undefined }
  /** True when the Project's own administrators have named the provider. */
  readonly isProjectProvider?: boolean
  /** The browser has shown otherwise than by its headers that it began this on one of our pages. */
  readonly isFromPage?: boolean
}

interface Beginning {
  readonly signIn: { readonly app: App; readonly request: SignInRequest }
  readonly user: Resource
  readonly method: AuthMethod
  readonly options?: LoginOptions | undefined
}

/**
 * A Login of this User; with its membership, if exactly one fits. Undefined when none does and
 * neither a new Project nor a registration is under way. Errors: 400.
 */
export async function beginLogin(
  services: Services,
  ctx: Context,
  { signIn: { app, request }, user, method, options = {} }: Beginning,
): Promise<Resource | undefined> {
  const { client, projectId, launch } = app
  const isBare = app.isNewProject || options.isRegistration === true
  const memberships = isBare
    ? []
    : await membershipsFor(services, user, projectId, request.resourceType)
  if (memberships.length === 0 && !isBare) return undefined
  const only = pick(memberships, options.choose)
  if (options.choose !== undefined && only === undefined) return undefined
  const scope = requestedScope(request)
  const isFromPage = options.isFromPage ?? classifySender(ctx, services.config) === 'page'
  const binding = isFromPage && options.choose === undefined ? newBinding() : undefined
  const login: Resource = {
    resourceType: 'Login',
    user: { reference: referenceTo(user) },
    authMethod: method,
    authTime: new Date().toISOString(),
    expires: loginExpiry(client?.id),
    scope,
    ...(client === undefined ? {} : { client: { reference: referenceTo(client) } }),
    ...(projectId === undefined ? {} : { project: { reference: `Project/${projectId}` } }),
    ...(request.resourceType === undefined ? {} : { profileType: request.resourceType }),
    ...given('browser', binding?.digest),
    ...given('nonce', request.nonce),
    ...given('codeChallenge', request.codeChallenge),
    ...given('codeChallengeMethod', request.codeChallengeMethod),
    ...given('redirectUri', request.redirectUri),
    ...(launch === undefined ? {} : { launch: { reference: `SmartAppLaunch/${launch.id}` } }),
    ...(launch?.patient === undefined
      ? {}
      : { patient: { reference: `Patient/${launch.patient}` } }),
    ...(launch?.encounter === undefined
      ? {}
      : { encounter: { reference: `Encounter/${launch.encounter}` } }),
    ...connection(ctx.ip, ctx.get('User-Agent')),
    ...(isTrustedForProject(user, projectId, options) ? { vouchedBy: 'project' } : {}),
  }
  const chosen = only === undefined ? login : await storeLoginMembership(services, ctx, login, only)
  const stored = parseVersion(await services.repository.create(system, chosen))
  if (binding !== undefined) bindLogin(ctx, services.config, stored.id ?? '', binding.secret)
  return stored
}

/** A Project's own provider is trusted with its own Users; others it only lets into the Project. */
export function isTrustedForProject(
  user: Resource,
  projectId: string | undefined,
  { isProjectProvider }: LoginOptions,
): boolean {
  const isOwn = projectId !== undefined && projectOfUser(user) === projectId
  return isProjectProvider === true && !isOwn
}

function pick(
  memberships: readonly Resource[],
  choice: LoginOptions['choose'],
): Resource | undefined {
  if (choice === undefined) return memberships.length === 1 ? memberships[0] : undefined
  const { membershipId } = choice
  return memberships.find(({ id }) => membershipId === undefined || id === membershipId)
}

function given(name: string, value: string | undefined) {
  return value === undefined ? {} : { [name]: value }
}

/** Active ones, in the Project if it is known, with a profile of the type if one is wanted. */
export async function membershipsFor(
  { repository }: Services,
  user: Resource,
  projectId: string | undefined,
  profileType?: string,
): Promise<Resource[]> {
  const values = [referenceTo(user)]
  const condition = { code: 'user', type: 'reference', modifier: undefined, values } as const
  const found = await find(repository, system, 'ProjectMembership', {
    conditions: [condition],
    count: MEMBERSHIPS,
  })
  const home = projectOfUser(user) ?? projectId
  return found.filter(
    ({ active, project, profile }) =>
      active !== false &&
      (home === undefined || referenceIn(project) === `Project/${home}`) &&
      (projectId === undefined || referenceIn(project) === `Project/${projectId}`) &&
      (profileType === undefined || parseReference(referenceIn(profile))?.type === profileType),
  )
}

/** The Login with this membership, which its User has. Errors: 400. */
export async function storeLoginMembership(
  { principals }: Services,
  ctx: Context,
  login: Resource,
  membership: Resource,
): Promise<Resource> {
  const home = referenceIn(login.project)
  const isElsewhere = home !== undefined && home !== referenceIn(membership.project)
  if (isElsewhere || referenceIn(membership.user) !== referenceIn(login.user)) {
    throw badRequest('Invalid profile')
  }
  if (membership.active === false) throw badRequest('Profile not active')
  const session = await principals.forMembership(membership.id ?? '')
  if (session === undefined) throw badRequest('Profile not found')
  if (!isAllowedFrom(session.principal.ipRules, ctx.ip)) throw badRequest('IP address not allowed')
  const { project } = session.principal
  if (project.features.includes('google-auth-required') && login.authMethod !== 'google') {
    throw badRequest('Google authentication is required')
  }
  if (new Set(policyReferences(session.membership)).size > session.policies.length) {
    throw badRequest(
      'Cannot authenticate: Invalid access policy configuration; an AccessPolicy does not exist',
    )
  }
  const type = session.profile.resourceType
  return {
    ...login,
    project: { reference: `Project/${project.id}` },
    membership: { reference: referenceTo(membership) },
    profileType: type,
    ...(login.patient === undefined && type === 'Patient'
      ? { patient: { reference: referenceTo(session.profile) } }
      : {}),
  }
}

/** Returns the next step of the sign-in, or the code that becomes tokens. Errors: 400. */
export async function loginResult(
  services: Services,
  ctx: Context,
  login: Resource,
): Promise<Record<string, unknown>> {
  const next = await nextStep(services, login)
  if (next !== undefined) return next
  const result = await issueCode(services, ctx, login)
  await rememberSignIn(services, ctx, login)
  return result
}

/** Undefined when nothing is missing. Errors: 400. */
export async function nextStep(
  services: Services,
  login: Resource,
): Promise<Record<string, unknown> | undefined> {
  requireOpen(login)
  const id = login.id ?? ''
  const userId = loginUserId(login)
  // A registration of a known address: its Login looks like any other.
  if (userId === undefined) return { login: id }
  const user = await readUser(services.repository, userId)
  if (user === undefined || hasLostPassword(login, user)) throw badRequest('Login revoked', 'login')
  if (login.authMethod === 'password' && login.mfaVerified !== true) {
    if (user.mfaEnrolled === true) return { login: id, mfaRequired: true }
    if (user.mfaRequired === true) {
      return { login: id, mfaEnrollRequired: true, ...(await readEnrollment(services, user)) }
    }
  }
  if (login.membership !== undefined) return undefined
  const projectId = parseReference(referenceIn(login.project))?.id
  const type = typeof login.profileType === 'string' ? login.profileType : undefined
  const memberships = await membershipsFor(services, user, projectId, type)
  if (memberships.length < 2) return { login: id }
  return { login: id, memberships: memberships.map(summary) }
}

function summary({ id, project, profile, identifier }: Resource) {
  return { id, project, profile, identifier }
}

/**
 * Every call makes another code; the one before is worth nothing. A sign-in on our pages becomes a session of its
 * browser with the client; what came of a session takes its place only once the person has consented. Errors: 400.
 */
export async function issueCode(
  services: Services,
  ctx: Context,
  login: Resource,
): Promise<{ login: string; code: string }> {
  const id = login.id ?? ''
  const code = newLoginSecret(id)
  const clientId = loginClientId(login)
  const isSession =
    isBoundToBrowser(login) && (login.bySession !== true || login.consented === true)
  const cookie = clientId === undefined || !isSession ? undefined : newLoginSecret(id)
  await patchLogin(services, id, (current) => {
    requireOpen(current)
    return {
      ...current,
      code: hashSecret(code),
      ...(cookie === undefined ? {} : { cookie: hashSecret(cookie) }),
    }
  })
  if (cookie !== undefined && clientId !== undefined) {
    setCookie(ctx, services.config, {
      name: sessionCookie(clientId),
      value: cookie,
      seconds: SESSION_SECONDS,
    })
  }
  return { login: id, code }
}
