/** Pages of our own and the shell around them, as long as no app has taken their place. */
import { createReadStream, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { isRegisteredRedirect, signInFormOf } from '../../shared/access/credentials/clients.ts'
import { notFound } from '../../shared/errors.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import type { Context, Web } from '../context.ts'
import { findClient } from '../identity/auth/apps.ts'
import { describeApi } from '../openapi/describe.ts'
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
    sendPage(ctx, 'oauth', {
      title: 'Sign in',
      productName,
      data: { issuer: baseUrl, ...greeting(client) },
    })
  })
  routes.get('/signin', 'public', (ctx) =>
    sendPage(ctx, 'signin', { title: 'Sign in', productName }),
  )
  routes.get('/resetpassword', 'public', (ctx) => {
    sendPage(ctx, 'resetpassword', { title: 'Reset your password', productName })
  })
  routes.get('/setpassword/:id/:secret', 'public', (ctx) => {
    const { id = '', secret = '' } = ctx.params
    sendPage(ctx, 'setpassword', { title: 'Choose a password', productName, data: { id, secret } })
  })
  routes.get('/verifyemail/:id/:secret', 'public', (ctx) => {
    const { id = '', secret = '' } = ctx.params
    sendPage(ctx, 'verifyemail', {
      title: 'Confirm your e-mail address',
      productName,
      data: { id, secret },
    })
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
  let text: Promise<string> | undefined
  family.get('/openapi.json', 'public', async (ctx) => {
    text ??= describeApi(baseUrl, [...others, ...family.routes])
    ctx.type = 'application/json; charset=utf-8'
    ctx.body = await text
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
    sendPage(ctx, 'graphiql', { title: 'Sign in', productName: config.productName })
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

/** Which page it is: script.js knows the same names. */
type PageName = 'oauth' | 'signin' | 'graphiql' | 'resetpassword' | 'setpassword' | 'verifyemail'

const STYLE = `
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif }
body { margin: 0; display: grid; place-items: center; min-height: 100vh; background: Canvas; color: CanvasText }
main { width: min(24rem, 100vw - 2rem); padding: 1rem 0 }
h1 { font-size: 1.5rem; margin: 0 0 1rem }
h1:focus { outline: none }
label { display: block; margin: 1rem 0 .25rem; font-weight: 600 }
input:not([type=radio], [type=checkbox]) { box-sizing: border-box; width: 100%; min-height: 2.75rem; padding: .25rem .5rem; font: inherit }
fieldset { border: 1px solid GrayText; border-radius: 6px; padding: .5rem 1rem; margin: 1rem 0 0 }
fieldset label { font-weight: 400; margin: .5rem 0 }
button { margin-top: 1.25rem; width: 100%; min-height: 2.75rem; border: 0; border-radius: 6px; font: inherit; font-weight: 600; background: #0b57d0; color: #fff; cursor: pointer }
button.no { margin-top: .75rem; background: none; color: inherit; border: 1px solid GrayText }
dl { margin: 0; display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem }
dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
ul { margin: 0; padding-left: 1.25rem }
button:disabled { opacity: .6 }
:focus-visible { outline: 3px solid light-dark(#0b57d0, #a8c7fa); outline-offset: 2px }
[role=alert]:not(:empty) { padding: .5rem 1rem; border-left: 4px solid light-dark(#b3261e, #f2b8b5); border-radius: 2px }
a { display: inline-block; padding: .5rem 0; color: light-dark(#0b57d0, #a8c7fa) }
img { max-width: 100%; background: #fff }
`

interface Page {
  readonly title: string
  readonly productName: string
  readonly data?: Readonly<Record<string, string>> | undefined
}

/** Loosens the policy of all other answers just enough: our script and style, pictures of codes and logos. */
function sendPage(ctx: Context, name: PageName, { title, productName, data = {} }: Page): void {
  const attributes = Object.entries(data).map(([key, value]) => ` data-${key}="${escaped(value)}"`)
  ctx.set(
    'Content-Security-Policy',
    [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "connect-src 'self'",
      'img-src data: https:',
      "base-uri 'none'",
      "form-action 'none'",
      "frame-ancestors 'none'",
    ].join('; '),
  )
  ctx.type = 'text/html; charset=utf-8'
  ctx.body = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(`${title} – ${productName}`)}</title>
<link rel="stylesheet" href="/pages/style.css">
<script type="module" src="/pages/script.js"></script>
</head>
<body data-page="${name}"${attributes.join('')}>
<main>
<h1 tabindex="-1">${escaped(title)}</h1>
<div role="alert" id="problem"></div>
<div id="content"><noscript>Please switch JavaScript on to sign in.</noscript></div>
</main>
</body>
</html>
`
}

function sendStyle(ctx: Context): void {
  ctx.type = 'text/css'
  ctx.body = STYLE
}

function escaped(text: string): string {
  const entities: Readonly<Record<string, string>> = {
    '&': '&amp;',
    '<': '&lt;',
    '>': '&gt;',
    '"': '&quot;',
    "'": '&#39;',
  }
  return text.replace(/[&<>"']/g, (character) => entities[character] ?? '')
}
