/**
 * OperationOutcomes and HTTP errors that callers may see. The SDK derives the status from an outcome's `id`, so ids are
 * part of the contract. https://hl7.org/fhir/R4/operationoutcome.html
 */
export type Severity = 'fatal' | 'error' | 'warning' | 'information'

export interface Issue {
  readonly severity: Severity
  readonly code: string
  readonly details: { readonly text: string; readonly coding?: readonly { code: string }[] }
  readonly expression?: readonly string[]
  readonly diagnostics?: string
}

export interface OperationOutcome {
  readonly resourceType: 'OperationOutcome'
  readonly id?: string
  readonly issue: readonly Issue[]
  readonly extension?: readonly unknown[]
  readonly [key: string]: unknown
}

interface IssueDetails {
  readonly expression?: string | undefined
  readonly diagnostics?: string | undefined
}

/** `expression` is the FHIRPath of the faulty element, if any. */
export function issue(
  severity: Severity,
  code: string,
  text: string,
  { expression, diagnostics }: IssueDetails = {},
): Issue {
  return {
    severity,
    code,
    details: { text },
    ...(expression === undefined ? {} : { expression: [expression] }),
    ...(diagnostics === undefined ? {} : { diagnostics }),
  }
}

export function outcome(id: string | undefined, ...issues: Issue[]): OperationOutcome {
  return { resourceType: 'OperationOutcome', ...(id === undefined ? {} : { id }), issue: issues }
}

export const allOk = outcome('ok', issue('information', 'informational', 'All OK'))
export const created = outcome('created', issue('information', 'informational', 'Created'))

export function accepted(statusUrl: string): OperationOutcome {
  return outcome(
    'accepted',
    issue('information', 'informational', 'Accepted', { diagnostics: statusUrl }),
  )
}

export class HttpError extends Error {
  readonly status: number
  readonly outcome: OperationOutcome
  readonly headers: Readonly<Record<string, string>>

  constructor(
    status: number,
    body: OperationOutcome,
    options: { cause?: unknown; headers?: Record<string, string> } = {},
  ) {
    super(body.issue[0]?.details.text ?? `HTTP ${status}`, { cause: options.cause })
    this.status = status
    this.outcome = body
    this.headers = { ...(status === 503 ? { 'Retry-After': '2' } : {}), ...options.headers }
  }
}

/** 400 for a reference to a resource that does not exist, or does not exist yet. */
export class MissingTarget extends HttpError {}

/** The work would block this event loop; nothing is done yet, so the caller can run it in another thread. */
export class OffloadRequired extends Error {}

const failure = (status: number, id: string | undefined, code: string) => {
  return (text: string, expression?: string, diagnostics?: string) =>
    new HttpError(status, outcome(id, issue('error', code, text, { expression, diagnostics })))
}

/** 400 for a violated business rule or an invalid value. */
export const badRequest = failure(400, undefined, 'invalid')
/** 400 for an invalid body structure. */
export const badStructure = failure(400, undefined, 'structure')
export const notSupported = failure(400, undefined, 'not-supported')
/** 400 for an unknown definition that the request needs. */
export const unknownDefinition = failure(400, undefined, 'not-found')
/** 400 for a request that is too expensive. */
export const tooCostly = failure(400, undefined, 'too-costly')
/** `why` is the deciding layer, for the log only. */
export const forbidden = (why?: string) =>
  new HttpError(403, outcome('forbidden', issue('error', 'forbidden', 'Forbidden')), { cause: why })
/** 403 by a platform rule, whose reason is public. */
export const forbiddenByPlatform = (reason: string, expression?: string) =>
  new HttpError(403, outcome('forbidden', issue('error', 'forbidden', reason, { expression })), {
    cause: reason,
  })
/** 403 with the name of the violated rule. */
export const forbiddenBecause = (name: string | undefined, why: string) => {
  const body = issue('error', 'forbidden', 'Forbidden', { diagnostics: name })
  return new HttpError(403, outcome('forbidden', body), { cause: why })
}
export const hiddenParameter = (code: string | undefined) =>
  failure(403, 'forbidden', 'forbidden')('Forbidden', code)
export const notFound = (text = 'Not found') => failure(404, 'not-found', 'not-found')(text)
/** 404 for content missing from storage. */
export const contentMissing = (cause: unknown) =>
  new HttpError(404, outcome('not-found', issue('error', 'not-found', 'Content not found')), {
    cause,
  })
export const gone = (text = 'Gone') => failure(410, 'gone', 'deleted')(text)
export const methodNotAllowed = (allow: string) =>
  new HttpError(
    405,
    outcome(undefined, issue('error', 'not-supported', `Method not allowed; use ${allow}`)),
    {
      headers: { Allow: allow },
    },
  )
