/** `/oauth2/**`: RFC 6749, RFC 7009, RFC 7662, OpenID Connect. */
import Router from '@koa/router'
import type { Middleware, State, Web } from '../context.ts'
import { createClientKeys } from '../oauth/client-keys.ts'
import { readForm } from '../oauth/form.ts'
import { introspect, revoke } from '../oauth/inspect.ts'
import { grantToken } from '../oauth/token.ts'
import { userInfo } from '../oauth/userinfo.ts'

export function oauthRoutes({ services }: Web, authenticate: Middleware): Router<State> {
  const router = new Router<State>({ prefix: '/oauth2' })
  const keys = createClientKeys(services)

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
