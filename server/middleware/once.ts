/** `Idempotency-Key` on the routes outside FHIR: as `shared/api/idempotency.ts`, for ctx. */
import { answerOnce, isIdempotent } from '../../shared/api/idempotency.ts'
import { failureReply } from '../../shared/api/reply.ts'
import { HttpError } from '../../shared/errors.ts'
import { type Context, caller, type Middleware, type Web } from '../context.ts'
import { readBody } from './body.ts'

/** Behind `authenticate`. Errors: 400, 409, 422. */
export function once({ services }: Web): Middleware {
  return async (ctx, next) => {
    const { principal } = caller(ctx)
    const { requestId, traceId } = ctx.state
    const request = {
      method: ctx.method,
      path: ctx.path,
      query: new URLSearchParams(ctx.querystring),
      headers: ctx.req.headers as Record<string, string | undefined>,
      body: undefined,
      requestId,
      traceId,
    }
    if (!isIdempotent(request, principal)) return await next()
    const body = await readBody(ctx, services.config.maxBodyBytes)
    ctx.state.body = body
    const reply = await answerOnce(services, principal, { ...request, body }, async () => {
      try {
        await next()
      } catch (error) {
        if (!(error instanceof HttpError)) throw error
        return failureReply(error)
      }
      return { status: ctx.status, headers: headersOf(ctx), body: textOf(ctx.body) }
    })
    ctx.set({ ...reply.headers })
    ctx.body = reply.body ?? null
    ctx.status = reply.status
  }
}

const KEPT = [
  'Content-Type',
  'ETag',
  'Last-Modified',
  'Location',
  'Content-Location',
  'Retry-After',
]

function headersOf(ctx: Context): Record<string, string> {
  // Koa's types promise a text; a header that is not set is undefined.
  const found = KEPT.map((name): [string, string | undefined] => [name, ctx.response.get(name)])
  return Object.fromEntries(found.flatMap(([name, value]) => (value ? [[name, value]] : [])))
}

/** These routes answer text, or an object that Koa would write as JSON. */
function textOf(body: unknown): string | undefined {
  if (body === undefined || body === null) return undefined
  return typeof body === 'string' ? body : JSON.stringify(body)
}
