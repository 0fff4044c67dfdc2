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
  return joined(parts, ' ') || (name.text ?? '')
}

/** One line of text; `lineSeparator` puts the lines apart, city to postal code share one. */
function formatAddress(address, options) {
  if (!address) return ''
  const place = [address.city, address.state, address.postalCode].filter(Boolean)
  const lines = [...(address.line ?? []), ...(place.length > 0 ? [place.join(', ')] : [])]
  if (address.use && (options?.all || options?.use)) lines.push(`[${address.use}]`)
  return joined(lines, options?.lineSeparator ?? ', ')
}

function dateOf(text) {
  if (!text) return undefined
  const date = new Date(text)
  return Number.isNaN(date.getTime()) ? undefined : date
}

/** A date of FHIR has no time zone, so its day is the same everywhere. */
function formatDate(text, locales, options) {
  const date = dateOf(text)
  return date?.toLocaleDateString(locales, { timeZone: 'UTC', ...options }) ?? ''
}

function formatDateTime(text, locales, options) {
  return dateOf(text)?.toLocaleString(locales, options) ?? ''
}

function formatPeriod(period, locales, options) {
  if (isEmpty(period)) return ''
  const [start, end] = [period.start, period.end]
  return `${formatDateTime(start, locales, options)} - ${formatDateTime(end, locales, options)}`
}

function formatQuantity(quantity, precision) {
  if (!quantity) return ''
  const parts = []
  if (quantity.comparator) parts.push(quantity.comparator)
  if (quantity.value !== undefined && quantity.value !== null) {
    const value =
      precision === undefined ? String(quantity.value) : quantity.value.toFixed(precision)
    parts.push(quantity.unit === '%' ? `${value}%` : value)
  }
  if (quantity.unit && (quantity.unit !== '%' || parts.length === 0)) parts.push(quantity.unit)
  return joined(parts, ' ')
}

function formatCodeableConcept(concept) {
  if (concept?.text) return concept.text
  return (concept?.coding ?? []).map((coding) => coding.display ?? coding.code ?? '').join(', ')
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
