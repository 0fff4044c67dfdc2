/** `/auth/login` and the choices that follow it. */
import { hashPassword, isOutdated, verifyPassword } from '../../shared/access/passwords.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { smartScopes } from '../../shared/access/scopes.ts'
import { findUserForSignIn, normalEmail, patchUser } from '../../shared/api/users.ts'
import { badRequest } from '../../shared/errors.ts'
import { type Resource, referenceTo } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/services.ts'
import { SYSTEM_PROJECT } from '../../shared/store/projects.ts'
import { parseVersion } from '../../shared/store/rows.ts'
import type { Context } from '../context.ts'
import { patchLogin, readLogin, requireOpen } from '../logins.ts'
import { findApp, signInRequest } from './apps.ts'
import { audit } from './audit.ts'
import type { Fields } from './fields.ts'
import type { Guesses } from './guesses.ts'
import { beginLogin, loginResult, withMembership } from './sign-in.ts'

const SHORTEST = 5
const LONGEST = 1024
const system = systemPrincipal(SYSTEM_PROJECT)

/** Unknown users and wrong passwords get one answer, after the same work. Errors: 400, 429. */
export async function logIn(
  services: Services,
  ctx: Context,
  guesses: Guesses,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const email = fields.email('email')
  const password = fields.required('password', 'Password', SHORTEST, LONGEST)
  const request = signInRequest(fields)
  fields.check()
  const app = await findApp(services, ctx, request)
  const account = `${app.projectId ?? 'server'}:${email}`
  await guesses.check(account, ctx.ip)
  const user = await findUserForSignIn(services.repository, email, app.projectId)
  const stored = typeof user?.passwordHash === 'string' ? user.passwordHash : undefined
  const isRight = await verifyPassword(password, stored)
  const login =
    isRight && user !== undefined
      ? await beginLogin(services, ctx, { app, request }, user, 'password')
      : undefined
  if (user === undefined || login === undefined) {
    await guesses.failed(account, ctx.ip)
    const who = user === undefined ? undefined : referenceTo(user)
    const what = 'Sign-in refused'
    audit(services, ctx, { kind: 'login', outcome: '4', what, who, projectId: app.projectId })
    throw badRequest('Email or password is invalid')
  }
  await guesses.succeeded(account)
  if (stored !== undefined && isOutdated(stored)) {
    const passwordHash = await hashPassword(password)
    await patchUser(services.repository, user.id ?? '', { passwordHash })
  }
  return await loginResult(services, ctx, login)
}

/** `profile` is the id of a ProjectMembership, whatever it is called. Errors: 400. */
export async function chooseProfile(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const login = await openLogin(services, fields)
  const id = fields.required('profile', 'Profile')
  fields.check()
  if (login.membership !== undefined) throw badRequest('Login profile already set', 'login')
  const isId = /^[0-9a-f-]{36}$/i.test(id)
  const [found] = isId
    ? await services.repository.readMany(system, [{ type: 'ProjectMembership', id }])
    : []
  if (found?.content === undefined) throw badRequest('Profile not found', 'profile')
  const membership = parseVersion(found)
  return await loginResult(services, ctx, await choose(services, ctx, login, membership))
}

/** The Login with this membership, stored. Errors: 400. */
export async function choose(
  services: Services,
  ctx: Context,
  login: Resource,
  membership: Resource,
): Promise<Resource> {
  const next = await withMembership(services, ctx, login, membership)
  return await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    if (current.membership !== undefined) throw badRequest('Login profile already set', 'login')
    return { ...next, resourceType: 'Login' }
  })
}

/** Fewer SMART words than were asked for. Errors: 400. */
export async function chooseScope(
  services: Services,
  ctx: Context,
  fields: Fields,
): Promise<Record<string, unknown>> {
  const login = await openLogin(services, fields)
  const scope = fields.required('scope', 'Scope')
  fields.check()
  const asked = String(login.scope ?? '')
  // Without its SMART words a scope would be worth more than with them.
  const isWider = smartScopes(asked).length > 0 && smartScopes(scope).length === 0
  const words = scope.trim().split(/\s+/)
  if (isWider || !words.every((word) => asked.split(' ').includes(word))) {
    throw badRequest('Invalid scope', 'scope')
  }
  const next = await patchLogin(services, login.id ?? '', (current) => {
    requireOpen(current)
    return { ...current, scope: words.join(' ') }
  })
  return await loginResult(services, ctx, next)
}

/** The Login that `login` names. Errors: 400. */
export async function openLogin(services: Services, fields: Fields): Promise<Resource> {
  const id = fields.uuid('login')
  fields.check()
  return await requireLogin(services, id)
}

/** Errors: 400. */
export async function requireLogin(services: Services, id: string): Promise<Resource> {
  const login = await readLogin(services, id)
  if (login === undefined) throw badRequest('Login not found', 'login')
  requireOpen(login)
  return login
}

/** Whether a provider knows the addresses of this domain. */
export function domainOf(email: string): string {
  return normalEmail(email).split('@').at(-1) ?? ''
}
