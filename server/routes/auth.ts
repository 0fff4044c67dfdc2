/** `/auth/**`: signing in step by step, and what a person does with their own account. */

import { alwaysProves, readSignInForm } from '../../shared/access/credentials/clients.ts'
import { reaches } from '../../shared/access/grant.ts'
import { may } from '../../shared/access/policy.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { SYSTEM_PROJECT } from '../../shared/access/project-context.ts'
import { grantedScope } from '../../shared/access/scopes.ts'
import { allOk, badRequest, forbidden, notFound } from '../../shared/core/errors.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Session } from '../../shared/identity/principals.ts'
import {
  isRecent,
  requireReauthentication,
  sessionDetails,
  signedInUser,
  userIdOfSession,
} from '../../shared/projects/signed-in-user.ts'
import { readUser, recentLogins } from '../../shared/projects/users.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import type { Services } from '../../shared/request/services.ts'
import { parseVersion } from '../../shared/store/rows/rows.ts'
import { type Context, caller, type Web } from '../http/context.ts'
import { findClient } from '../identity/auth/apps.ts'
import {
  choosePatient,
  denyLogin,
  describeConsent,
  listPatients,
} from '../identity/auth/consent.ts'
import { findMethod, finishExternal } from '../identity/auth/external.ts'
import { readFields } from '../identity/auth/fields.ts'
import { loginResult, membershipsFor } from '../identity/auth/login-steps.ts'
import {
  disableMfa,
  enrollAtLogin,
  enrollUser,
  readEnrollment,
  verifyAtLogin,
} from '../identity/auth/mfa.ts'
import {
  chooseProfile,
  chooseScope,
  logIn,
  readOpenLogin,
  resumeLogin,
} from '../identity/auth/password-login.ts'
import {
  changePassword,
  requestReset,
  usePasswordLink,
  verifyEmail,
} from '../identity/auth/passwords.ts'
import { logInByGoogle } from '../identity/auth/provider.ts'
import { registerPatient, registerProject, registerUser } from '../identity/auth/register.ts'
import { renewDevice } from '../identity/browser.ts'
import { createClientKeys } from '../identity/clients/clients.ts'
import { audit, loginUserId, readLogin, revokeLogin } from '../identity/login-store.ts'
import { exchangeProviderToken } from '../identity/oauth/token.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const system = systemPrincipal(SYSTEM_PROJECT)

export function authRoutes(web: Web): RouteFamily {
  const routes = createRoutes({ prefix: '/auth' })
  addSignIn(routes, web)
  addProviders(routes, web)
  addRegistration(routes, web)
  addAccount(routes, web)
  addSecondFactor(routes, web)
  return routes
}

/** The steps of a sign-in; each answers the next step or the code. */
function addSignIn(routes: RouteFamily, { services }: Web): void {
  routes.post('/method', 'public', async (ctx) => {
    ctx.body = await findMethod(services, ctx, await readFields(ctx))
  })
  routes.post('/login', 'public', async (ctx) => {
    ctx.body = await logIn(services, ctx, await readFields(ctx))
  })
  routes.get('/login/:login', 'public', async (ctx) => {
    ctx.body = await resumeLogin(services, ctx, ctx.params.login ?? '')
  })
  routes.get('/login/:login/consent', 'public', async (ctx) => {
    ctx.body = await describeConsent(services, ctx, ctx.params.login ?? '')
  })
  routes.get('/login/:login/patients', 'public', async (ctx) => {
    ctx.body = await listPatients(services, ctx, ctx.params.login ?? '')
  })
  routes.post('/patient', 'public', async (ctx) => {
    ctx.body = await choosePatient(services, ctx, await readFields(ctx))
  })
  routes.post('/deny', 'public', async (ctx) => {
    await denyLogin(services, ctx, await readFields(ctx))
    sendOk(ctx)
  })
  routes.post('/profile', 'public', async (ctx) => {
    ctx.body = await chooseProfile(services, ctx, await readFields(ctx))
  })
  routes.post('/scope', 'public', async (ctx) => {
    ctx.body = await chooseScope(services, ctx, await readFields(ctx))
  })
  for (const [path, pass] of [
    ['/mfa/login-enroll', enrollAtLogin],
    ['/mfa/verify', verifyAtLogin],
  ] as const) {
    routes.post(path, 'public', async (ctx) => {
      const fields = await readFields(ctx)
      const token = fields.required('token', 'Token')
      const login = await readOpenLogin(services, ctx, fields)
      ctx.body = await loginResult(services, ctx, await pass(services, ctx, login, token))
    })
  }
}

