/** `/auth/**`: signing in step by step, and what a person does with their own account. */
import Router from '@koa/router'
import { signInFormOf } from '../../shared/access/clients.ts'
import { systemPrincipal } from '../../shared/access/principal.ts'
import { grantedScope } from '../../shared/access/scopes.ts'
import { FHIR_JSON } from '../../shared/api/reply.ts'
import { signedInUser } from '../../shared/api/signed-in-user.ts'
import { badRequest, forbidden, notFound } from '../../shared/errors.ts'
import { allOk } from '../../shared/fhir/outcome.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import { SYSTEM_PROJECT } from '../../shared/store/projects.ts'
import { parseVersion } from '../../shared/store/rows.ts'
import { findClient } from '../auth/apps.ts'
import { audit } from '../auth/audit.ts'
import { finishExternal } from '../auth/external.ts'
import { readFields } from '../auth/fields.ts'
import { logInByGoogle } from '../auth/google.ts'
import { createGuesses } from '../auth/guesses.ts'
import {
  chooseProfile,
  chooseScope,
  domainOf,
  logIn,
  openLogin,
  requireLogin,
} from '../auth/login.ts'
import { describeCaller } from '../auth/me.ts'
import { disable, enrol, enrolAtLogin, enrolment, verifyAtLogin } from '../auth/mfa.ts'
import { changePassword, requestReset, usePasswordLink, verifyEmail } from '../auth/passwords.ts'
import { authorizeUrlOf, providerOfDomain } from '../auth/provider.ts'
import { registerPatient, registerProject, registerUser } from '../auth/register.ts'
import { loginResult } from '../auth/sign-in.ts'
import { type Context, caller, type Middleware, type State, type Web } from '../context.ts'
import { readLogin, revokeLogin, userIdOf } from '../logins.ts'
import { createClientKeys } from '../oauth/client-keys.ts'
import { exchange } from '../oauth/exchange.ts'

const system = systemPrincipal(SYSTEM_PROJECT)

