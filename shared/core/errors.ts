/**
 * OperationOutcomes of the contract, and failures that a caller may see: an HTTP status and an outcome, thrown as
 * one class. The SDK derives a status from the `id` of an outcome, so the ids are part of the contract.
 * https://hl7.org/fhir/R4/operationoutcome.html
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

/** One issue; `expression` is the FHIRPath of the element at fault, where there is one. */
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

/** The 202 body; `statusUrl` also travels in `Content-Location`, the SDK looks at both. */
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
    // A caller that is to repeat learns when.
    this.headers = { ...(status === 503 ? { 'Retry-After': '2' } : {}), ...options.headers }
  }
}

/**
 * The work on a stored resource would hold this event loop for too long: nothing of it is done yet, and whoever has
 * another place for it has it done there.
 */
export class OffloadRequired extends Error {}

const failure = (status: number, id: string | undefined, code: string) => {
  return (text: string, expression?: string, diagnostics?: string) =>
    new HttpError(status, outcome(id, issue('error', code, text, { expression, diagnostics })))
}

/** 400 for a broken business rule or value. */
export const badRequest = failure(400, undefined, 'invalid')
/** 400 for a body that has not the shape of its type. */
export const badStructure = failure(400, undefined, 'structure')
export const notSupported = failure(400, undefined, 'not-supported')
/** 400 for a definition that what is asked for needs and nobody knows. */
export const unknownDefinition = failure(400, undefined, 'not-found')
/** 400 for work that is asked for but costs too much. */
export const tooCostly = failure(400, undefined, 'too-costly')
/** `why` is the layer that decided, for the log alone. */
export const forbidden = (why?: string) =>
  new HttpError(403, outcome('forbidden', issue('error', 'forbidden', 'Forbidden')), { cause: why })
/** 403 by a rule of the platform itself, which is no secret: the caller learns the reason. */
export const forbiddenByPlatform = (reason: string, expression?: string) =>
  new HttpError(403, outcome('forbidden', issue('error', 'forbidden', reason, { expression })), {
    cause: reason,
  })
/** 403 that names the rule which a write has failed. */
export const forbiddenBecause = (name: string | undefined, why: string) => {
  const said = issue('error', 'forbidden', 'Forbidden', { diagnostics: name })
  return new HttpError(403, outcome('forbidden', said), { cause: why })
}
/** 403 for a search by what is hidden from the caller. */
export const hiddenParameter = (code: string | undefined) =>
  failure(403, 'forbidden', 'forbidden')('Forbidden', code)
export const notFound = (text = 'Not found') => failure(404, 'not-found', 'not-found')(text)
/** 404 for content that its resource names and the storage has not. */
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

/**
 * PostgreSQL gave way to another transaction: the same work may succeed the next time. Who does not try
 * again answers 503.
 */
export class TransactionConflict extends HttpError {
  readonly sqlState: string

  constructor(sqlState: string, cause: unknown) {
    const { status, outcome, headers } = unavailable('What was asked for', cause)
    super(status, outcome, { cause, headers: { ...headers } })
    this.sqlState = sqlState
  }
}

/** Another worker has the run of a bot in whose name something was to be changed, or the run was ended. */
export class RunLeaseLost extends HttpError {
  constructor(cause?: unknown) {
    const { status, outcome } = conflict('The run has been taken over by another worker, or ended')
    super(status, outcome, { cause })
  }
}

/** 409 for work that was tried again and again; the SQLSTATE shows a caller that one more try may do. */
export function retriesExhausted(sqlState: string): HttpError {
  const { id, issue: issues } = conflict('Too many concurrent changes, try again').outcome
  const coded = issues.map(({ details, ...rest }) => ({
    ...rest,
    details: { coding: [{ code: sqlState }], ...details },
  }))
  return new HttpError(409, outcome(id, ...coded))
}

/** The same failure, with the parameter or element at fault named in each issue. */
export function withExpression(error: unknown, expression: string): unknown {
  if (!(error instanceof HttpError)) return error
  const issues = error.outcome.issue.map((one) => ({ ...one, expression: [expression] }))
  return new HttpError(error.status, { ...error.outcome, issue: issues }, { cause: error })
}

/** 400 with several issues, one a field. */
export const invalid = (issues: readonly Issue[]) =>
  new HttpError(400, outcome(undefined, ...issues))

/** 401; `tokenGiven` adds the RFC 6750 §3 error so that a client knows its token was looked at. */
export function unauthorized(baseUrl: string, tokenGiven = false): HttpError {
  const challenge = `Bearer realm="${baseUrl}"${tokenGiven ? ', error="invalid_token"' : ''}`
  return new HttpError(401, outcome('unauthorized', issue('error', 'login', 'Unauthorized')), {
    headers: { 'WWW-Authenticate': challenge },
  })
}

/** 429; `seconds` is when to come back, `rateLimit` an item of the header of that name. */
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

/** 503: what we stand on is away; the caller should repeat. */
export function unavailable(what: string, cause?: unknown): HttpError {
  return new HttpError(
    503,
    outcome('unavailable', issue('error', 'transient', `${what} is not available, try again`)),
    { cause },
  )
}

/** 503: a disk or a memory that we stand on is full, which may last. */
export class StorageFull extends HttpError {
  constructor(what: string, cause?: unknown) {
    const body = unavailable(what).outcome
    super(503, body, { cause, headers: { 'Retry-After': '10' } })
  }
}