/** Sign-ins that an identity provider vouches for. */
function addProviders(routes: RouteFamily, { services }: Web): void {
  const keys = createClientKeys(services)
  routes.get('/clientinfo/:clientId', 'public', async (ctx) => {
    const client = await findClient(services, ctx.params.clientId ?? '')
    if (client === undefined) throw notFound()
    ctx.body = readSignInForm(client)
  })
  routes.post('/google', 'public', async (ctx) => {
    ctx.body = await logInByGoogle(services, ctx, keys, await readFields(ctx))
  })
  routes.get('/external', 'public', async (ctx) => {
    ctx.redirect(await finishExternal(services, ctx))
  })
  routes.post('/exchange', 'public', async (ctx) => {
    const fields = await readFields(ctx)
    const token = fields.required('externalAccessToken', 'External access token', 1, 16_384)
    const clientId = fields.required('clientId', 'Client')
    fields.check()
    const client = await findClient(services, clientId)
    if (client === undefined) throw badRequest('Client not found', 'clientId')
    if (alwaysProves(client)) {
      throw badRequest('This client proves itself at /oauth2/token', 'clientId')
    }
    const scope = grantedScope('openid offline')
    ctx.body = await exchangeProviderToken(services, ctx, {
      client,
      token,
      scope,
      membershipId: undefined,
    })
  })
}

/** New accounts, and the links that are mailed to people who cannot sign in. */
function addRegistration(routes: RouteFamily, { services }: Web): void {
  const project = async (id: string): Promise<Resource | undefined> => {
    if (!/^[0-9a-f-]{36}$/i.test(id)) return undefined
    const [found] = await services.repository.readMany(system, [{ type: 'Project', id }])
    return found?.content === undefined ? undefined : parseVersion(found)
  }
  routes.post('/newuser', 'public', async (ctx) => {
    ctx.body = await registerUser(services, ctx, await readFields(ctx))
  })
  routes.post('/newproject', 'public', async (ctx) => {
    ctx.body = await registerProject(services, ctx, await readFields(ctx))
  })
  routes.post('/newpatient', 'public', async (ctx) => {
    ctx.body = await registerPatient(services, ctx, await readFields(ctx))
  })
  routes.post('/resetpassword', 'public', async (ctx) => {
    await requestReset(services, await readFields(ctx), project)
    sendOk(ctx)
  })
  routes.post('/setpassword', 'public', async (ctx) => {
    await usePasswordLink(services, ctx, await readFields(ctx))
    sendOk(ctx)
  })
  routes.post('/verifyemail', 'public', async (ctx) => {
    await verifyEmail(services, await readFields(ctx))
    sendOk(ctx)
  })
}

function addAccount(routes: RouteFamily, { services }: Web): void {
  routes.get('/me', 'signed-in', async (ctx) => {
    ctx.body = await describeCaller(services, caller(ctx).session)
  })
  routes.post('/changepassword', 'account', async (ctx) => {
    const fields = await readFields(ctx)
    const user = await callingUser(services, ctx)
    await changePassword(services, ctx, fields, { user, loginId: callerLoginId(ctx) })
    sendOk(ctx)
  })
  routes.post('/revoke', 'account', async (ctx) => {
    const fields = await readFields(ctx)
    const id = fields.uuid('loginId')
    fields.check()
    const login = await readLogin(services, id)
    const user = await signedInUser(services, caller(ctx).session)
    if (login === undefined || user === undefined || loginUserId(login) !== user.id)
      throw notFound()
    await revokeLogin(services, id)
    auditAccount(services, ctx, 'logout', 'Login revoked')
    sendOk(ctx)
  })
}

function addSecondFactor(routes: RouteFamily, { services }: Web): void {
  routes.get('/mfa/status', 'account', async (ctx) => {
    const user = await callingUser(services, ctx)
    // This secret becomes the second factor, so an old token must not see it before its owner does.
    const isShown = user.mfaEnrolled !== true && isRecent(caller(ctx).session.login)
    ctx.body = {
      enrolled: user.mfaEnrolled === true,
      ...(isShown ? await readEnrollment(services, user) : {}),
    }
  })
  for (const { path, change, what } of [
    { path: '/mfa/enroll', change: enrollUser, what: 'Second factor enrolled' },
    { path: '/mfa/disable', change: disableMfa, what: 'Second factor given up' },
  ]) {
    routes.post(path, 'account', async (ctx) => {
      const fields = await readFields(ctx)
      const token = fields.required('token', 'Token')
      const password = fields.optional('password')
      fields.check()
      const user = await callingUser(services, ctx)
      await requireReauthentication(services, caller(ctx).session.login, user, password)
      await change(services, user, callerLoginId(ctx), token)
      await renewDevice(services, ctx, user)
      auditAccount(services, ctx, 'login', what)
      sendOk(ctx)
    })
  }
}

