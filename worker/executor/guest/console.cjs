// `console` of bots: each call is a line of the run's log. Objects are JSON, cut in depth and length, so that logging a
// large resource is cheap; getters and toJSON run on the bot's own time.

const { botFrames, formatStack } = require('./journal.cjs')

const { stringify } = JSON
const { keys } = Object
const { isArray } = Array
const { apply } = Reflect
const { slice } = String.prototype
const IntrinsicError = Error
const IntrinsicString = String

const MAX_DEPTH = 6
const MAX_ENTRIES = 100
const MAX_LENGTH = 16_384

const levels = {
  __proto__: null,
  log: 'INFO',
  info: 'INFO',
  warn: 'WARN',
  error: 'ERROR',
  debug: 'DEBUG',
  trace: 'DEBUG',
  dir: 'INFO',
  table: 'INFO',
}
const silent = ['clear', 'count', 'countReset', 'group', 'groupEnd', 'time', 'timeEnd', 'timeLog']

exports.createConsole = function createConsole(log, redact) {
  const console = {}
  for (const name in levels) {
    const level = levels[name]
    console[name] = (...values) => {
      log(level, formatLine(values, redact))
    }
  }
  for (const name of silent) console[name] = () => {}
  console.assert = (isTrue, ...values) => {
    if (!isTrue) log('ERROR', `Assertion failed ${formatLine(values, redact)}`)
  }
  return console
}

function formatLine(values, redact) {
  let line = ''
  for (let index = 0; index < values.length && line.length < MAX_LENGTH; index++) {
    if (index > 0) line += ' '
    line += formatValue(values[index], redact)
  }
  return line
}

function formatValue(value, redact) {
  if (typeof value === 'string') return value
  try {
    if (value instanceof IntrinsicError) return botFrames(redact(formatStack(value)))
    return toJson(value, 0, redact)
  } catch {
    return '[unprintable]'
  }
}

function toJson(value, depth, redact) {
  if (typeof value === 'string') {
    return stringify(
      value.length > MAX_LENGTH ? apply(slice, redact(value), [0, MAX_LENGTH]) : value,
    )
  }
  if (typeof value === 'function') return '[function]'
  if (typeof value !== 'object' || value === null) return IntrinsicString(value)
  if (typeof value.toJSON === 'function') return toJson(value.toJSON(), depth + 1, redact)
  if (depth >= MAX_DEPTH) return isArray(value) ? '[…]' : '{…}'
  return isArray(value) ? arrayToJson(value, depth, redact) : objectToJson(value, depth, redact)
}

function arrayToJson(value, depth, redact) {
  let text = '['
  for (let index = 0; index < value.length; index++) {
    if (index > 0) text += ','
    if (index >= MAX_ENTRIES || text.length > MAX_LENGTH) return `${text}…]`
    text += toJson(value[index], depth + 1, redact)
  }
  return `${text}]`
}

function objectToJson(value, depth, redact) {
  const names = keys(value)
  let text = '{'
  for (let index = 0; index < names.length; index++) {
    if (index > 0) text += ','
    if (index >= MAX_ENTRIES || text.length > MAX_LENGTH) return `${text}…}`
    text += `${stringify(names[index])}:${toJson(value[names[index]], depth + 1, redact)}`
  }
  return `${text}}`
}
