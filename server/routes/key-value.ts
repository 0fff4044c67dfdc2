/**
 * Routes of the client library next to FHIR: `/keyvalue/v1/:key`, a member's small texts (a cache in Redis: a text
 * expires after thirty days without a write), and `/email/v1/send`.
 */

import type { Principal } from '../../shared/access/principal.ts'
import { allOk, badRequest, forbiddenByPlatform, notFound } from '../../shared/core/errors.ts'
import { sendEmail } from '../../shared/projects/email.ts'
import { jsonReply } from '../../shared/request/reply.ts'
import type { FhirReply, FhirRequest } from '../../shared/request/request.ts'
import type { Services } from '../../shared/request/services.ts'
import { parseJsonBody, readBody } from '../http/body.ts'
import { type Context, caller, requestIn, type Web } from '../http/context.ts'
import { sendByEither } from '../http/send.ts'
import { credentialsIn } from '../middleware/authenticate.ts'
import { idempotentRequests } from '../middleware/once.ts'
import { createRoutes, type RouteFamily, type RouteTexts } from './table.ts'

const TEXTS: RouteTexts = {
  'GET /:key': {
    summary: 'Read a text of the member',
    answer: 'text/plain',
  },
  'PUT /:key': {
    summary: 'Store a text',
    description: 'A cache: at most 8 KiB per text and 50 keys per member, for thirty days.',
    body: 'text/plain',
    status: 204,
  },
  'DELETE /:key': { summary: 'Delete a text', status: 204 },
}

const EMAIL_TEXTS: RouteTexts = {
  'POST /email/v1/send': {
    summary: 'Send a mail',
    description: 'For projects with the feature `email`.',
    body: {
      to: 'list!: Addresses',
      subject: 'text!: One line',
      text: 'text: The mail as text',
      html: 'text: The mail as HTML',
      attachments: 'list: Name and content or address',
      from: 'text: One of MAIL_APPROVED_SENDERS',
    },
    example: { to: ['grace@example.org'], subject: 'Your visit', text: 'See you at nine.' },
    answer: 'OperationOutcome',
  },
}

const MOST_BYTES = 8192
const MOST_KEYS = 50
const KEPT_SECONDS = 30 * 86_400

/** Rejects a new key above the limit; the others live on. Returns 0 or 1. */
const SET = `
if redis.call('hexists', KEYS[1], ARGV[1]) == 0 and redis.call('hlen', KEYS[1]) >= tonumber(ARGV[3]) then
  return 0
end
redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
redis.call('expire', KEYS[1], ARGV[4])
return 1`

export function keyValueRoutes({ services }: Web): RouteFamily {
  const { redis } = services
  const routes = createRoutes({ prefix: '/keyvalue/v1', texts: TEXTS })

  routes.get('/:key', 'signed-in', async (ctx) => {
    const value = await redis.hget(requireKeyspace(ctx), requireKey(ctx))
    if (value === null) throw notFound()
    ctx.type = 'text/plain; charset=utf-8'
    ctx.body = value
  })
  routes.put('/:key', 'signed-in', async (ctx) => {
    const [keyspace, key] = [requireKeyspace(ctx), requireKey(ctx)]
    if (!ctx.is('text/plain')) throw badRequest('The value must be text/plain')
    const value = (await readBody(ctx, MOST_BYTES + 1))?.toString('utf8') ?? ''
    if (Buffer.byteLength(value) > MOST_BYTES) {
      throw badRequest(`A value may have at most ${MOST_BYTES} bytes`)
    }
    const isSet = await redis.eval(SET, 1, keyspace, key, value, MOST_KEYS, KEPT_SECONDS)
    if (isSet !== 1) throw badRequest(`A member may have at most ${MOST_KEYS} keys`)
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
  throw badRequest('A key must have 1 to 128 letters, digits, - and _', 'key')
}

/** One keyspace per membership; apps with restricting scopes cannot access it. Errors: 403. */
function requireKeyspace(ctx: Context): string {
  const { membershipId, rules } = caller(ctx).principal
  if (membershipId === undefined || rules?.scoped !== undefined) {
    throw forbiddenByPlatform('The scope does not include the key value store')
  }
  return `keyvalue:${membershipId}`
}

const PATIENCE_MS = 60_000

/** `/email/v1/send`. */
export function emailRoutes(web: Web): RouteFamily {
  const { services } = web
  const routes = createRoutes({ texts: EMAIL_TEXTS, inside: [idempotentRequests(web)] })
  routes.post('/email/v1/send', 'administrator', async (ctx) => {
    const body = await readBody(ctx, services.config.maxBodyBytes)
    const request = requestIn(ctx, ctx.path.slice(1), body)
    await sendByEither(ctx, web, request, {
      here: () => mail(services, caller(ctx).principal, request),
      threadCaller: () => ({ ...credentialsIn(services, ctx), sends: 'mail' }),
    })
  })
  return routes
}

/** Errors: 400, 403, 413, 415. */
export async function mail(
  services: Services,
  principal: Principal,
  { body, headers }: FhirRequest,
): Promise<FhirReply> {
  const asked = parseJsonBody(body, headers['content-type'] ?? '')
  await sendEmail(services, principal, asked, AbortSignal.timeout(PATIENCE_MS))
  return jsonReply(200, allOk)
}