/** The User who calls, with secrets. Errors: 403 for programs and whoever speaks for a User. */
async function callingUser(services: Services, ctx: Context): Promise<Resource> {
  const user = await signedInUser(services, caller(ctx).session)
  if (user === undefined) throw forbidden()
  return user
}

const callerLoginId = (ctx: Context): string => caller(ctx).principal.loginId ?? ''

function auditAccount(
  services: Services,
  ctx: Context,
  kind: 'login' | 'logout',
  what: string,
): void {
  const { profile, project } = caller(ctx).principal
  audit(services, ctx, { kind, outcome: '0', what, who: profile, projectId: project.id })
}

function sendOk(ctx: Context): void {
  ctx.status = 200
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}

// `/auth/me`: who the caller is, in the form the SDK keeps.

const SESSIONS = 100
const ACTIVE_MS = 3_600_000

async function describeCaller(services: Services, session: Session) {
  // An app learns as whom it acts, and nothing of the account.
  if (!reaches(session.principal, 'account')) return withoutPerson(session)
  const userId = userIdOfSession(session)
  const user = userId === undefined ? undefined : await readUser(services.repository, userId)
  const own = await signedInUser(services, session)
  return {
    ...(user === undefined ? {} : { user: described(user, own !== undefined) }),
    ...sessionDetails(session),
    ...(own === undefined ? {} : { security: await describeUserSecurity(services, own, session) }),
  }
}

/** The profile is shown to whose scope asks for it, or may read resources of its type. */
function withoutPerson(session: Session) {
  const details = sessionDetails(session)
  const { principal, profile } = session
  const { resourceType, id } = profile
  const isShown =
    /(^| )(profile|fhirUser)( |$)/.test(principal.scope) || may(principal, resourceType, 'read')
  return isShown ? details : { ...details, profile: { resourceType, id } }
}

/** A Project knows the addresses of its members, and nothing else of Users that are not its own. */
function described({ id, email, identifier }: Resource, isOwn: boolean) {
  return { resourceType: 'User', id, email, ...(isOwn ? { identifier } : {}) }
}

async function describeUserSecurity(services: Services, user: Resource, { principal }: Session) {
  const [logins, memberships] = await Promise.all([
    recentLogins(services.repository, user.id ?? '', SESSIONS),
    membershipsFor(services, user, principal.project.id),
  ])
  return {
    mfaEnrolled: user.mfaEnrolled === true,
    sessions: logins.filter(isActive).map(sessionSummary),
    memberships: memberships.map(({ id, profile, admin }) => ({
      resourceType: 'ProjectMembership',
      id,
      profile,
      admin,
    })),
  }
}

function isActive({ granted, revoked, meta }: Resource): boolean {
  const isRecent = Date.parse(meta?.lastUpdated ?? '') + ACTIVE_MS > Date.now()
  return granted === true && revoked !== true && isRecent
}

function sessionSummary({ id, meta, authMethod, remoteAddress, userAgent }: Resource) {
  const agent = typeof userAgent === 'string' ? userAgent : ''
  return {
    id,
    lastUpdated: meta?.lastUpdated,
    authMethod,
    remoteAddress,
    browser: firstIn(agent, BROWSERS),
    os: firstIn(agent, SYSTEMS),
  }
}

/** The first word that fits: Edge and Opera call themselves Chrome, too, and Chrome Safari. */
const BROWSERS: readonly (readonly [RegExp, string])[] = [
  [/Edg\//, 'Edge'],
  [/OPR\//, 'Opera'],
  [/Firefox\//, 'Firefox'],
  [/Chrome\//, 'Chrome'],
  [/Safari\//, 'Safari'],
]
const SYSTEMS: readonly (readonly [RegExp, string])[] = [
  [/Android/, 'Android'],
  [/iPhone|iPad/, 'iOS'],
  [/Windows/, 'Windows'],
  [/Mac OS X/, 'macOS'],
  [/Linux/, 'Linux'],
]

function firstIn(agent: string, words: typeof BROWSERS): string | undefined {
  return words.find(([pattern]) => pattern.test(agent))?.[1]
}
