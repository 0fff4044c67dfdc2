/** Text of a log, with times in the reader's zone. */

const UTC = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/gm
const two = (value: number) => String(value).padStart(2, '0')

/** Lines begin with an instant in UTC; it becomes `2026-03-01 14:05:09.123` in the zone of the browser. */
export function withLocalTimes(log: string): string {
  return log.replace(UTC, localTime)
}

export function localTime(instant: string): string {
  const at = new Date(instant)
  const day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join('-')
  const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(':')
  return `${day} ${time}.${String(at.getMilliseconds()).padStart(3, '0')}`
}
