/** Timestamps of HL7 version 2: https://hl7-definition.caristix.com/v2/HL7v2.5.1/DataTypes/TS */

const dateTime =
  /^(\d{4})(?:(\d\d)(?:(\d\d)(?:(\d\d)(?:(\d\d)(?:(\d\d)(?:\.(\d+))?)?)?)?)?)?([+-]\d\d:?\d\d|Z)?$/

function offsetMinutes(text) {
  const [, sign, hours, minutes] = /^([+-])(\d\d):?(\d\d)$/.exec(text ?? '') ?? []
  if (sign === undefined) return 0
  return (sign === '-' ? -1 : 1) * (Number(hours) * 60 + Number(minutes))
}

/** Returns ISO text in UTC; `tzOffset` (`-0500`) is the default offset. Undefined for invalid text. */
function parseHl7DateTime(text, options) {
  const match = dateTime.exec(typeof text === 'string' ? text.trim() : '')
  if (match === null) return undefined
  const [, year, month = '01', day = '01', hour = '00', minute = '00', second = '00'] = match
  const fraction = (match[7] ?? '').padEnd(3, '0').slice(0, 3)
  const local = `${year}-${month}-${day}T${hour}:${minute}:${second}.${fraction}Z`
  const time = new Date(local)
  // The date parser rolls 30 February over to March.
  if (Number.isNaN(time.getTime()) || time.toISOString() !== local) return undefined
  const offset = offsetMinutes(match[8] ?? options?.tzOffset)
  return new Date(time.getTime() - offset * 60_000).toISOString()
}

/** `YYYYMMDDHHMMSS`, with `.mmm` unless the milliseconds are 0, in UTC. */
function formatHl7DateTime(date) {
  const iso = (date instanceof Date ? date : new Date(date)).toISOString()
  return iso.replace(/[-:TZ]/g, '').replace(/\.000$/, '')
}

module.exports = { formatHl7DateTime, parseHl7DateTime }
