/** `/openapi.json`, made from the table of routes itself. */
import { describeApi } from '../openapi.ts'
import { createRoutes, type Route, type RouteFamily } from './table.ts'

/** `others` are all routes but this one. */
export function openapiRoutes(baseUrl: string, others: readonly Route[]): RouteFamily {
  const family = createRoutes()
  let text: string | undefined
  family.get('/openapi.json', 'public', (ctx) => {
    text ??= JSON.stringify(describeApi(baseUrl, [...others, ...family.routes]))
    ctx.type = 'application/json; charset=utf-8'
    ctx.body = text
  })
  return family
}
