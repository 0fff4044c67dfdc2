/** Converts thrown errors to a status and an OperationOutcome, or the error object of RFC 6749 §5.2. */

import { HttpError, issue, outcome, unavailable } from '../../shared/core/errors.ts'
import type { Logger } from '../../shared/core/log.ts'
import { FHIR_JSON, tracingExtension } from '../../shared/request/reply.ts'
import { discardBody } from '../http/body.ts'
import type { Context, Middleware, State } from '../http/context.ts'

/** Codes of lost sockets, and SQLSTATE classes 08 and 57P of a server that shuts down. */
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

/** Abort reason when the client has disconnected. */
export class ClientDisconnected extends Error {}

/** Aborts when the client disconnects before the reply. */
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
  logFailure(log, failure, ctx.state)
  if (ctx.path.startsWith('/oauth2/')) {
    sendOAuth(ctx, toOAuthError(failure))
    return
  }
  ctx.status = failure.status
  ctx.set(failure.headers)
  ctx.set('Content-Type', FHIR_JSON)
  ctx.body = JSON.stringify({ ...failure.outcome, extension: [tracingExtension(ctx.state)] })
}

export function logFailure(
  log: Logger,
  failure: HttpError,
  { requestId, traceId }: Pick<State, 'requestId' | 'traceId'>,
): void {
  if (failure.status < 500) return
  // Outages are logged at their begin and end, not for each request.
  if (failure.status === 503) log.info({ requestId, traceId, cause: failure }, failure.message)
  else log.error({ err: failure.cause ?? failure, requestId, traceId }, failure.message)
}

export function toHttpError(error: unknown): HttpError {
  if (error instanceof HttpError) return error
  if (error instanceof Error && 'code' in error && AWAY.test(String(error.code))) {
    return unavailable('The service', error)
  }
  const body = outcome(undefined, issue('error', 'exception', 'Internal server error'))
  return new HttpError(500, body, { cause: error })
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