export function authRoutes({ services }: Web, authenticate: Middleware): Router<State> {
  const router = new Router<State>({ prefix: '/auth' })
  const guesses = createGuesses(services.redis)
  const keys = createClientKeys(services)

  /** The User who calls, with secrets. Errors: 403 for programs and whoever speaks for a User. */
  const callingUser = async (ctx: Context): Promise<Resource> => {
    const user = await signedInUser(services, caller(ctx).session)
    if (user === undefined) throw forbidden()
    return user
  }
  const loginIdOf = (ctx: Context): string => caller(ctx).principal.loginId ?? ''
  const project = async (id: string): Promise<Resource | undefined> => {
    const isId = /^[0-9a-f-]{36}$/i.test(id)
    const [found] = isId
      ? await services.repository.readMany(system, [{ type: 'Project', id }])
      : []
    return found?.content === undefined ? undefined : parseVersion(found)
  }

  router.get('/me', authenticate, async (ctx) => {
    ctx.body = await describeCaller(services, caller(ctx).session)
  })
  router.post('/method', async (ctx) => {
    const fields = await readFields(ctx)
    const email = fields.email('email')
    const projectId = fields.optional('projectId')
    const clientId = fields.optional('clientId')
    fields.check()
    const domain = domainOf(email)
    const provider = await providerOfDomain(services, domain)
    const state = { domain, projectId, clientId }
    ctx.body =
      provider === undefined
        ? {}
        : { domain, authorizeUrl: await authorizeUrlOf(services, provider, state) }
  })
  router.post('/login', async (ctx) => {
    ctx.body = await logIn(services, ctx, guesses, await readFields(ctx))
  })
  router.get('/login/:login', async (ctx) => {
    const login = await requireLogin(services, ctx.params.login ?? '')
    ctx.body = await loginResult(services, ctx, login)
  })
  router.post('/profile', async (ctx) => {
    ctx.body = await chooseProfile(services, ctx, await readFields(ctx))
  })
  router.post('/scope', async (ctx) => {
    ctx.body = await chooseScope(services, ctx, await readFields(ctx))
  })
  router.post('/newuser', async (ctx) => {
    ctx.body = await registerUser(services, ctx, await readFields(ctx))
  })
  router.post('/newproject', async (ctx) => {
    ctx.body = await registerProject(services, ctx, await readFields(ctx))
  })
  router.post('/newpatient', async (ctx) => {
    ctx.body = await registerPatient(services, ctx, await readFields(ctx))
  })
  router.post('/changepassword', authenticate, async (ctx) => {
    const fields = await readFields(ctx)
    const user = await callingUser(ctx)
    await changePassword(services, ctx, guesses, fields, user, loginIdOf(ctx))
    sendOk(ctx)
  })
  router.post('/resetpassword', async (ctx) => {
    await requestReset(services, await readFields(ctx), project)
    sendOk(ctx)
  })
  router.post('/setpassword', async (ctx) => {
    await usePasswordLink(services, ctx, await readFields(ctx))
    sendOk(ctx)
  })
  router.post('/verifyemail', async (ctx) => {
    await verifyEmail(services, await readFields(ctx))
    sendOk(ctx)
  })
  router.post('/revoke', authenticate, async (ctx) => {
    const fields = await readFields(ctx)
    const id = fields.uuid('loginId')
    fields.check()
    const login = await readLogin(services, id)
    const user = await signedInUser(services, caller(ctx).session)
    if (login === undefined || user === undefined || userIdOf(login) !== user.id) throw notFound()
    await revokeLogin(services, id)
    const { principal } = caller(ctx)
    const who = principal.profile
    audit(services, ctx, {
      kind: 'logout',
      outcome: '0',
      what: 'Login revoked',
      who,
      projectId: principal.project.id,
    })
    sendOk(ctx)
  })
  router.get('/clientinfo/:clientId', async (ctx) => {
    const client = await findClient(services, ctx.params.clientId ?? '')
    if (client === undefined) throw notFound()
    ctx.body = signInFormOf(client)
  })
  router.post('/google', async (ctx) => {
    ctx.body = await logInByGoogle(services, ctx, keys, await readFields(ctx))
  })
  router.get('/external', async (ctx) => {
    ctx.redirect(await finishExternal(services, ctx))
  })
  router.post('/exchange', async (ctx) => {
    const fields = await readFields(ctx)
    const token = fields.required('externalAccessToken', 'External access token', 1, 16_384)
    const clientId = fields.required('clientId', 'Client')
    fields.check()
    const client = await findClient(services, clientId)
    if (client === undefined) throw badRequest('Client not found', 'clientId')
    const scope = grantedScope('openid offline')
    ctx.body = await exchange(services, ctx, client, token, scope, undefined)
  })

  router.get('/mfa/status', authenticate, async (ctx) => {
    const user = await callingUser(ctx)
    ctx.body =
      user.mfaEnrolled === true
        ? { enrolled: true }
        : { enrolled: false, ...(await enrolment(services, user)) }
  })
  for (const [path, change] of [
    ['/mfa/enroll', enrol],
    ['/mfa/disable', disable],
  ] as const) {
    router.post(path, authenticate, async (ctx) => {
      const fields = await readFields(ctx)
      const token = fields.required('token', 'Token')
      fields.check()
      const user = await callingUser(ctx)
      await change(services, user, loginIdOf(ctx), token)
      const { principal } = caller(ctx)
      audit(services, ctx, {
        kind: 'login',
        outcome: '0',
        what: change === enrol ? 'Second factor enrolled' : 'Second factor given up',
        who: principal.profile,
        projectId: principal.project.id,
      })
      sendOk(ctx)
    })
  }
  for (const [path, pass] of [
    ['/mfa/login-enroll', enrolAtLogin],
    ['/mfa/verify', verifyAtLogin],
  ] as const) {
    router.post(path, async (ctx) => {
      const fields = await readFields(ctx)
      const token = fields.required('token', 'Token')
      const login = await openLogin(services, fields)
      ctx.body = await loginResult(services, ctx, await pass(services, login, token))
    })
  }
  return router
}

function sendOk(ctx: Context): void {
  ctx.status = 200
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}
