/** Steps from a proven identity to a Login with a membership and a code. */

import { grantedScope, isWordWithin, smartScopes } from '../../../shared/access/scopes.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { type Resource, referenceIn, referenceTo, targetIn } from '../../../shared/fhir/resource.ts'
import { policyReferences } from '../../../shared/identity/memberships.ts'
import { hasLostPassword } from '../../../shared/projects/signed-in-user.ts'
import { findMemberships, projectOfUser, readUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { readRegistry } from '../../../shared/store/lookups.ts'
import type { Context } from '../../http/context.ts'
import {
  bindLogin,
  classifySender,
  isBoundToBrowser,
  isFromSameBrowser,
  newBinding,
  rememberSignIn,
  sessionCookie,
  setCookie,
} from '../browser.ts'
import { chooseMembership, consent, issueCode } from '../login-states.ts'
import {
  changeLogin,
  createLogin,
  hashSecret,
  loginClientId,
  loginExpiry,
  loginUserId,
  newLoginSecret,
  readLogin,
  requireOpen,
} from '../login-store.ts'
import { type App, launchElements, type SignInRequest } from './apps.ts'
import type { SignInFields } from './fields.ts'
import { neededFactor, readEnrollment } from './mfa.ts'

type AuthMethod = 'password' | 'google' | 'external' | 'exchange'

/** A reply of the sign-in: the next step, or the code to exchange for tokens. */
export type LoginStep = Readonly<Record<string, unknown>>

const SESSION_SECONDS = 3600

export interface LoginOptions {
  /** The membership is created later. */
  readonly isRegistration?: true
  /** Without a person to choose: this membership, or the first match. */
  readonly choose?: { readonly membershipId: string | undefined }
  /** True when administrators of the Project configured the provider. */
  readonly isProjectProvider?: boolean
  /** The browser has proven by more than its headers that it began this on one of our pages. */
  readonly isFromPage?: boolean
}

interface Beginning {
  readonly signIn: { readonly app: App; readonly request: SignInRequest }
  readonly user: Resource
  readonly method: AuthMethod
  readonly options?: LoginOptions | undefined
}

/**
 * Creates a Login of this User, with its membership if exactly one matches. Returns undefined if none matches and
 * neither a new Project nor a registration is in progress. Errors: 400.
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
  const scope = grantedScope(request.scope)
  const isFromPage = options.isFromPage ?? classifySender(ctx, services.config) === 'page'
  const binding = isFromPage && options.choose === undefined ? newBinding() : undefined
  const login = {
    user: { reference: referenceTo(user) },
    authMethod: method,
    authTime: new Date().toISOString(),
    expires: loginExpiry(client?.id),
    scope,
    client: client && { reference: referenceTo(client) },
    project: projectId === undefined ? undefined : { reference: `Project/${projectId}` },
    profileType: request.resourceType,
    browser: binding?.digest,
    nonce: request.nonce,
    codeChallenge: request.codeChallenge,
    codeChallengeMethod: request.codeChallengeMethod,
    redirectUri: request.redirectUri,
    ...launchElements(launch),
    vouchedBy: isTrustedForProject(user, projectId, options) ? 'project' : undefined,
  }
  const chosen = only && (await membershipElements(services, ctx, login, only))
  const stored = await createLogin(services, ctx, { ...login, ...chosen })
  if (binding !== undefined) bindLogin(ctx, services.config, stored.id ?? '', binding.secret)
  return stored
}

/** A Project's own provider is trusted with its own Users; for others it only grants access to the Project. */
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

/** Returns active memberships, filtered by Project and profile type if given. */
export async function membershipsFor(
  { repository }: Services,
  user: Resource,
  projectId: string | undefined,
  profileType?: string,
): Promise<Resource[]> {
  const found = await findMemberships(repository, user)
  const home = projectOfUser(user) ?? projectId
  return found.filter(
    ({ active, project, profile }) =>
      active !== false &&
      (home === undefined || referenceIn(project) === `Project/${home}`) &&
      (projectId === undefined || referenceIn(project) === `Project/${projectId}`) &&
      (profileType === undefined || targetIn(profile)?.type === profileType),
  )
}

/** Returns the elements of a Login with this membership of its User. Errors: 400. */
export async function membershipElements(
  { principals }: Services,
  ctx: Context,
  login: Readonly<Record<string, unknown>>,
  membership: Resource,
): Promise<Readonly<Record<string, unknown>>> {
  const home = referenceIn(login.project)
  const isElsewhere = home !== undefined && home !== referenceIn(membership.project)
  if (isElsewhere || referenceIn(membership.user) !== referenceIn(login.user)) {
    throw badRequest('Invalid profile')
  }
  if (membership.active === false) throw badRequest('Profile not active')
  const session = await principals.forMembership(membership.id ?? '')
  if (session === undefined) throw badRequest('Profile not found')
  if (session.principal.allowsAddress?.(ctx.ip) === false) {
    throw badRequest('IP address not allowed')
  }
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
    project: { reference: `Project/${project.id}` },
    membership: { reference: referenceTo(membership) },
    profileType: type,
    ...(login.patient === undefined && type === 'Patient'
      ? { patient: { reference: referenceTo(session.profile) } }
      : {}),
  }
}

