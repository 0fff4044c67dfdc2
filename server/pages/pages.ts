/** Pages of our own and the shell around them, as long as no app has taken their place. */
import { readFileSync } from 'node:fs'
import {
  CONSOLE_CLIENT_ID,
  isRegisteredRedirect,
  readSignInForm,
} from '../../shared/access/credentials/clients.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import type { Context, Web } from '../http/context.ts'
import { findClient } from '../identity/auth/apps.ts'
import { describeApi } from '../openapi/describe.ts'
import { createRoutes, type Route, type RouteFamily } from '../routes/table.ts'

export function pageRoutes({ services }: Web): RouteFamily {
  const routes = createRoutes()
  const { config } = services
  const { productName, baseUrl } = config
  if (config.appUrl !== baseUrl) return routes
  const script = readFileSync(new URL('./script.js', import.meta.url), 'utf8')

  routes.get('/oauth', 'public', async (ctx) => {
    const client = await findClient(services, single(ctx, 'client_id'))
    // The page sends a code to this address, so it must be one that may have it.
    if (client === undefined || !isRegisteredRedirect(client, single(ctx, 'redirect_uri'))) {
      ctx.status = 400
      ctx.type = 'text/plain'
      ctx.body = client === undefined ? 'Client not found' : 'Invalid redirect URI'
      return
    }
    // The console is a part of the product: nobody has to consent to it.
    const own = client.id === CONSOLE_CLIENT_ID ? { own: 'true' } : {}
    sendPage(ctx, 'oauth', {
      title: 'Sign in',
      productName,
      data: { issuer: baseUrl, ...own, ...greeting(client) },
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
  const { welcomeString, logo } = readSignInForm(client)
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

/** Which page it is: script.js knows the same names. */
type PageName = 'oauth' | 'signin' | 'resetpassword' | 'setpassword' | 'verifyemail'

const STYLE = `
/* The colours, corners and sizes of the console. */
:root {
  color-scheme: light dark; font: 1rem/1.55 system-ui, sans-serif;
  --blue: #1971c2; --blue-hover: #1864ab;
  --link: light-dark(#1864ab, #74c0fc); --line: light-dark(#ced4da, #424242);
  --page: light-dark(#f8f9fa, #1f1f1f); --card: light-dark(#fff, #242424); --field: light-dark(#fff, #2e2e2e);
  --text: light-dark(#000, #c9c9c9); --dimmed: light-dark(#495057, #b8b8b8); --red: light-dark(#c92a2a, #ff8787);
}
body { margin: 0; display: grid; place-items: center; min-height: 100vh; background: var(--page); color: var(--text) }
main { box-sizing: border-box; width: min(26rem, 100vw - 2rem); margin: 1rem 0; padding: 1.5rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px }
.product { margin: 0 0 1rem; font-weight: 700 }
h1 { font-size: 1.625rem; line-height: 1.35; margin: 0 0 1rem }
h1:focus { outline: none }
label { display: block; margin: 1rem 0 .25rem; font-size: .875rem; font-weight: 600 }
input:not([type=radio], [type=checkbox]) { box-sizing: border-box; width: 100%; min-height: 2.75rem; padding: .25rem .75rem; font: inherit; color: inherit; background: var(--field); border: 1px solid var(--line); border-radius: 8px }
input::placeholder { color: var(--dimmed) }
fieldset { border: 1px solid var(--line); border-radius: 8px; padding: .5rem 1rem; margin: 1rem 0 0 }
fieldset label { display: flex; align-items: start; gap: .5rem; font-weight: 400; margin: .5rem 0 }
fieldset input { flex: none; margin: .25rem 0 0 }
#content > :last-child { margin-bottom: 0 }
button { margin-top: 1.25rem; width: 100%; min-height: 2.75rem; border: 0; border-radius: 8px; font: inherit; font-size: .875rem; font-weight: 600; background: var(--blue); color: #fff; cursor: pointer }
button:hover { background: var(--blue-hover) }
button.no { margin-top: .75rem; background: none; color: inherit; border: 1px solid var(--line) }
dl { margin: 0; display: grid; grid-template-columns: auto 1fr; gap: .25rem 1rem }
dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
ul { margin: 0; padding-left: 1.25rem }
button:disabled { opacity: .6 }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px }
[role=alert]:not(:empty) { padding: .5rem 1rem; border-left: 4px solid var(--red); border-radius: 8px; background: light-dark(#fff5f5, #3b2323) }
a { display: inline-block; padding: .5rem 0; color: var(--link) }
img { max-width: 100%; background: #fff; border-radius: 8px }
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
<p class="product">${escaped(productName)}</p>
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
