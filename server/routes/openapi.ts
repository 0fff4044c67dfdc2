/** `/openapi.json`, made from the routers themselves. */
import Router from '@koa/router'
import type { State } from '../context.ts'
import { describeApi, type Served } from '../openapi.ts'

export function openapiRoutes(baseUrl: string, routers: readonly Router<State>[]): Router<State> {
  const router = new Router<State>()
  let text: string | undefined
  router.get('/openapi.json', (ctx) => {
    text ??= JSON.stringify(describeApi(baseUrl, [...routers, router].flatMap(servedBy)))
    ctx.type = 'application/json; charset=utf-8'
    ctx.body = text
  })
  return router
}

/** Wildcards are described by who answers them. */
function servedBy({ stack }: Router<State>): readonly Served[] {
  return stack.flatMap(({ path, methods }) => {
    const text = String(path)
    if (methods.length === 0 || text.includes('{/*')) return []
    const named = methods.filter((method) => NAMED.has(method))
    return [{ path: text.replace(/:(\w+)/g, '{$1}'), methods: named }]
  })
}

const NAMED = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE'])
