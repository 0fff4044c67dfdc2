// Serializes the result or error of a handler. Getters, proxies and toJSON of the bot run here, inside the isolate and
// under its timeout; only primitive strings leave.

const { stringify } = require('./decimals.cjs')
const { formatStack } = require('./journal.cjs')

const { isArray } = Array
const { apply } = Reflect
const { slice } = String.prototype
const IntrinsicTypeError = TypeError
const IntrinsicError = Error
const IntrinsicString = String

const MAX_MESSAGE = 4096

exports.createResults = function createResults(hl7Message, redact) {
  // A message exists only once its module is loaded.
  function isHl7(value) {
    const Hl7Message = hl7Message()
    return Hl7Message !== undefined && value instanceof Hl7Message
  }

  function ofValue(value, maxLength) {
    let kind
    let body
    try {
      if (value === undefined) return result('', 'undefined', '')
      if (typeof value === 'string') {
        kind = 'string'
        body = value
      } else if (typeof value === 'object' && value !== null && isHl7(value)) {
        kind = 'hl7'
        body = IntrinsicString(value.toString())
      } else {
        body = stringify(value)
        kind = value?.resourceType === 'OperationOutcome' ? 'outcome' : 'json'
      }
      if (typeof body !== 'string') {
        const article = typeof value === 'object' ? 'An' : 'A'
        throw new IntrinsicTypeError(`${article} ${typeof value} has no JSON form`)
      }
    } catch (error) {
      return result('result', 'string', errorMessage(error, redact))
    }
    return body.length > maxLength ? result('result', 'undefined', '') : result('', kind, body)
  }

  function ofError(error, maxLength) {
    const stack = errorStack(error, redact)
    const outcome = serializeOutcome(error)
    if (outcome !== undefined && outcome.length <= maxLength) {
      return result('thrown', 'outcome', outcome, stack)
    }
    return result('thrown', 'string', errorMessage(error, redact), stack)
  }

  return { __proto__: null, ofValue, ofError, stringify }
}

function result(failure, kind, body, stack = '') {
  return { __proto__: null, failure, kind, body, stack }
}

function serializeOutcome(error) {
  try {
    if (typeof error !== 'object' || error === null) return undefined
    if (isOutcome(error)) return stringify(error)
    const { outcome } = error
    return isOutcome(outcome) ? stringify(outcome) : undefined
  } catch {
    return undefined
  }
}

function isOutcome(value) {
  return value?.resourceType === 'OperationOutcome' && isArray(value.issue)
}

function errorMessage(error, redact) {
  try {
    let message
    if (typeof error === 'object' && error !== null) {
      message = typeof error.message === 'string' ? error.message : stringify(error)
    } else message = IntrinsicString(error)
    return apply(slice, redact(message || 'Error'), [0, MAX_MESSAGE])
  } catch {
    return 'Error'
  }
}

function errorStack(error, redact) {
  try {
    return error instanceof IntrinsicError
      ? redact(formatStack(error))
      : errorMessage(error, redact)
  } catch {
    return ''
  }
}
