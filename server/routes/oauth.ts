/** `/oauth2/**`: RFC 6749, RFC 7009, RFC 7662, OpenID Connect. */
import { CLI_CLIENT, isRegisteredRedirect } from '../../shared/access/credentials/clients.ts'
import { allOk } from '../../shared/errors.ts'
import { isObject } from '../../shared/fhir/resource.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import type { Context, Middleware, Web } from '../context.ts'
import { readForm } from '../identity/oauth/answer.ts'
import { authorize } from '../identity/oauth/authorize.ts'
import { createClientKeys } from '../identity/oauth/clients.ts'
import { introspect, revoke } from '../identity/oauth/inspect.ts'
import { logOut, logOutBrowser } from '../identity/oauth/logout.ts'
import { grantToken } from '../identity/oauth/token.ts'
import { userInfo } from '../identity/oauth/userinfo.ts'
import { readJson } from '../middleware/body.ts'
import { OAuthError } from '../middleware/failures.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const REGISTRATION_BYTES = 65_536

export function oauthRoutes({ services }: Web, authenticate: Middleware): RouteFamily {
  const routes = createRoutes({ prefix: '/oauth2' })
  const keys = createClientKeys(services)

  routes.get('/authorize', 'public', async (ctx) => {
    await authorize(services, ctx, new URLSearchParams(ctx.querystring))
  })
  routes.post('/authorize', 'public', async (ctx) => {
    await authorize(services, ctx, await readForm(ctx))
  })
  routes.post('/logout', 'signed-in', async (ctx) => {
    await logOut(services, ctx)
    sendOk(ctx)
  })
  routes.get('/logout', 'public', async (ctx) => {
    if (/^bearer /i.test(ctx.get('Authorization'))) {
      await authenticate(ctx, () => logOut(services, ctx))
      sendOk(ctx)
      return
    }
    ctx.redirect(await logOutBrowser(services, ctx))
  })
  routes.post('/register', 'public', async (ctx) => {
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
  routes.post('/token', 'public', async (ctx) => {
    ctx.body = await grantToken(services, keys, ctx, await readForm(ctx))
  })
  routes.post('/revoke', 'secret', async (ctx) => {
    await revoke(services, keys, ctx, await readForm(ctx))
    ctx.body = null
    ctx.status = 200
    ctx.set('Content-Length', '0')
  })
  routes.post('/introspect', 'secret', async (ctx) => {
    const form = ctx.is('application/json') ? await formOfJson(ctx) : await readForm(ctx)
    ctx.body = await introspect(services, keys, ctx, { form, authenticate })
  })
  routes.on(['GET', 'POST'], '/userinfo', 'signed-in', async (ctx) => {
    ctx.body = await userInfo(services, ctx)
  })
  return routes
}

/** The peer's clients ask in JSON. Members that are no texts are passed over. */
async function formOfJson(ctx: Context): Promise<URLSearchParams> {
  const body = await readJson(ctx, REGISTRATION_BYTES)
  const members = isObject(body) ? Object.entries(body) : []
  const form = new URLSearchParams()
  for (const [name, value] of members) if (typeof value === 'string') form.set(name, value)
  return form
}

function sendOk(ctx: Context): void {
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify(allOk)
}
