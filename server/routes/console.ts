/** The console: files that `scripts/console.ts` has made, and the page that loads them at every address below `/console`. */
import { randomBytes } from 'node:crypto'
import { createReadStream, existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Config } from '../../shared/core/config/config.ts'
import { notFound } from '../../shared/core/errors.ts'
import type { Context, Web } from '../http/context.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const FOLDER = join(import.meta.dirname, '../../dist/console')
const MANIFEST = join(FOLDER, 'manifest.json')
/** The page's own addresses are read by its script; none is deeper. */
const DEEP_LINKS = [
  '',
  '/:page',
  '/:page/:a',
  '/:page/:a/:b',
  '/:page/:a/:b/:c',
  '/:page/:a/:b/:c/:d',
]
const TYPES: Readonly<Record<string, string>> = { js: 'text/javascript', css: 'text/css' }
const ENCODINGS = [
  ['br', '.br'],
  ['gzip', '.gz'],
] as const

/** False where it is switched off, not built, or the pages are another app's. */
export function hasConsole({ consoleEnabled, appUrl, baseUrl }: Config): boolean {
  return consoleEnabled && appUrl === baseUrl && existsSync(MANIFEST)
}

export function consoleRoutes({ services: { config, log } }: Web): RouteFamily {
  const routes = createRoutes()
  if (!hasConsole(config)) {
    if (config.consoleEnabled && config.appUrl === config.baseUrl) {
      log.warn('The console is not built; `npm run build` makes it')
    }
    return routes
  }
  const files = new Set(readdirSync(FOLDER).filter((name) => /\.(js|css)$/.test(name)))
  const manifest: Manifest = JSON.parse(readFileSync(MANIFEST, 'utf8'))

  routes.get('/console/assets/:file', 'public', (ctx) => {
    const { file = '' } = ctx.params
    if (!files.has(file)) throw notFound()
    sendFile(ctx, file)
  })
  routes.get(
    DEEP_LINKS.map((end) => `/console${end}`),
    'public',
    (ctx) => sendShell(ctx, manifest, config),
  )
  routes.get('/graphiql', 'public', (ctx) => ctx.redirect('/console/graphiql'))
  return routes
}

/** The names of the files; scripts/console.ts writes them. */
interface Manifest {
  readonly script: string
  readonly style: string
  readonly preload: readonly string[]
}

function sendFile(ctx: Context, file: string): void {
  // The name holds the digest of the content.
  ctx.set('Cache-Control', 'public, max-age=31536000, immutable')
  ctx.remove('Pragma')
  ctx.type = TYPES[file.split('.').at(-1) ?? ''] ?? ''
  const [encoding, ending] = ENCODINGS.find(([name]) => ctx.acceptsEncodings(name)) ?? ['', '']
  if (encoding !== '') ctx.set('Content-Encoding', encoding)
  ctx.body = createReadStream(join(FOLDER, `${file}${ending}`))
}

/** Libraries of the console add style sheets at run time; the nonce lets in theirs and no others. */
function sendShell(ctx: Context, { script, style, preload }: Manifest, config: Config): void {
  const nonce = randomBytes(18).toString('base64')
  ctx.set(
    'Content-Security-Policy',
    [
      "default-src 'none'",
      "script-src 'self'",
      `style-src 'self' 'nonce-${nonce}'`,
      "connect-src 'self'",
      "img-src 'self' data: blob:",
      "base-uri 'none'",
      "form-action 'none'",
      "frame-ancestors 'none'",
    ].join('; '),
  )
  const assets = '/console/assets'
  const links = preload.map((name) => `<link rel="modulepreload" href="${assets}/${name}">`)
  ctx.type = 'text/html; charset=utf-8'
  ctx.body = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(config.productName)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="${assets}/${style}">
${links.join('\n')}
<script type="module" src="${assets}/${script}" nonce="${nonce}"></script>
</head>
<body data-product="${escaped(config.productName)}" data-origin="${new URL(config.baseUrl).origin}">
<div id="root"><noscript>Please switch JavaScript on.</noscript></div>
</body>
</html>
`
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`)
}