export const notAcceptable = failure(406, undefined, 'not-supported')
export const conflict = failure(409, 'conflict', 'conflict')
export const preconditionFailed = (text = 'Precondition failed') =>
  failure(412, 'precondition-failed', 'processing')(text)
export const multipleMatches = (text = 'Multiple resources found matching condition') =>
  failure(412, 'multiple-matches', 'multiple-matches')(text)
export const tooLarge = () => failure(413, 'too-large', 'too-long')('File too large')
export const unsupportedMediaType = (text = 'Unsupported media type') =>
  failure(415, 'unsupported-media-type', 'not-supported')(text)
export const businessRule = failure(422, 'business-rule', 'business-rule')
export const serverTimeout = () => failure(504, 'server-timeout', 'timeout')('Server timeout')

/** PostgreSQL aborted the transaction for another one: retry. Answers 503 without a retry. */
export class TransactionConflict extends HttpError {
  readonly sqlState: string

  constructor(sqlState: string, cause: unknown) {
    const { status, outcome, headers } = unavailable('A required service', cause)
    super(status, outcome, { cause, headers: { ...headers } })
    this.sqlState = sqlState
  }
}

/** The work, for example a run of a bot, has ended or is leased to another worker. */
export class LeaseLost extends HttpError {
  constructor() {
    const { status, outcome } = conflict('Another worker has taken over, or the work has ended')
    super(status, outcome)
  }
}

/** 409 for a request that lost races with others. Nothing of it was applied, so that it can be sent again. */
export class RaceLost extends HttpError {
  /** The SQLSTATE indicates that another retry may succeed. */
  constructor(text = 'Too many concurrent changes, try again', sqlState?: string) {
    const lost = issue('error', 'conflict', text)
    const coding = sqlState === undefined ? {} : { coding: [{ code: sqlState }] }
    const coded = { ...lost, details: { ...coding, ...lost.details } }
    super(409, outcome('conflict', coded), { headers: { 'Retry-After': '1' } })
  }
}

/** True also when the error was given the path of an entry. */
export function isRaceLost(error: unknown): boolean {
  if (!(error instanceof HttpError)) return false
  return error instanceof RaceLost || isRaceLost(error.cause)
}

export function withExpression(error: unknown, expression: string): unknown {
  if (!(error instanceof HttpError)) return error
  const issues = error.outcome.issue.map((one) => ({ ...one, expression: [expression] }))
  return new HttpError(error.status, { ...error.outcome, issue: issues }, { cause: error })
}

export const invalid = (issues: readonly Issue[]) =>
  new HttpError(400, outcome(undefined, ...issues))

/** 401; `tokenGiven` adds the RFC 6750 §3 error for an invalid token. */
export function unauthorized(baseUrl: string, tokenGiven = false): HttpError {
  const challenge = `Bearer realm="${baseUrl}"${tokenGiven ? ', error="invalid_token"' : ''}`
  return new HttpError(401, outcome('unauthorized', issue('error', 'login', 'Unauthorized')), {
    headers: { 'WWW-Authenticate': challenge },
  })
}

/** 429; `seconds` becomes Retry-After, `rateLimit` is one item of the RateLimit header. */
export function tooManyRequests(
  seconds: number,
  diagnostics?: string,
  rateLimit?: string,
): HttpError {
  return new HttpError(
    429,
    outcome('too-many-requests', issue('error', 'throttled', 'Too Many Requests', { diagnostics })),
    {
      headers: {
        'Retry-After': String(seconds),
        ...(rateLimit === undefined ? {} : { RateLimit: rateLimit }),
      },
    },
  )
}

/** 503 for an unavailable dependency; retry. */
export function unavailable(service: string, cause?: unknown): HttpError {
  return new HttpError(
    503,
    outcome('unavailable', issue('error', 'transient', `${service} is not available, try again`)),
    { cause },
  )
}

/** 503 for a full disk or memory of a dependency, which may last. */
export class StorageFull extends HttpError {
  constructor(service: string, cause?: unknown) {
    const body = unavailable(service).outcome
    super(503, body, { cause, headers: { 'Retry-After': '10' } })
  }
}

/** True for a resource that is missing or deleted. */
export function isAbsent(error: unknown): error is HttpError {
  return error instanceof HttpError && (error.status === 404 || error.status === 410)
}

/** Returns undefined when `work` throws, for reading text that may be invalid. */
export function attempt<T>(work: () => T): T | undefined {
  try {
    return work()
  } catch {
    return undefined
  }
}

/** For `catch`, where an error of the caller means that there is no result. Errors: all others. */
export function ignoreClientError(error: unknown): undefined {
  if (error instanceof HttpError && error.status < 500) return undefined
  throw error
}

/** True while PostgreSQL or Redis cannot be reached, which their connections log. */
export function isUnavailable(error: unknown): boolean {
  return error instanceof HttpError && error.status === 503
}
