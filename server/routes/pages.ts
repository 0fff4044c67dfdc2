/** Pages of our own, as long as no app has taken their place. */

import { createReadStream, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { isRegisteredRedirect, signInFormOf } from '../../shared/access/credentials/clients.ts'
import { notFound } from '../../shared/errors.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import type { Context, Web } from '../context.ts'
import { findClient } from '../identity/auth/apps.ts'
import { describeApi } from '../openapi.ts'
import { sendPage, sendStyle } from '../pages/shell.ts'
import { createRoutes, type Route, type RouteFamily } from './table.ts'

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

/** `others` are all routes but this one. */
export function openapiRoutes(baseUrl: string, others: readonly Route[]): RouteFamily {
  const family = createRoutes()
  let text: string | undefined
  family.get('/openapi.json', 'public', (ctx) => {
    text ??= JSON.stringify(describeApi(baseUrl, [...others, ...family.routes]))
    ctx.type = 'application/json; charset=utf-8'
    ctx.body = text
  })
  return family
}

/** The files of the page, and where each lies. */
const FILES: readonly (readonly [name: string, within: string, path: string])[] = [
  ['react.js', 'react', 'umd/react.production.min.js'],
  ['react-dom.js', 'react-dom', 'umd/react-dom.production.min.js'],
  ['graphiql.js', 'graphiql', 'graphiql.min.js'],
  ['graphiql.css', 'graphiql', 'graphiql.min.css'],
]

const START = join(import.meta.dirname, '..', 'pages', 'graphiql.js')

/** No routes where it is switched off, the pages are another app's, or its packages are left out. */
export function graphiqlRoutes({ services: { config, log } }: Web): RouteFamily {
  const routes = createRoutes()
  if (!config.graphiqlEnabled || config.appUrl !== config.baseUrl) return routes
  const paths = installed()
  if (paths === undefined) {
    log.warn('GRAPHIQL_ENABLED needs the optional packages, which are not installed')
    return routes
  }
  routes.get('/graphiql', 'public', (ctx) => {
    sendPage(ctx, 'graphiql', 'Sign in', config.productName)
    // The fonts are in its style sheet.
    ctx.set(
      'Content-Security-Policy',
      `${ctx.response.get('Content-Security-Policy')}; font-src data:`,
    )
  })
  routes.get('/graphiql/:file', 'public', (ctx) => {
    const path = paths.get(ctx.params.file ?? '')
    if (path === undefined) throw notFound()
    ctx.type = path.endsWith('.css') ? 'text/css' : 'text/javascript'
    ctx.set('Cache-Control', 'private, max-age=3600')
    ctx.body = createReadStream(path)
  })
  return routes
}

function installed(): ReadonlyMap<string, string> | undefined {
  const { resolve } = createRequire(import.meta.url)
  const folderOf = (name: string) => dirname(resolve(`${name}/package.json`))
  try {
    const found = FILES.map(([name, within, path]) => [name, join(folderOf(within), path)] as const)
    return new Map([['start.js', START], ...found])
  } catch {
    return undefined
  }
}
