/**
 * Routes as data. Each declares its access in its own line, and the app serves no others: one router is built from
 * all, with middleware derived from each line. Paths are normalized first (middleware/requests.ts), so the router
 * compares them as they are.
 */
import Router, { type RouterMiddleware } from '@koa/router'
import type { CallText } from '../../shared/request/request.ts'
import type { Middleware, State } from '../http/context.ts'
import { type Access, requireAccess } from '../middleware/access.ts'

type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

type Handler = RouterMiddleware<State>

export interface Route {
  readonly methods: readonly Method[]
  readonly path: string
  readonly access: Access
  /** Part of the API description by method. */
  readonly texts: Readonly<Record<string, CallText>>
  /** Order: `outside`, access check, `inside`, `handler`. */
  readonly outside: readonly Middleware[]
  readonly inside: readonly Middleware[]
  readonly handler: Handler
}

type Add = (path: string | readonly string[], access: Access, handler: Handler) => void

export interface RouteFamily {
  readonly routes: readonly Route[]
  readonly get: Add
  readonly post: Add
  readonly put: Add
  readonly patch: Add
  readonly delete: Add
  on(methods: readonly Method[], ...line: Parameters<Add>): void
}

/** By method and path after the prefix, as in the route's line: `POST /users/:id`. */
export type RouteTexts = Readonly<Record<string, CallText>>

interface Common {
  readonly prefix?: string
  readonly texts?: RouteTexts
  /** For all routes missing in `texts`. */
  readonly text?: CallText
  /** Also sees errors of the access check. */
  readonly outside?: readonly Middleware[]
  /** Runs after the access check. */
  readonly inside?: readonly Middleware[]
}

/** Throws for a route without a text. */
export function createRoutes(common: Common): RouteFamily {
  const { prefix = '', outside = [], inside = [] } = common
  const routes: Route[] = []
  const on: RouteFamily['on'] = (methods, path, access, handler) => {
    for (const end of [path].flat()) {
      const texts = textsFor(common, methods, end)
      routes.push({ methods, path: `${prefix}${end}`, access, texts, outside, inside, handler })
    }
  }
  const by =
    (method: Method): Add =>
    (...line) =>
      on([method], ...line)
  return {
    routes,
    on,
    get: by('GET'),
    post: by('POST'),
    put: by('PUT'),
    patch: by('PATCH'),
    delete: by('DELETE'),
  }
}

function textsFor({ texts = {}, text }: Common, methods: readonly Method[], path: string) {
  const found = methods.map((method) => {
    const own = texts[`${method} ${path}`] ?? text
    if (own === undefined) throw new Error(`A route carries no text: ${method} ${path}`)
    return [method, own] as const
  })
  return Object.fromEntries(found)
}

/** Throws for a route without a mark. */
export function buildRouter(routes: readonly Route[], authenticate: Middleware): Router<State> {
  const router = new Router<State>({ sensitive: true, strict: true })
  for (const { methods, path, access, outside, inside, handler } of routes) {
    const line = [...outside, requireAccess(authenticate, access), ...inside, handler]
    router.register(path, [...methods], line)
  }
  return router
}
