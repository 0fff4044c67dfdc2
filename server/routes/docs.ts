/** `/docs`: the site built by `npm run docs`, and the API description as a page. */
import { hash } from 'node:crypto'
import { createReadStream, existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { notFound } from '../../shared/core/errors.ts'
import { formatPage } from '../../shared/core/html.ts'
import type { Context } from '../http/context.ts'
import { sendHtml } from '../http/send.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const SITE = join(import.meta.dirname, '../../dist/docs')
/** Copied there by `npm run build`. */
const VIEWER = join(import.meta.dirname, '../../dist/viewer')
/** Pages and files lie at most three folders deep; missing ones may be requested deeper. */
const DEPTHS = ['', '/:a', '/:a/:b', '/:a/:b/:c', '/:a/:b/:c/:d', '/:a/:b/:c/:d/:e']
const VIEWER_FILES = ['swagger-ui-bundle.js', 'swagger-ui.css']
const START = `SwaggerUIBundle({
  url: '/openapi.json', dom_id: '#api', deepLinking: true, docExpansion: 'none', filter: true,
  defaultModelsExpandDepth: -1, validatorUrl: null,
})
`
const NOTICE_STYLE = `:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif }
main { max-width: 36rem; margin: 15vh auto; padding: 0 1rem }
`
const SOURCES = [
  "style-src 'self'",
  // Syntax highlighting uses style attributes.
  "style-src-attr 'unsafe-inline'",
  "img-src 'self' data:",
  "font-src 'self'",
]

const PAGE = {
  summary: 'The documentation, and this description as a page',
  answer: 'text/html',
}

/** Serves a notice if the site is not built; omits the API page if the console is not built. */
export function docsRoutes(): RouteFamily {
  const routes = createRoutes({ prefix: '/docs', text: PAGE })
  addViewer(routes)
  routes.get('/notice.css', 'public', (ctx) => {
    ctx.type = 'text/css'
    ctx.body = NOTICE_STYLE
  })
  const isMade = existsSync(join(SITE, 'index.html'))
  const files = new Set(isMade ? readdirSync(SITE, { recursive: true, encoding: 'utf8' }) : [])
  routes.get(DEPTHS, 'public', (ctx) => {
    const path = ctx.path.slice('/docs/'.length)
    const names = [path, `${path}.html`, join(path, 'index.html'), join(path, 'README.html')]
    const name = names.find((one) => /\.\w+$/.test(one) && files.has(one))
    if (name === undefined) return sendNotFound(ctx, isMade)
    const isFolder = name !== path && name !== `${path}.html`
    // Links of the page are relative, but the path has already lost its slash.
    const [asked = ''] = ctx.originalUrl.split('?')
    if (isFolder && !asked.endsWith('/')) return ctx.redirect(`${ctx.path}/`)
    if (name.endsWith('.html')) sendPage(ctx, readFileSync(join(SITE, name), 'utf8'))
    else sendFile(ctx, join(SITE, name))
  })
  return routes
}

/** Errors: 404 for programs; browsers get a page. */
function sendNotFound(ctx: Context, isMade: boolean): void {
  if (!ctx.accepts('html')) throw notFound()
  const [title, text] = isMade
    ? ['There is no such page', 'The address may be mistyped, or from another version.']
    : [
        'The documentation is not built here',
        'On a checkout with its packages for development, <code>npm start</code> and <code>npm run docs</code> build it. The same pages are in the folder <code>docs</code> of the repository.',
      ]
  const start = isMade ? '<a href="/docs/">Start of the documentation</a>, ' : ''
  ctx.status = 404
  const page = formatPage({
    title,
    head: ['<link rel="icon" href="data:,">', '<link rel="stylesheet" href="/docs/notice.css">'],
    body: `<main><h1>${title}</h1><p>${text}</p>
<p>${start}<a href="/docs/api">the API</a>, <a href="/console">the console</a></p></main>`,
  })
  sendPage(ctx, page)
}

function addViewer(routes: RouteFamily): void {
  if (!existsSync(VIEWER)) return
  routes.get('/api', 'public', (ctx) => {
    const page = formatPage({
      title: 'The API',
      head: [
        '<link rel="icon" href="data:,">',
        '<link rel="stylesheet" href="/docs/api/swagger-ui.css">',
        '<script defer src="/docs/api/swagger-ui-bundle.js"></script>',
        '<script defer src="/docs/api/start.js"></script>',
      ],
      body: '<main id="api"><noscript>Please switch JavaScript on.</noscript></main>',
    })
    sendPage(ctx, page)
  })
  routes.get('/api/:file', 'public', (ctx) => {
    const { file = '' } = ctx.params
    if (file === 'start.js') {
      ctx.type = 'text/javascript'
      ctx.body = START
      return
    }
    if (!VIEWER_FILES.includes(file)) throw notFound()
    sendFile(ctx, join(VIEWER, file))
  })
}

/** Admits inline scripts by their digests. */
function sendPage(ctx: Context, html: string): void {
  const inside = html.matchAll(/<script(?![^>]*\ssrc=)[^>]*>([\s\S]*?)<\/script>/g)
  const digests = Array.from(inside, ([, script = '']) => {
    return `'sha256-${hash('sha256', script, 'base64')}'`
  })
  const scripts = ["script-src 'self'", ...digests].join(' ')
  sendHtml(ctx, html, [...SOURCES, scripts])
}

function sendFile(ctx: Context, file: string): void {
  ctx.set('Cache-Control', 'public, max-age=3600')
  ctx.remove('Pragma')
  ctx.type = file.split('.').at(-1) ?? ''
  ctx.body = createReadStream(file)
}
