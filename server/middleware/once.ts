/** `Idempotency-Key` of non-FHIR routes; runs after `authenticate`. FHIR routes: shared/rest/idempotency.ts. */

import { failureReply, withTracing } from '../../shared/request/reply.ts'
import type { FhirReply } from '../../shared/request/request.ts'
import { answerOnce, isIdempotent } from '../../shared/rest/idempotency.ts'
import { readBody } from '../http/body.ts'
import { type Context, caller, type Middleware, requestIn, type Web } from '../http/context.ts'
import { send } from '../http/send.ts'

/** Stored headers, set by routes; all others are set again. */
const KEPT = ['content-type', 'content-location', 'etag', 'last-modified', 'location'] as const

export function idempotentRequests({ services }: Web): Middleware {
  return async (ctx, next) => {
    const { principal } = caller(ctx)
    const asked = requestIn(ctx, ctx.path, undefined)
    if (!isIdempotent(asked, principal)) return await next()
    const body = await readBody(ctx, services.config.maxBodyBytes)
    if (body !== undefined) ctx.state.body = body
    const reply = await answerOnce(
      services,
      principal,
      { ...asked, body },
      {
        isWhole: false,
        answer: async () => {
          await next()
          return captureReply(ctx)
        },
        failed: (error) => withTracing(failureReply(error), asked),
      },
    )
    await send(ctx, reply)
  }
}

function captureReply(ctx: Context): FhirReply {
  const { status, body } = ctx
  const headers: Record<string, string> = {}
  for (const name of KEPT) {
    const value = ctx.res.getHeader(name)
    if (typeof value === 'string') headers[name] = value
  }
  if (body === null || body === undefined) return { status, headers, body: undefined }
  const text = typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body)
  return { status, headers, body: text }
}
