/** Pages of our own, as long as no app has taken their place (auth.md §5.2). */
import { readFileSync } from 'node:fs'
import { isRegisteredRedirect, signInFormOf } from '../../shared/access/credentials/clients.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import type { Context, Web } from '../context.ts'
import { findClient } from '../identity/auth/apps.ts'
import { sendPage, sendStyle } from '../pages/shell.ts'
import { createRoutes, type RouteFamily } from './table.ts'

export function pageRoutes({ services }: Web): RouteFamily {
  const routes = createRoutes()
  const { config } = services
  const { productName, baseUrl } = config
  if (config.appUrl !== baseUrl) return routes
  const script = readFileSync(new URL('../pages/script.js', import.meta.url), 'utf8')

  routes.get('/oauth', 'public', async (ctx) => {
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
  routes.get('/signin', 'public', (ctx) => sendPage(ctx, 'signin', 'Sign in', productName))
  routes.get('/resetpassword', 'public', (ctx) => {
    sendPage(ctx, 'resetpassword', 'Reset your password', productName)
  })
  routes.get('/setpassword/:id/:secret', 'public', (ctx) => {
    const { id = '', secret = '' } = ctx.params
    sendPage(ctx, 'setpassword', 'Choose a password', productName, { id, secret })
  })
  routes.get('/verifyemail/:id/:secret', 'public', (ctx) => {
    const { id = '', secret = '' } = ctx.params
    sendPage(ctx, 'verifyemail', 'Confirm your e-mail address', productName, { id, secret })
  })
  routes.get('/pages/script.js', 'public', (ctx) => {
    ctx.type = 'text/javascript'
    ctx.body = script
  })
  routes.get('/pages/style.css', 'public', sendStyle)
  return routes
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
