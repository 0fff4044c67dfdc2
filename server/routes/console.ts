/** The console: files built by `scripts/console.ts`, and the page that loads them at every address below `/console`. */
import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { open, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../shared/core/config/config.ts'
import { notFound } from '../../shared/core/errors.ts'
import { formatPage } from '../../shared/core/html.ts'
import type { Context, Web } from '../http/context.ts'
import { sendHtml } from '../http/send.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const PAGE = { summary: 'The console, for people in a browser', answer: 'text/html' }
const TEXTS: RouteTexts = {
  'GET /graphiql': { summary: 'Go to the editor of GraphQL queries in the console', status: 302 },
  'GET /console/assets/:file': { summary: 'A file of the console', answer: 'text/javascript' },
}

const FOLDER = join(import.meta.dirname, '../../dist/console')
const MANIFEST = join(FOLDER, 'manifest.json')
/** The page's script reads its own addresses; none is deeper. */
const DEEP_LINKS = [
  '',
  '/:page',
  '/:page/:a',
  '/:page/:a/:b',
  '/:page/:a/:b/:c',
  '/:page/:a/:b/:c/:d',
]
const TYPES: Readonly<Record<string, string>> = { js: 'text/javascript', css: 'text/css' }
const FILE = /^[\w-]+\.(js|css)$/
const ENCODINGS = [
  ['br', '.br'],
  ['gzip', '.gz'],
] as const

/** False if disabled, not built, or replaced by the app at APP_URL. */
export function hasConsole({ consoleEnabled, appUrl, baseUrl }: Config): boolean {
  return consoleEnabled && appUrl === baseUrl && existsSync(MANIFEST)
}

export function consoleRoutes({ services: { config, log } }: Web): RouteFamily {
  const routes = createRoutes({ texts: TEXTS, text: PAGE })
  if (!hasConsole(config)) {
    if (config.consoleEnabled && config.appUrl === config.baseUrl) {
      log.warn('The console is not built; `npm run build` makes it')
    }
    return routes
  }
  routes.get('/console/assets/:file', 'public', async (ctx) => {
    const { file = '' } = ctx.params
    if (!FILE.test(file)) throw notFound()
    await sendFile(ctx, file)
  })
  routes.get(
    DEEP_LINKS.map((end) => `/console${end}`),
    'public',
    // A new build replaces the folder while the service runs.
    async (ctx) => sendShell(ctx, JSON.parse(await readFile(MANIFEST, 'utf8')), config),
  )
  routes.get('/graphiql', 'public', (ctx) => ctx.redirect('/console/graphiql'))
  return routes
}

/** The file names, written by scripts/console.ts. */
interface Manifest {
  readonly script: string
  readonly style: string
  readonly preload: readonly string[]
}

async function sendFile(ctx: Context, file: string): Promise<void> {
  const [encoding, ending] = ENCODINGS.find(([name]) => ctx.acceptsEncodings(name)) ?? ['', '']
  const opened = await open(join(FOLDER, `${file}${ending}`)).catch(() => undefined)
  if (opened === undefined) throw notFound()
  // The name contains the digest of the content.
  ctx.set('Cache-Control', 'public, max-age=31536000, immutable')
  ctx.remove('Pragma')
  ctx.type = TYPES[file.split('.').at(-1) ?? ''] ?? ''
  if (encoding !== '') ctx.set('Content-Encoding', encoding)
  ctx.body = opened.createReadStream()
}

/** The nonce admits only style sheets that the console's libraries add at run time. */
function sendShell(ctx: Context, { script, style, preload }: Manifest, config: Config): void {
  const nonce = randomBytes(18).toString('base64')
  const assets = '/console/assets'
  const page = formatPage({
    title: config.productName,
    data: { product: config.productName, origin: new URL(config.baseUrl).origin },
    head: [
      '<link rel="icon" href="data:,">',
      `<link rel="stylesheet" href="${assets}/${style}">`,
      ...preload.map((name) => `<link rel="modulepreload" href="${assets}/${name}">`),
      `<script type="module" src="${assets}/${script}" nonce="${nonce}"></script>`,
    ],
    body: '<div id="root"><noscript>Please switch JavaScript on.</noscript></div>',
  })
  sendHtml(ctx, page, [
    "script-src 'self'",
    `style-src 'self' 'nonce-${nonce}'`,
    "img-src 'self' data: blob:",
  ])
}
