/** GraphiQL, from its package: a person signs in on the page, and asks by that person's rights. */
import { createReadStream } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { notFound } from '../../shared/errors.ts'
import type { Web } from '../context.ts'
import { sendPage } from '../pages/shell.ts'
import { createRoutes, type RouteFamily } from './table.ts'

/** Of the page, and where each lies. */
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
