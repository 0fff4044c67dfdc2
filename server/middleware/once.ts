/** `Idempotency-Key` of routes that are not FHIR; behind `authenticate`. Those of FHIR see shared/rest/idempotency.ts. */

import { failureReply, withTracing } from '../../shared/request/reply.ts'
import type { FhirReply } from '../../shared/request/request.ts'
import { answerOnce, isIdempotent } from '../../shared/rest/idempotency.ts'
import { readBody } from '../http/body.ts'
import { type Context, caller, type Middleware, type Web } from '../http/context.ts'
import { send } from '../http/send.ts'

/** Set by routes; what every answer has besides is made anew. */
const KEPT = ['content-type', 'content-location', 'etag', 'last-modified', 'location'] as const

export function idempotentRequests({ services }: Web): Middleware {
  return async (ctx, next) => {
    const { principal } = caller(ctx)
    // Node joins repeated headers into one text; only set-cookie is a list, and nobody sends it.
    const headers = ctx.req.headers as Record<string, string | undefined>
    if (!isIdempotent({ method: ctx.method, headers }, principal)) return await next()
    const body = await readBody(ctx, services.config.maxBodyBytes)
    if (body !== undefined) ctx.state.body = body
    const { method, path } = ctx
    const query = new URLSearchParams(ctx.querystring)
    const { requestId, traceId } = ctx.state
    const request = { method, path, query, headers, body, requestId }
    const reply = await answerOnce(services, principal, request, {
      isWhole: false,
      answer: async () => {
        await next()
        return captureReply(ctx)
      },
      failed: (error) => withTracing(failureReply(error), { requestId, traceId }),
    })
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
