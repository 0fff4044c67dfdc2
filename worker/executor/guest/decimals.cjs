// JSON that keeps decimals as written, since FHIR distinguishes `1.00` from `1`. Bots see plain numbers; the original
// text is kept under a symbol of the object and written again while the number is unchanged. Loops and JSON ignore the
// symbol; spread and Object.assign copy it. Uses intrinsics taken before any bot code ran.

const { apply } = Reflect
const { parse, stringify, rawJSON } = JSON
const { exec } = RegExp.prototype
const IntrinsicNumber = Number
const IntrinsicString = String

const held = Symbol('decimals')
let isHolding = false

// Trailing zeros of a fraction, exponents, more than 15 digits, below 1e-6, minus zero; in strings, too.
const oddNumber =
  /[:[,]\s*-?(?:\d+\.\d*0|[\d.]+[eE][-+]?\d+|[\d.]{16,}|0\.000000\d*|0(?<=-0))(?=\s*[,}\]])/

function parseText(text) {
  return apply(exec, oddNumber, [text]) === null ? parse(text) : parse(text, remember)
}

function remember(key, value, context) {
  if (typeof value !== 'number' || IntrinsicString(value) === context.source) return value
  this[held] ??= { __proto__: null }
  this[held][key] = context.source
  isHolding = true
  return value
}

function stringifyValue(value) {
  return isHolding ? stringify(value, write) : stringify(value)
}

function write(key, value) {
  if (typeof value !== 'number') return value
  const text = this[held]?.[key]
  return text !== undefined && IntrinsicNumber(text) === value ? rawJSON(text) : value
}

/** For a copy made name by name. */
function copyTexts(from, to) {
  if (from[held] !== undefined) to[held] = from[held]
}

module.exports = { copyTexts, parse: parseText, stringify: stringifyValue }
