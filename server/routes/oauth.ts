/** `/oauth2/**`: RFC 6749, RFC 7009, RFC 7662, OpenID Connect. */
import Router from '@koa/router'
import { CLI_CLIENT, isRegisteredRedirect } from '../../shared/access/clients.ts'
import { FHIR_JSON } from '../../shared/api/reply.ts'
import { allOk } from '../../shared/fhir/outcome.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import type { Context, Middleware, State, Web } from '../context.ts'
import { readJson } from '../middleware/body.ts'
import { OAuthError } from '../middleware/failures.ts'
import { authorize } from '../oauth/authorize.ts'
import { createClientKeys } from '../oauth/client-keys.ts'
import { readForm } from '../oauth/form.ts'
import { introspect, revoke } from '../oauth/inspect.ts'
import { logOut, logOutBrowser } from '../oauth/logout.ts'
import { grantToken } from '../oauth/token.ts'
import { userInfo } from '../oauth/userinfo.ts'

const REGISTRATION_BYTES = 65_536

export function oauthRoutes({ services }: Web, authenticate: Middleware): Router<State> {
  const router = new Router<State>({ prefix: '/oauth2' })
  const keys = createClientKeys(services)

  router.get('/authorize', async (ctx) => {
    await authorize(services, ctx, new URLSearchParams(ctx.querystring))
  })
  router.post('/authorize', async (ctx) => {
    await authorize(services, ctx, await readForm(ctx))
  })
  router.post('/logout', authenticate, async (ctx) => {
    await logOut(services, ctx)
    sendOk(ctx)
  })
  router.get('/logout', async (ctx) => {
    if (/^bearer /i.test(ctx.get('Authorization'))) {
      await authenticate(ctx, () => logOut(services, ctx))
      sendOk(ctx)
      return
    }
    ctx.redirect(await logOutBrowser(services, ctx))
  })
  router.post('/register', async (ctx) => {
    const body = await readJson(ctx, REGISTRATION_BYTES)
    const uris = isObject(body) && Array.isArray(body.redirect_uris) ? body.redirect_uris : []
    const [first] = uris
    const isOurs =
      services.config.cliClientEnabled && isRegisteredRedirect(CLI_CLIENT, String(first))
    if (!isOurs) throw new OAuthError('invalid_redirect_uri', 'Unknown redirect URI')
    ctx.status = 201
    ctx.body = {
      client_id: CLI_CLIENT.id,
      client_id_issued_at: Math.floor(Date.now() / 1000),
      redirect_uris: [first],
    }
  })
  router.post('/token', async (ctx) => {
    ctx.body = await grantToken(services, keys, ctx, await readForm(ctx))
  })
  router.post('/revoke', async (ctx) => {
    await revoke(services, keys, ctx, await readForm(ctx))
    ctx.body = null
    ctx.status = 200
    ctx.set('Content-Length', '0')
  })
  router.post('/introspect', async (ctx) => {
    ctx.body = await introspect(services, keys, ctx, await readForm(ctx), authenticate)
  })
  router.all('/userinfo', authenticate, async (ctx) => {
    ctx.body = await userInfo(services, ctx)
  })
  return router
}

function sendOk(ctx: Context): void {
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}
