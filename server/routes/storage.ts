/** `/storage/{id}/{vid}`: content of a Binary under a signed address, without a token. */
import { handleSigned } from '../../shared/api/handle.ts'
import type { Web } from '../context.ts'
import { send } from '../send.ts'
import { createRoutes, type RouteFamily } from './table.ts'

export function storageRoutes({ services }: Web): RouteFamily {
  const routes = createRoutes()
  routes.get('/storage/:id/:vid', 'address', async (ctx) => {
    const { requestId, traceId } = ctx.state
    const reply = await handleSigned(services, {
      method: 'GET',
      path: ctx.path.slice(1),
      query: new URLSearchParams(ctx.querystring),
      // Node joins repeated headers into one text; only set-cookie is a list, and nobody sends it.
      headers: ctx.req.headers as Record<string, string | undefined>,
      body: undefined,
      requestId,
      traceId,
    })
    await send(ctx, reply)
  })
  return routes
}
