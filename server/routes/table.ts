/**
 * Routes as data. Each says in its own line who may call it, and the app serves no others: one router is made of
 * all of them, and what stands in front of a handler follows from its line. Paths have one spelling
 * (middleware/requests.ts), which the router compares as it is.
 */
import Router, { type RouterMiddleware } from '@koa/router'
import type { Middleware, State } from '../http/context.ts'
import { type Access, requireAccess } from '../middleware/access.ts'

export type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'

type Handler = RouterMiddleware<State>

export interface Route {
  readonly methods: readonly Method[]
  readonly path: string
  readonly access: Access
  /** Runs in this order: `outside`, the check of the caller, `inside`, `handler`. */
  readonly outside: readonly Middleware[]
  readonly inside: readonly Middleware[]
  readonly handler: Handler
}

type Add = (path: string | readonly string[], access: Access, handler: Handler) => void

/** Routes below one prefix. */
export interface RouteFamily {
  readonly routes: readonly Route[]
  readonly get: Add
  readonly post: Add
  readonly put: Add
  readonly patch: Add
  readonly delete: Add
  on(methods: readonly Method[], ...line: Parameters<Add>): void
}

interface Common {
  readonly prefix?: string
  /** Sees failures of the caller's check, too. */
  readonly outside?: readonly Middleware[]
  /** Has a caller, where the route asks for one. */
  readonly inside?: readonly Middleware[]
}

export function createRoutes({ prefix = '', outside = [], inside = [] }: Common = {}): RouteFamily {
  const routes: Route[] = []
  const on: RouteFamily['on'] = (methods, path, access, handler) => {
    for (const end of [path].flat()) {
      routes.push({ methods, path: `${prefix}${end}`, access, outside, inside, handler })
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

/** Throws for a route without a mark. */
export function buildRouter(routes: readonly Route[], authenticate: Middleware): Router<State> {
  const router = new Router<State>({ sensitive: true, strict: true })
  for (const { methods, path, access, outside, inside, handler } of routes) {
    const line = [...outside, requireAccess(authenticate, access), ...inside, handler]
    router.register(path, [...methods], line)
  }
  return router
}
