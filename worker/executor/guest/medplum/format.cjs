/** FHIR data types as text for people. */

const { isEmpty } = require('./values.cjs')

function joined(parts, separator) {
  return parts.join(separator).trim()
}

function formatGivenName(name) {
  return joined(name.given ?? [], ' ')
}

function formatFamilyName(name) {
  return name.family ?? ''
}

/** `Dr Ann Lee Doe MD`; `use` appears on demand, prefix and suffix can be left out. */
function formatHumanName(name, options) {
  if (!name) return ''
  const parts = [
    ...((options?.prefix !== false && name.prefix) || []),
    ...(name.given || []),
    ...(name.family ? [name.family] : []),
    ...((options?.suffix !== false && name.suffix) || []),
  ]
  if (name.use && (options?.all || options?.use)) parts.push(`[${name.use}]`)
  return parts.length === 0 ? ownText(name) : joined(parts, ' ')
}

function ownText({ text }) {
  return typeof text === 'string' ? text : ''
}

function formatAddress(address, options) {
  if (!address) return ''
  const place = [address.city, address.state, address.postalCode].filter(Boolean)
  const lines = [...(address.line ?? []), ...(place.length > 0 ? [place.join(', ')] : [])]
  if (address.use && (options?.all || options?.use)) lines.push(`[${address.use}]`)
  return joined(lines, options?.lineSeparator ?? ', ')
}

function parseDate(text) {
  if (!text) return undefined
  const date = new Date(text)
  return Number.isNaN(date.getTime()) ? undefined : date
}

/** A date of FHIR has no time zone, so its day is the same everywhere. */
function formatDate(text, locales, options) {
  const date = parseDate(text)
  return date?.toLocaleDateString(locales, { timeZone: 'UTC', ...options }) ?? ''
}

function formatDateTime(text, locales, options) {
  return parseDate(text)?.toLocaleString(locales, options) ?? ''
}

function formatPeriod(period, locales, options) {
  if (isEmpty(period)) return ''
  const [start, end] = [period.start, period.end]
  return `${formatDateTime(start, locales, options)} - ${formatDateTime(end, locales, options)}`
}

/** `< 5.4 mg`, `5%`; `precision` counts the digits of the fraction. */
function formatQuantity(quantity, precision) {
  if (!quantity) return ''
  const { comparator, value, unit } = quantity
  const number = precision === undefined ? (value ?? '') : (value?.toFixed(precision) ?? '')
  const head = `${comparator ? `${comparator} ` : ''}${number}`
  const isApart = unit === '%' || head.endsWith(' ')
  return `${head}${isApart || !unit ? '' : ' '}${unit || ''}`.trim()
}

function formatCoding(coding) {
  const texts = [coding?.display, coding?.code].filter((text) => typeof text === 'string')
  return texts.find((text) => text !== '') ?? ''
}

function formatCodeableConcept(concept) {
  return (concept && ownText(concept)) || (concept?.coding ?? []).map(formatCoding).join(', ')
}

module.exports = {
  formatAddress,
  formatCodeableConcept,
  formatDate,
  formatDateTime,
  formatFamilyName,
  formatGivenName,
  formatHumanName,
  formatPeriod,
  formatQuantity,
}
