/** `/auth/login` and the choices that follow it. */
import { type Device, isDeviceCurrent } from '../../../shared/access/credentials/devices.ts'
import type { Applicant } from '../../../shared/access/credentials/hashing.ts'
import {
  hashPassword,
  isOutdated,
  verifyPassword,
} from '../../../shared/access/credentials/passwords.ts'
import { systemPrincipal } from '../../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { isWordWithin, smartScopes } from '../../../shared/access/scopes.ts'
import { badRequest } from '../../../shared/core/errors.ts'
import { type Resource, referenceTo } from '../../../shared/fhir/resource.ts'
import {
  anonymousGuess,
  checkGuess,
  deviceGuess,
  isRegular,
  rememberRegular,
  requireNoPause,
} from '../../../shared/identity/guesses.ts'
import { findUserForSignIn, patchUser } from '../../../shared/projects/users.ts'
import type { Services } from '../../../shared/request/services.ts'
import { parseVersion } from '../../../shared/store/rows/rows.ts'
import type { Context } from '../../http/context.ts'
import { rateLimitAddress } from '../../middleware/limits.ts'
import { isBoundToBrowser, isFromSameBrowser, readDeviceCookie } from '../browser.ts'
import { audit, patchLogin, readLogin, requireOpen } from '../login-store.ts'
import { type App, findApp, type SignInRequest, signInRequest } from './apps.ts'
import type { Fields } from './fields.ts'
import {
  beginLogin,
  issueCode,
  loginResult,
  nextStep,
  storeLoginMembership,
} from './login-steps.ts'

const SHORTEST = 5
const LONGEST = 1024
const system = systemPrincipal(SYSTEM_PROJECT)

/** Unknown users and wrong passwords get one answer, after the same work. Errors: 400, 429. */
export async function logIn(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const email = fields.email('email')
  const password = fields.required('password', 'Password', SHORTEST, LONGEST)
  const request = signInRequest(fields)
  fields.check()
  const app = await findApp(services, ctx, request)
  const device = readDeviceCookie(services, ctx, email)
  const address = rateLimitAddress(ctx.ip)
  const guessed = device ? deviceGuess('password', device.id) : anonymousGuess(email, address)
  // Before the queue, so that whoever has to wait for a pause takes no place in it.
  const [isKnownHere] = await Promise.all([
    isRegular(services.redis, email, address),
    requireNoPause(services.redis, guessed),
  ])
  const trust = device ? 'proven' : isKnownHere ? 'regular' : 'stranger'
  const applicant: Applicant = { account: email, address, trust }
  const attempt = { email, password, app, request, device }
  const login = await services.hashing.run(applicant, () => prove(services, ctx, attempt))
  return await loginResult(services, ctx, login)
}

interface Attempt {
  readonly email: string
  readonly password: string
  readonly app: App
  readonly request: SignInRequest
  readonly device: Device | undefined
}

async function prove(services: Services, ctx: Context, attempt: Attempt): Promise<Resource> {
  const { email, password, app, request, device } = attempt
  const { redis, repository } = services
  const user = await findUserForSignIn(repository, email, app.projectId)
  const isKnown = user !== undefined && device !== undefined && isDeviceCurrent(device, user)
  const address = rateLimitAddress(ctx.ip)
  const guessed = isKnown ? deviceGuess('password', device.id) : anonymousGuess(email, address)
  const stored = typeof user?.passwordHash === 'string' ? user.passwordHash : undefined
  const login = await checkGuess(redis, guessed, user?.id ?? 'nobody', async () => {
    const isRight = await verifyPassword(password, stored)
    if (!isRight || user === undefined) return undefined
    return await beginLogin(services, ctx, { signIn: { app, request }, user, method: 'password' })
  })
  if (user === undefined || login === undefined) {
    const who = user === undefined ? undefined : referenceTo(user)
    const what = 'Sign-in refused'
    audit(services, ctx, { kind: 'login', outcome: '4', what, who, projectId: app.projectId })
    throw badRequest('Email or password is invalid')
  }
  await rememberRegular(redis, email, address)
  if (stored !== undefined && isOutdated(stored)) {
    const passwordHash = await hashPassword(password)
    await patchUser(repository, user.id ?? '', { passwordHash })
  }
  return login
}

/** `profile` is the id of a ProjectMembership, whatever it is called. Errors: 400. */
export async function chooseProfile(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const login = await readOpenLogin(services, ctx, fields)
  const id = fields.required('profile', 'Profile')
  fields.check()
  if (login.membership !== undefined) throw badRequest('Login profile already set', 'login')
  const isId = /^[0-9a-f-]{36}$/i.test(id)
  const [found] = isId
    ? await services.repository.readMany(system, [{ type: 'ProjectMembership', id }])
    : []
  if (found?.content === undefined) throw badRequest('Profile not found', 'profile')
  const membership = parseVersion(found)
  return await loginResult(
    services,
    ctx,
    await setLoginMembership(services, ctx, login, membership),
  )
}

/** The Login with this membership, stored. Errors: 400. */
export async function setLoginMembership(
  services: Services,
  ctx: Context,
  login: Resource,
  membership: Resource,
): Promise<Resource> {
  const next = await storeLoginMembership(services, ctx, login, membership)
  return await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    if (current.membership !== undefined) throw badRequest('Login profile already set', 'login')
    return { ...next, resourceType: 'Login' }
  })
}

/** Stores the scope that the person allows: the requested one, or fewer SMART words. Errors: 400. */
export async function chooseScope(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const login = await readOpenLogin(services, ctx, fields)
  const scope = fields.required('scope', 'Scope')
  fields.check()
  const asked = String(login.scope ?? '')
  // Without its SMART words a scope would be worth more than with them.
  const isWider = smartScopes(asked).length > 0 && smartScopes(scope).length === 0
  const words = scope.trim().split(/\s+/)
  if (isWider || !words.every((word) => isWordWithin(word, asked))) {
    throw badRequest('Invalid scope', 'scope')
  }
  const next = await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    return { ...current, scope: words.join(' '), consented: true }
  })
  return await loginResult(services, ctx, next)
}

/** The Login that `login` names. Errors: 400. */
export async function readOpenLogin(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Resource> {
  const id = fields.uuid('login')
  fields.check()
  return await requireLogin(services, ctx, id)
}

/** The Login, if this browser may go on with it; another one learns nothing of it. Errors: 400. */
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

/** Where a sign-in stands. Its code goes to the browser that began it, or where it needs a verifier. Errors: 400. */
export async function resumeLogin(
  services: Services,
  ctx: Context,
  id: string,
): Promise<Record<string, unknown>> {
  const login = await requireLogin(services, ctx, id)
  const next = await nextStep(services, login)
  if (next !== undefined) return next
  const mayHaveCode = isBoundToBrowser(login) || login.codeChallenge !== undefined
  return mayHaveCode ? await issueCode(services, ctx, login) : { login: id }
}
