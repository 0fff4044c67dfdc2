/**
 * Times of rows, as PostgreSQL writes them where its time zone is UTC. pg's own reader tries four patterns on each: it
 * took 3 % of the CPU of a page, this takes a third of that.
 */
import { types } from 'pg'

const TIMESTAMPTZ = 1184

/** The readers of columns, for pg. */
export const columnTypes = {
  getTypeParser(oid: number, format?: string): (text: string) => unknown {
    if (format === 'binary') return types.getTypeParser(oid, 'binary')
    return oid === TIMESTAMPTZ ? readTimestamp : types.getTypeParser(oid, 'text')
  },
}

const usual = types.getTypeParser(TIMESTAMPTZ, 'text')
const [ZERO, DASH, COLON, SPACE, POINT] = [48, 45, 58, 32, 46]
const SECONDS_END = 19

function readTimestamp(text: string): Date {
  const end = text.length - 3
  const at = (place: number) => text.charCodeAt(place)
  const isUsual =
    end >= SECONDS_END &&
    at(4) === DASH &&
    at(7) === DASH &&
    at(10) === SPACE &&
    at(13) === COLON &&
    at(16) === COLON &&
    (end === SECONDS_END || at(SECONDS_END) === POINT) &&
    at(0) > ZERO &&
    text.endsWith('+00')
  // Other zones, and years that are not of four digits.
  if (!isUsual) return usual(text)
  const two = (place: number) => (at(place) - ZERO) * 10 + at(place + 1) - ZERO
  const fraction = (place: number) => (place < end ? at(place) - ZERO : 0)
  const ms = fraction(20) * 100 + fraction(21) * 10 + fraction(22)
  return new Date(
    Date.UTC(two(0) * 100 + two(2), two(5) - 1, two(8), two(11), two(14), two(17), ms),
  )
}
