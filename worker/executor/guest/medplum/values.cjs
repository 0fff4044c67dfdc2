/** Checks, copies and comparisons of plain values. */

const decimals = require('../decimals.cjs')

const millisecondsPerDay = 86_400_000

// The server changes these on each write.
const versionElements = ['versionId', 'lastUpdated', 'author']

function isString(value) {
  return typeof value === 'string'
}

function isObject(value) {
  return typeof value === 'object' && value !== null
}

/** True for undefined, null, empty text, empty lists and objects without properties. */
function isEmpty(value) {
  if (value === undefined || value === null || value === '') return true
  return isObject(value) && Object.keys(value).length === 0
}

function capitalize(word) {
  return word ? word.charAt(0).toUpperCase() + word.slice(1) : ''
}

function deepClone(value) {
  return value === undefined ? undefined : decimals.parse(decimals.stringify(value))
}

/** Compares content; empty equals absent, and `meta` excludes version, time and author. */
function deepEquals(left, right, key = '') {
  if (left === right || (isEmpty(left) && isEmpty(right))) return true
  if (isEmpty(left) || isEmpty(right)) return false
  if (Array.isArray(left) !== Array.isArray(right)) return false
  if (Array.isArray(left)) {
    return left.length === right.length && left.every((value, at) => deepEquals(value, right[at]))
  }
  if (!isObject(left) || !isObject(right)) return false
  const ignored = key === 'meta' ? versionElements : []
  return [...new Set([...Object.keys(left), ...Object.keys(right)])]
    .filter((name) => !ignored.includes(name))
    .every((name) => deepEquals(left[name], right[name], name))
}

function getDateProperty(text) {
  return text ? new Date(text) : undefined
}

function startOfDay(text) {
  const date = text === undefined ? new Date() : new Date(text)
  date.setUTCHours(0, 0, 0, 0)
  return date
}

/** Whole years, months and days between two dates; the end is today when left out. */
function calculateAge(birthDate, endDate) {
  const [start, end] = [startOfDay(birthDate), startOfDay(endDate)]
  const beforeDay = end.getUTCDate() < start.getUTCDate() ? 1 : 0
  const years = end.getUTCFullYear() - start.getUTCFullYear()
  const months = end.getUTCMonth() - start.getUTCMonth() - beforeDay
  return {
    years: years - (months < 0 ? 1 : 0),
    months: years * 12 + months,
    days: Math.floor((end.getTime() - start.getTime()) / millisecondsPerDay),
  }
}

function sleep(ms) {
  return new Promise((resolve) => {
    setTimeout(resolve, ms)
  })
}

module.exports = {
  calculateAge,
  capitalize,
  deepClone,
  deepEquals,
  getDateProperty,
  isEmpty,
  isObject,
  isString,
  sleep,
}
