// `console` of bots: each call is a line of the run's log. Objects are JSON, cut in depth and length, so that logging a
// large resource is cheap; getters and toJSON run on the bot's own time.

const { botFrames, stackOf } = require('./journal.cjs')

const { stringify } = JSON
const { keys } = Object
const { isArray } = Array
const { apply } = Reflect
const { slice } = String.prototype
const ErrorOf = Error
const StringOf = String

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

exports.createConsole = function createConsole(log) {
  const console = {}
  for (const name in levels) {
    const level = levels[name]
    console[name] = (...values) => {
      log(level, lineOf(values))
    }
  }
  for (const name of silent) console[name] = () => {}
  console.assert = (isTrue, ...values) => {
    if (!isTrue) log('ERROR', `Assertion failed ${lineOf(values)}`)
  }
  return console
}

function lineOf(values) {
  let line = ''
  for (let index = 0; index < values.length && line.length < MAX_LENGTH; index++) {
    if (index > 0) line += ' '
    line += wordOf(values[index])
  }
  return line
}

function wordOf(value) {
  if (typeof value === 'string') return value
  try {
    if (value instanceof ErrorOf) return botFrames(stackOf(value))
    return jsonOf(value, 0)
  } catch {
    return '[unprintable]'
  }
}

function jsonOf(value, depth) {
  if (typeof value === 'string') {
    return stringify(value.length > MAX_LENGTH ? apply(slice, value, [0, MAX_LENGTH]) : value)
  }
  if (typeof value === 'function') return '[function]'
  if (typeof value !== 'object' || value === null) return StringOf(value)
  if (typeof value.toJSON === 'function') return jsonOf(value.toJSON(), depth + 1)
  if (depth >= MAX_DEPTH) return isArray(value) ? '[…]' : '{…}'
  return isArray(value) ? arrayOf(value, depth) : objectOf(value, depth)
}

function arrayOf(value, depth) {
  let text = '['
  for (let index = 0; index < value.length; index++) {
    if (index > 0) text += ','
    if (index >= MAX_ENTRIES || text.length > MAX_LENGTH) return `${text}…]`
    text += jsonOf(value[index], depth + 1)
  }
  return `${text}]`
}

function objectOf(value, depth) {
  const names = keys(value)
  let text = '{'
  for (let index = 0; index < names.length; index++) {
    if (index > 0) text += ','
    if (index >= MAX_ENTRIES || text.length > MAX_LENGTH) return `${text}…}`
    text += `${stringify(names[index])}:${jsonOf(value[names[index]], depth + 1)}`
  }
  return `${text}}`
}
