/** The built-in pages and their shell, used unless APP_URL names another app. */
import { readFileSync } from 'node:fs'
import {
  CONSOLE_CLIENT_ID,
  isRegisteredRedirect,
  readSignInForm,
} from '../../shared/access/credentials/clients.ts'
import { escapeHtml, formatPage } from '../../shared/core/html.ts'
import { isObject, type Resource } from '../../shared/fhir/resource.ts'
import { scopedTo, serviceUrl } from '../../shared/request/project-scope.ts'
import type { Context, Web } from '../http/context.ts'
import { sendHtml } from '../http/send.ts'
import { findClient, projectOfClient } from '../identity/auth/apps.ts'
import { hasConsole } from '../routes/console.ts'
import { createRoutes, type Route, type RouteFamily, type RouteTexts } from '../routes/table.ts'

const OPENAPI_TEXTS: RouteTexts = {
  'GET /openapi.json': { summary: 'This description', answer: 'object' },
}

const TEXTS: RouteTexts = {
  'GET /oauth': {
    summary: 'The page of a sign-in for an app',
    query: { client_id: 'text!: The app', redirect_uri: 'text!: Its address' },
    answer: 'text/html',
  },
  'GET /signin': {
    summary: 'The page of a sign-in',
    query: { project_id: 'text: The project of an account of one project' },
    answer: 'text/html',
  },
  'GET /resetpassword': {
    summary: 'The page that mails a link',
    query: { project_id: 'text: The project of an account of one project' },
    answer: 'text/html',
  },
  'GET /setpassword/:id/:secret': {
    summary: 'The page of a link to set a password',
    answer: 'text/html',
  },
  'GET /verifyemail/:id/:secret': {
    summary: 'The page of a link to prove an address',
    answer: 'text/html',
  },
  'GET /pages/script.js': { summary: 'The script of the pages', answer: 'text/javascript' },
  'GET /pages/style.css': { summary: 'The style of the pages', answer: 'text/css' },
}

export function pageRoutes({ services }: Web): RouteFamily {
  const routes = createRoutes({ texts: TEXTS })
  const { config } = services
  const { productName, baseUrl } = config
  if (config.appUrl !== baseUrl) return routes
  const script = readFileSync(new URL('./script.js', import.meta.url), 'utf8')

  routes.get('/oauth', 'public', async (ctx) => {
    const scoped = scopedTo(services, single(ctx, 'project_scope') || undefined)
    const client = await findClient(scoped, single(ctx, 'client_id'))
    // The page sends a code to this address, so it must be registered.
    if (client === undefined || !isRegisteredRedirect(client, single(ctx, 'redirect_uri'))) {
      ctx.status = 400
      ctx.type = 'text/plain'
      ctx.body = client === undefined ? 'Client not found' : 'Invalid redirect URI'
      return
    }
    // The console is part of the product and needs no consent.
    const isOwn = client.id === CONSOLE_CLIENT_ID
    const project = isOwn ? undefined : projectOfClient(client)
    sendPage(ctx, 'oauth', {
      title: 'Sign in',
      productName,
      data: {
        issuer: serviceUrl(scoped),
        ...(isOwn ? { own: 'true' } : {}),
        ...(project === undefined ? {} : { project }),
        ...greeting(client),
      },
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
    sendPage(ctx, 'setpassword', {
      title: 'Choose a password',
      productName,
      data: { id, secret, ...(hasConsole(config) ? { 'has-console': 'true' } : {}) },
    })
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
  const family = createRoutes({ texts: OPENAPI_TEXTS })
  let text: Promise<string> | undefined
  const describe = async () => {
    const { describeApi } = await import('../openapi/describe.ts')
    return describeApi(baseUrl, [...others, ...family.routes])
  }
  family.get('/openapi.json', 'public', async (ctx) => {
    text ??= describe()
    ctx.type = 'application/json; charset=utf-8'
    ctx.body = await text
  })
  return family
}

/** script.js uses the same names. */
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

function sendPage(ctx: Context, name: PageName, { title, productName, data }: Page): void {
  const page = formatPage({
    title: `${title} – ${productName}`,
    data: { page: name, ...data },
    head: [
      '<link rel="stylesheet" href="/pages/style.css">',
      '<script type="module" src="/pages/script.js"></script>',
    ],
    body: `<main>
<p class="product">${escapeHtml(productName)}</p>
<h1 tabindex="-1">${escapeHtml(title)}</h1>
<div role="alert" id="problem"></div>
<div id="content"><noscript>Please switch JavaScript on to sign in.</noscript></div>
</main>`,
  })
  // QR codes and logos are images.
  sendHtml(ctx, page, ["script-src 'self'", "style-src 'self'", 'img-src data: https:'])
}

function sendStyle(ctx: Context): void {
  ctx.type = 'text/css'
  ctx.body = STYLE
}
