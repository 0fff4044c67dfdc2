/** Pages of our own, as long as no app has taken their place (auth.md §5.2). */
import { readFileSync } from 'node:fs'
import Router from '@koa/router'
import { isRegisteredRedirect, signInFormOf } from '../../shared/access/clients.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import { findClient } from '../auth/apps.ts'
import type { Context, State, Web } from '../context.ts'
import { sendPage, sendStyle } from '../pages/shell.ts'

export function pageRoutes({ services }: Web): Router<State> {
  const router = new Router<State>()
  const { config } = services
  const { productName, baseUrl } = config
  if (config.appUrl !== baseUrl) return router
  const script = readFileSync(new URL('../pages/script.js', import.meta.url), 'utf8')

  router.get('/oauth', async (ctx) => {
    const client = await findClient(services, single(ctx, 'client_id'))
    // The page sends a code to this address, so it must be one that may have it.
    if (client === undefined || !isRegisteredRedirect(client, single(ctx, 'redirect_uri'))) {
      ctx.status = 400
      ctx.type = 'text/plain'
      ctx.body = client === undefined ? 'Client not found' : 'Invalid redirect URI'
      return
    }
    sendPage(ctx, 'oauth', 'Sign in', productName, { issuer: baseUrl, ...greeting(client) })
  })
  router.get('/signin', (ctx) => sendPage(ctx, 'signin', 'Sign in', productName))
  router.get('/resetpassword', (ctx) => {
    sendPage(ctx, 'resetpassword', 'Reset your password', productName)
  })
  router.get('/setpassword/:id/:secret', (ctx) => {
    const { id = '', secret = '' } = ctx.params
    sendPage(ctx, 'setpassword', 'Choose a password', productName, { id, secret })
  })
  router.get('/verifyemail/:id/:secret', (ctx) => {
    const { id = '', secret = '' } = ctx.params
    sendPage(ctx, 'verifyemail', 'Confirm your e-mail address', productName, { id, secret })
  })
  router.get('/pages/script.js', (ctx) => {
    ctx.type = 'text/javascript'
    ctx.body = script
  })
  router.get('/pages/style.css', sendStyle)
  return router
}

/** Empty when it is absent or repeated. */
function single(ctx: Context, name: string): string {
  const value = ctx.query[name]
  return typeof value === 'string' ? value : ''
}

function greeting(client: Resource): Record<string, string> {
  const { welcomeString, logo } = signInFormOf(client)
  const url = isObject(logo) && typeof logo.url === 'string' ? logo.url : ''
  return {
    ...(typeof welcomeString === 'string' ? { welcome: welcomeString } : {}),
    ...(url.startsWith('https://') ? { logo: url } : {}),
  }
}
