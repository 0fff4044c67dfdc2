/** OperationOutcomes and the error that carries one. https://hl7.org/fhir/R4/operationoutcome.html */

const unknownError = 'Unknown error'

function outcome(id, severity, code, text, expression) {
  const issue = { severity, code, details: { text } }
  if (expression !== undefined) issue.expression = [expression]
  return { resourceType: 'OperationOutcome', ...(id === undefined ? {} : { id }), issue: [issue] }
}

const allOk = outcome('ok', 'information', 'informational', 'All OK')
const created = outcome('created', 'information', 'informational', 'Created')
const notFound = outcome('not-found', 'error', 'not-found', 'Not found')
const unauthorized = outcome('unauthorized', 'error', 'login', 'Unauthorized')
const forbidden = outcome('forbidden', 'error', 'forbidden', 'Forbidden')

function badRequest(text, expression) {
  return outcome(undefined, 'error', 'invalid', text, expression)
}

const successes = ['ok', 'created', 'accepted', 'not-modified']

/** True for the outcomes of a request that worked. */
function isOk(value) {
  return successes.includes(value?.id)
}

function isNotFound(value) {
  return value?.id === notFound.id
}

function isOperationOutcome(value) {
  return typeof value === 'object' && value !== null && value.resourceType === 'OperationOutcome'
}

function issueText(issue) {
  const said = issue.details?.text
  const { diagnostics } = issue
  const text =
    said && diagnostics ? `${said} (${diagnostics})` : said || diagnostics || unknownError
  return issue.expression?.length ? `${text} (${issue.expression.join(', ')})` : text
}

function outcomeText(value) {
  const texts = (value?.issue ?? []).map(issueText)
  return texts.length === 0 ? unknownError : texts.join('; ')
}

class OperationOutcomeError extends Error {
  constructor(value, options) {
    super(outcomeText(value), options)
    this.name = 'OperationOutcomeError'
    this.outcome = value
  }

  // The published library throws its own error class.
  static [Symbol.hasInstance](value) {
    return value instanceof Error && typeof value.outcome === 'object'
  }
}

function normalizeErrorString(error) {
  if (!error) return unknownError
  if (typeof error === 'string') return error
  if (error instanceof Error) return error.message
  if (isOperationOutcome(error)) return outcomeText(error)
  if (typeof error.code === 'string') return error.code
  return JSON.stringify(error)
}

/** Returns the outcome thrown or carried by the error, or makes one from its message. */
function normalizeOperationOutcome(error) {
  if (error instanceof OperationOutcomeError) return error.outcome
  if (isOperationOutcome(error)) return error
  return badRequest(normalizeErrorString(error))
}

module.exports = {
  OperationOutcomeError,
  allOk,
  badRequest,
  created,
  forbidden,
  isNotFound,
  isOk,
  isOperationOutcome,
  normalizeErrorString,
  normalizeOperationOutcome,
  notFound,
  unauthorized,
}