/** Returns the next step of the sign-in, or the code. Errors: 400. */
export async function loginResult(
  services: Services,
  ctx: Context,
  login: Resource,
): Promise<LoginStep> {
  const next = await nextStep(services, login)
  if (next !== undefined) return next
  const result = await withCode(services, ctx, login)
  await rememberSignIn(services, ctx, login)
  return result
}

/** Returns undefined when no step is missing. Errors: 400. */
async function nextStep(services: Services, login: Resource): Promise<LoginStep | undefined> {
  requireOpen(login)
  const id = login.id ?? ''
  const userId = loginUserId(login)
  // A registration of a known address looks like any other.
  if (userId === undefined) return { login: id }
  const user = await readUser(services.repository, userId)
  if (user === undefined || hasLostPassword(login, user)) throw badRequest('Login revoked', 'login')
  const factor = await factorStep(services, login, user)
  if (factor !== undefined) return factor
  if (login.membership !== undefined) return undefined
  const projectId = targetIn(login.project)?.id
  const type = typeof login.profileType === 'string' ? login.profileType : undefined
  const memberships = await membershipsFor(services, user, projectId, type)
  if (memberships.length < 2) return { login: id }
  return { login: id, memberships: memberships.map(summary) }
}

/** Returns the step for a second factor; undefined when none is missing. */
export async function factorStep(
  services: Services,
  login: Resource,
  user: Resource,
): Promise<LoginStep | undefined> {
  const { id } = login
  const factor = await neededFactor(services, login, user)
  if (factor === 'app') return { login: id, mfaRequired: true, mfaMethods: ['totp'] }
  if (factor === 'mail') {
    return { login: id, mfaRequired: true, mfaMethods: ['email'], email: user.email }
  }
  if (factor === 'none') return undefined
  return { login: id, mfaEnrollRequired: true, ...(await readEnrollment(services, user)) }
}

function summary({ id, project, profile, identifier }: Resource) {
  return { id, project, profile, identifier }
}

/**
 * Issues a code, which invalidates the previous one. A sign-in on our pages becomes a session of the browser with the
 * client; a Login made from a session replaces it only after consent. Errors: 400.
 */
export async function withCode(
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
  const cookieDigest = cookie && hashSecret(cookie)
  await changeLogin(services, login, (current) =>
    issueCode(current, hashSecret(code), cookieDigest),
  )
  if (cookie !== undefined && clientId !== undefined) {
    setCookie(ctx, services.config, {
      name: sessionCookie(clientId),
      value: cookie,
      seconds: SESSION_SECONDS,
    })
  }
  return { login: id, code }
}

/** `profile` is the id of a ProjectMembership, despite its name. Errors: 400. */
export async function chooseProfile(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<LoginStep> {
  const login = await openLogin(services, ctx, fields)
  const id = fields.required('profile', 'Profile')
  fields.check()
  if (login.membership !== undefined) throw badRequest('Login profile already set', 'login')
  const membership = await readRegistry(services.repository, 'ProjectMembership', id)
  if (membership === undefined) throw badRequest('Profile not found', 'profile')
  return await loginResult(services, ctx, await choose(services, ctx, login, membership))
}

/** Stores the membership in the Login. Errors: 400. */
export async function choose(
  services: Services,
  ctx: Context,
  login: Resource,
  membership: Resource,
): Promise<Resource> {
  const chosen = await membershipElements(services, ctx, login, membership)
  return await changeLogin(services, login, (current) => chooseMembership(current, chosen))
}

/** Stores the allowed scope: the requested one, or fewer SMART words. Errors: 400. */
export async function chooseScope(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<LoginStep> {
  const login = await openLogin(services, ctx, fields)
  const scope = fields.required('scope', 'Scope')
  fields.check()
  const asked = String(login.scope ?? '')
  // Without SMART words a scope would grant more than with them.
  const isWider = smartScopes(asked).length > 0 && smartScopes(scope).length === 0
  const words = scope.trim().split(/\s+/)
  if (isWider || !words.every((word) => isWordWithin(word, asked))) {
    throw badRequest('Invalid scope', 'scope')
  }
  const next = await changeLogin(services, login, (current) => consent(current, words.join(' ')))
  return await loginResult(services, ctx, next)
}

/** Returns the Login that `login` names. Errors: 400. */
export async function openLogin(
  services: Services,
  ctx: Context,
  fields: SignInFields,
): Promise<Resource> {
  const id = fields.uuid('login')
  fields.check()
  return await requireLogin(services, ctx, id)
}

/** Returns the Login if this browser may continue it; other browsers learn nothing about it. Errors: 400. */
export async function requireLogin(
  services: Services,
  ctx: Context,
  id: string,
): Promise<Resource> {
  const login = await readLogin(services, id)
  if (login === undefined || !isFromSameBrowser(ctx, services.config, login)) {
    throw badRequest('Login not found', 'login')
  }
  requireOpen(login)
  return login
}

/** Returns the current step. Codes go only to the browser that began the sign-in, or need a verifier. Errors: 400. */
export async function resumeLogin(
  services: Services,
  ctx: Context,
  id: string,
): Promise<LoginStep> {
  const login = await requireLogin(services, ctx, id)
  const next = await nextStep(services, login)
  if (next !== undefined) return next
  const mayHaveCode = isBoundToBrowser(login) || login.codeChallenge !== undefined
  return mayHaveCode ? await withCode(services, ctx, login) : { login: id }
}
