/**
 * Routes of the client library beside FHIR: `/keyvalue/v1/:key`, small texts that a member keeps for itself (they lie in
 * Redis and are a cache: a text is gone after thirty days without a write, or with the Redis), and `/email/v1/send`.
 */
import { allOk, badRequest, forbiddenByPlatform, notFound } from '../../shared/core/errors.ts'
import { sendEmail } from '../../shared/projects/email.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import { readBody, readJsonObject } from '../http/body.ts'
import { type Context, caller, type Web } from '../http/context.ts'
import { idempotentRequests } from '../middleware/once.ts'
import { createRoutes, type RouteFamily } from './table.ts'

const MOST_BYTES = 8192
const MOST_KEYS = 50
const KEPT_SECONDS = 30 * 86_400

/** A new key beyond the most is refused; the others live on. Answers 0 or 1. */
const SET = `
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 and redis.call('hlen', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
redis.call('expire', KEYS[1], ARGV[4])
return 1`

export function keyValueRoutes({ services }: Web): RouteFamily {
  const { redis } = services
  const routes = createRoutes({ prefix: '/keyvalue/v1' })

  routes.get('/:key', 'signed-in', async (ctx) => {
    const value = await redis.hget(requireKeyspace(ctx), requireKey(ctx))
    if (value === null) throw notFound()
    ctx.type = 'text/plain; charset=utf-8'
    ctx.body = value
  })
  routes.put('/:key', 'signed-in', async (ctx) => {
    const [shelf, key] = [requireKeyspace(ctx), requireKey(ctx)]
    if (!ctx.is('text/plain')) throw badRequest('The value must be text/plain')
    const value = (await readBody(ctx, MOST_BYTES + 1))?.toString('utf8') ?? ''
    if (Buffer.byteLength(value) > MOST_BYTES) {
      throw badRequest(`A value may have ${MOST_BYTES} bytes`)
    }
    const isSet = await redis.eval(SET, 1, shelf, key, value, MOST_KEYS, KEPT_SECONDS)
    if (isSet !== 1) throw badRequest(`A member may have ${MOST_KEYS} keys`)
    ctx.status = 204
  })
  routes.delete('/:key', 'signed-in', async (ctx) => {
    await redis.hdel(requireKeyspace(ctx), requireKey(ctx))
    ctx.status = 204
  })
  return routes
}

function requireKey(ctx: Context): string {
  const { key = '' } = ctx.params
  if (/^[\w-]{1,128}$/.test(key)) return key
  throw badRequest('A key has 1 to 128 letters, digits, - and _', 'key')
}

/** One a membership. What a person keeps is not for an app whose scope narrows them. Errors: 403. */
function requireKeyspace(ctx: Context): string {
  const { membershipId, rules } = caller(ctx).principal
  if (membershipId === undefined || rules?.scoped !== undefined) {
    throw forbiddenByPlatform('The scope does not reach the key value store')
  }
  return `keyvalue:${membershipId}`
}

/** Fetching attachments may take so long in all. */
const PATIENCE_MS = 60_000

/** `/email/v1/send`. */
export function emailRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ inside: [idempotentRequests(web)] })
  routes.post('/email/v1/send', 'administrator', async (ctx) => {
    const body = await readJsonObject(ctx, services.config.maxBodyBytes)
    await sendEmail(services, caller(ctx).principal, body, AbortSignal.timeout(PATIENCE_MS))
    ctx.set('Content-Type', FHIR_JSON)
    ctx.body = JSON.stringify(allOk)
  })
  return routes
}
