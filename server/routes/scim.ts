/** `/scim/v2/Users`, with the media type and the error object of RFC 7644. */
import { HttpError } from '../../shared/errors.ts'
import { type Context, type Middleware, type Web, writer } from '../context.ts'
import { readJsonObject } from '../middleware/body.ts'
import { once } from '../middleware/once.ts'
import {
  createUser,
  listUsers,
  patchUser,
  readUser,
  removeUser,
  replaceUser,
  type ScimCall,
} from '../projects/scim/users.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const SCIM_JSON = 'application/scim+json; charset=utf-8'

export function scimRoutes(web: Web): RouteFamily {
  const { services } = web
  const { maxBodyBytes } = services.config
  const routes = createRoutes({ prefix: '/scim/v2', outside: [scimErrors], inside: [once(web)] })

  const callOf = (ctx: Context): ScimCall => {
    const { principal, session } = writer(ctx)
    return { services, caller: principal, session }
  }
  routes.get('/Users', 'administrator', async (ctx) => {
    sendScim(ctx, 200, await listUsers(callOf(ctx), new URLSearchParams(ctx.querystring)))
  })
  routes.post('/Users', 'administrator', async (ctx) => {
    const user = await createUser(callOf(ctx), await readJsonObject(ctx, maxBodyBytes))
    ctx.set('Location', user.meta.location)
    sendScim(ctx, 201, user)
  })
  routes.get('/Users/:id', 'administrator', async (ctx) => {
    sendScim(ctx, 200, await readUser(callOf(ctx), ctx.params.id ?? ''))
  })
  routes.put('/Users/:id', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    sendScim(ctx, 200, await replaceUser(callOf(ctx), ctx.params.id ?? '', body))
  })
  routes.patch('/Users/:id', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, maxBodyBytes)
    sendScim(ctx, 200, await patchUser(callOf(ctx), ctx.params.id ?? '', body))
  })
  routes.delete('/Users/:id', 'administrator', async (ctx) => {
    await removeUser(callOf(ctx), ctx.params.id ?? '')
    ctx.status = 204
  })
  return routes
}

/** https://datatracker.ietf.org/doc/html/rfc7644#section-3.12 */
const scimErrors: Middleware = async (ctx, next) => {
  try {
    await next()
  } catch (error) {
    if (!(error instanceof HttpError) || error.status >= 500) throw error
    const { status, headers, outcome } = error
    const texts = outcome.issue.map(({ details }) => details.text)
    ctx.set(headers)
    sendScim(ctx, status, {
      schemas: ['urn:ietf:params:scim:api:messages:2.0:Error'],
      status: String(status),
      ...(status === 409 ? { scimType: 'uniqueness' } : {}),
      detail: texts.join('; '),
    })
  }
}

function sendScim(ctx: Context, status: number, body: object): void {
  ctx.status = status
  ctx.set('Content-Type', SCIM_JSON)
  ctx.body = JSON.stringify(body)
}
