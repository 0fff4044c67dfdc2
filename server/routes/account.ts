/** `/auth/**` for signed-in persons: account, sessions and second factor. */
import { CONSOLE_CLIENT_ID } from '../../shared/access/credentials/clients.ts'
import { reaches } from '../../shared/access/grant.ts'
import { may } from '../../shared/access/policy.ts'
import { forbidden, notFound } from '../../shared/core/errors.ts'
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
import type { Services } from '../../shared/request/services.ts'
import { type Context, caller, type Web } from '../http/context.ts'
import { sendOk } from '../http/send.ts'
import { readFields } from '../identity/auth/fields.ts'
import { membershipsFor } from '../identity/auth/login-steps.ts'
import { disableMfa, enrollUser, readEnrollment } from '../identity/auth/mfa.ts'
import { changePassword } from '../identity/auth/passwords.ts'
import { renewDevice } from '../identity/browser.ts'
import { loginClientId, loginUserId, readLogin, revokeLogin } from '../identity/login-store.ts'
import { audit } from '../identity/sign-in-audit.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'GET /mfa/status': {
    summary: 'Read the status of the second factor',
    description: 'Includes a QR code for enrolment.',
    answer: {
      enrolled: 'flag: True once it is set up',
      enrollUri: 'text: For the app',
      enrollQrCode: 'text: A picture as a data address',
    },
  },
  'POST /mfa/enroll': {
    summary: 'Set up a second factor',
    body: { token: 'text!: The code of the app' },
    answer: 'OperationOutcome',
  },
  'POST /mfa/disable': {
    summary: 'Disable the second factor',
    body: { token: 'text!: The code of the app' },
    answer: 'OperationOutcome',
  },
  'POST /changepassword': {
    summary: 'Change your password',
    body: { oldPassword: 'text!: The current password', newPassword: 'text!: The new password' },
    answer: 'OperationOutcome',
  },
  'GET /me': {
    summary: 'Read the signed-in user',
    description: 'The user, membership, project, profile and sessions, and the access policy.',
    answer: 'object',
  },
  'POST /revoke': {
    summary: 'End a session',
    body: { loginId: 'text!: Id of the Login' },
    answer: 'OperationOutcome',
  },
}

export function accountRoutes(web: Web): RouteFamily {
  const routes = createRoutes({ prefix: '/auth', texts: TEXTS })
  addAccount(routes, web)
  addSecondFactor(routes, web)
  return routes
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
    await revokeLogin(services, login)
    auditAccount(services, ctx, 'logout', 'Login revoked')
    sendOk(ctx)
  })
}

function addSecondFactor(routes: RouteFamily, { services }: Web): void {
  routes.get('/mfa/status', 'account', async (ctx) => {
    const user = await callingUser(services, ctx)
    // This secret becomes the second factor, so a stolen old token must not read it first.
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
      const { principal, session } = caller(ctx)
      const { login } = session
      const isProven = login?.mfaVerified === true || login?.authMethod !== 'password'
      const { project } = principal
      await change(services, user, { loginId: callerLoginId(ctx), token, project, isProven })
      await renewDevice(services, ctx, user)
      auditAccount(services, ctx, 'login', what)
      sendOk(ctx)
    })
  }
}

/** Returns the calling User, with secrets. Errors: 403 for programs and callers on behalf of a User. */
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

const SESSIONS = 100
const ACTIVE_MS = 3_600_000

async function describeCaller(services: Services, session: Session) {
  // An app learns its own rights, and nothing about the account.
  if (!reaches(session.principal, 'account')) return await withoutPerson(services, session)
  const userId = userIdOfSession(session)
  const user = userId === undefined ? undefined : await readUser(services.repository, userId)
  const own = await signedInUser(services, session)
  return {
    ...(user === undefined ? {} : { user: described(user, own !== undefined) }),
    ...(await sessionDetails(services, session)),
    ...(own === undefined ? {} : { security: await describeSecurity(services, own, session) }),
  }
}

/** Includes the profile if the scope requests it or grants reading its type. */
async function withoutPerson(services: Services, session: Session) {
  const details = await sessionDetails(services, session)
  const { principal, profile } = session
  const { resourceType, id } = profile
  const isShown =
    /(^| )(profile|fhirUser)( |$)/.test(principal.scope) || may(principal, resourceType, 'read')
  return isShown ? details : { ...details, profile: { resourceType, id } }
}

/** A Project sees only the addresses of members whose Users belong to other Projects. */
function described({ id, email, identifier }: Resource, isOwn: boolean) {
  return { resourceType: 'User', id, email, ...(isOwn ? { identifier } : {}) }
}

async function describeSecurity(services: Services, user: Resource, { principal, login }: Session) {
  const isConsole = login !== undefined && loginClientId(login) === CONSOLE_CLIENT_ID
  const [logins, memberships] = await Promise.all([
    recentLogins(services.repository, user.id ?? '', SESSIONS),
    // The console switches between all Projects of the person; other apps see only their own.
    membershipsFor(services, user, isConsole ? undefined : principal.project.id),
  ])
  return {
    mfaEnrolled: user.mfaEnrolled === true,
    sessions: logins.filter(isActive).map(sessionSummary),
    memberships: memberships.map(({ id, project, profile, admin }) => ({
      resourceType: 'ProjectMembership',
      id,
      project,
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

/** The first match wins: Edge and Opera also name Chrome, and Chrome names Safari. */
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
