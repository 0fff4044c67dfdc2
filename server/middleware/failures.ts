/** Anything thrown → a status and an OperationOutcome, or the error object of RFC 6749 §5.2. */

import { HttpError, issue, outcome, unavailable } from '../../shared/core/errors.ts'
import type { Logger } from '../../shared/core/log.ts'
import { FHIR_JSON } from '../../shared/request/reply.ts'
import { discardBody } from '../http/body.ts'
import type { Context, Middleware } from '../http/context.ts'

const TRACING = 'https://medplum.com/fhir/StructureDefinition/tracing'
/** Codes of a socket that is gone, and SQLSTATE classes 08 and 57P of a server that is going. */
const AWAY =
  /^(ECONNREFUSED|ECONNRESET|EPIPE|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENOSPC|EDQUOT|08\w{3}|57P0[123])$/

/** A failure of an OAuth endpoint; `error` is a code of RFC 6749 §5.2 or RFC 6750 §3.1. */
export class OAuthError extends Error {
  readonly status: number
  readonly error: string
  readonly headers: Readonly<Record<string, string>>

  constructor(
    error: string,
    description: string,
    status = 400,
    headers: Readonly<Record<string, string>> = {},
  ) {
    super(description)
    this.error = error
    this.status = status
    this.headers = headers
  }
}

/** Why work for a caller that has closed its connection ends: there is nobody to answer. */
class ClientDisconnected extends Error {}

/** Aborts when the caller closes its connection before it has the answer. */
export function disconnectSignal(ctx: Context): AbortSignal {
  const { res } = ctx
  const controller = new AbortController()
  const onClose = () => {
    if (!res.writableFinished) controller.abort(new ClientDisconnected())
  }
  if (res.closed) onClose()
  else res.once('close', onClose)
  return controller.signal
}

export function errorHandler(log: Logger): Middleware {
  return async (ctx, next) => {
    try {
      await next()
    } catch (error) {
      answer(ctx, error, log)
      discardBody(ctx)
    }
  }
}

function answer(ctx: Context, error: unknown, log: Logger): void {
  if (error instanceof ClientDisconnected) return
  if (error instanceof OAuthError) {
    sendOAuth(ctx, error)
    return
  }
  const failure = toHttpError(error)
  if (failure.status >= 500) {
    const { requestId, traceId } = ctx.state
    // An outage is logged when it begins and ends; a request that it refuses is no news.
    if (failure.status === 503) log.info({ requestId, traceId, cause: failure }, failure.message)
    else log.error({ err: failure.cause ?? failure, requestId, traceId }, failure.message)
  }
  if (ctx.path.startsWith('/oauth2/')) {
    sendOAuth(ctx, toOAuthError(failure))
    return
  }
  ctx.status = failure.status
  ctx.set(failure.headers)
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify({ ...failure.outcome, extension: [tracing(ctx)] })
}

function toHttpError(error: unknown): HttpError {
  if (error instanceof HttpError) return error
  if (error instanceof Error && 'code' in error && AWAY.test(String(error.code))) {
    return unavailable('The service', error)
  }
  const body = outcome(undefined, issue('error', 'exception', 'Internal server error'))
  return new HttpError(500, body, { cause: error })
}

/** The extension that names request and trace in every outcome. */
function tracing(ctx: Context) {
  return {
    url: TRACING,
    extension: [
      { url: 'requestId', valueId: ctx.state.requestId },
      { url: 'traceId', valueId: ctx.state.traceId },
    ],
  }
}

function sendOAuth(ctx: Context, error: OAuthError): void {
  ctx.status = error.status
  ctx.set(error.headers)
  ctx.set('Content-Type', 'application/json; charset=utf-8')
  ctx.body = JSON.stringify({ error: error.error, error_description: error.message })
}

function toOAuthError(failure: HttpError): OAuthError {
  const { status, message, headers } = failure
  if (status === 401) return new OAuthError('invalid_token', message, status, headers)
  if (status === 429 || status === 503) {
    return new OAuthError('temporarily_unavailable', message, status, headers)
  }
  const code = status >= 500 ? 'server_error' : 'invalid_request'
  return new OAuthError(code, message, status, headers)
}
