/** `/scim/v2/Users`, with the media type and the error object of RFC 7644. */

import { HttpError } from '../../shared/core/errors.ts'
import { readJsonObject } from '../http/body.ts'
import { type Context, type Middleware, type Web, writer } from '../http/context.ts'
import { idempotentRequests } from '../middleware/once.ts'
import {
  createUser,
  listUsers,
  patchUser,
  readUser,
  removeUser,
  replaceUser,
  type ScimCall,
} from '../projects/scim/users.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const SCIM = 'RFC 7644. A user is a membership of the project.'
const CHANGE = `${SCIM} With \`If-Match\`, only if the user has this version; otherwise 412.`
const TEXTS: RouteTexts = {
  'GET /Users': {
    summary: 'List users',
    description: SCIM,
    query: {
      filter: 'text: userName eq "…"',
      startIndex: 'whole: From 1',
      count: 'whole: So many',
    },
    answer: 'application/scim+json',
  },
  'POST /Users': {
    summary: 'Create a user',
    description: SCIM,
    body: 'application/scim+json',
    example: {
      schemas: ['urn:ietf:params:scim:schemas:core:2.0:User'],
      userName: 'grace@example.org',
      name: { givenName: 'Grace', familyName: 'Hopper' },
      emails: [{ value: 'grace@example.org' }],
      userType: 'Practitioner',
    },
    answer: 'application/scim+json',
    status: 201,
  },
  'GET /Users/:id': {
    summary: 'Read a user',
    description: SCIM,
    answer: 'application/scim+json',
  },
  'PUT /Users/:id': {
    summary: 'Replace a user',
    description: CHANGE,
    body: 'application/scim+json',
    answer: 'application/scim+json',
  },
  'PATCH /Users/:id': {
    summary: 'Change a user',
    description: `${CHANGE} \`active\` false deactivates the membership, which DELETE removes.`,
    body: 'application/scim+json',
    answer: 'application/scim+json',
  },
  'DELETE /Users/:id': { summary: 'Remove a user', description: CHANGE, status: 204 },
}

const SCIM_JSON = 'application/scim+json; charset=utf-8'

export function scimRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({
    prefix: '/scim/v2',
    texts: TEXTS,
    outside: [scimErrors],
    inside: [idempotentRequests(web)],
  })

  const toScimCall = (ctx: Context): ScimCall => {
    const { principal, session } = writer(ctx)
    const ifMatch = ctx.get('If-Match').trim()
    const isAny = ifMatch === '' || ifMatch === '*'
    return { services, caller: principal, session, ifMatch: isAny ? undefined : ifMatch }
  }
  routes.get('/Users', 'administrator', async (ctx) => {
    sendScim(ctx, 200, await listUsers(toScimCall(ctx), new URLSearchParams(ctx.querystring)))
  })
  routes.post('/Users', 'administrator', async (ctx) => {
    const user = await createUser(toScimCall(ctx), await readJsonObject(ctx))
    ctx.set('Location', user.meta.location)
    sendUser(ctx, 201, user)
  })
  routes.get('/Users/:id', 'administrator', async (ctx) => {
    sendUser(ctx, 200, await readUser(toScimCall(ctx), ctx.params.id ?? ''))
  })
  routes.put('/Users/:id', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx)
    sendUser(ctx, 200, await replaceUser(toScimCall(ctx), ctx.params.id ?? '', body))
  })
  routes.patch('/Users/:id', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx)
    sendUser(ctx, 200, await patchUser(toScimCall(ctx), ctx.params.id ?? '', body))
  })
  routes.delete('/Users/:id', 'administrator', async (ctx) => {
    await removeUser(toScimCall(ctx), ctx.params.id ?? '')
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
      ...scimErrorType(error),
      detail: texts.join('; '),
    })
  }
}

function scimErrorType({ status, outcome }: HttpError): object {
  if (status === 409) return { scimType: 'uniqueness' }
  if (status !== 400) return {}
  const [first] = outcome.issue
  const scimType = first?.details.coding?.[0]?.code
  return { scimType: scimType ?? (first?.code === 'structure' ? 'invalidSyntax' : 'invalidValue') }
}

/** https://datatracker.ietf.org/doc/html/rfc7644#section-3.14 */
function sendUser(ctx: Context, status: number, user: Awaited<ReturnType<typeof readUser>>): void {
  ctx.set('ETag', user.meta.version)
  sendScim(ctx, status, user)
}

function sendScim(ctx: Context, status: number, body: object): void {
  ctx.status = status
  ctx.set('Content-Type', SCIM_JSON)
  ctx.body = JSON.stringify(body)
}
