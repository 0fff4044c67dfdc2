/** The same tests as `dateSql` and `numberSql` of ranges.ts, on a range at hand. */
import type { DateValue, NumberValue } from '../../../query/values.ts'

export function dateHolds({ prefix, low, high }: DateValue, lo: number, hi: number): boolean {
  const isEqual = lo >= low && lo <= high && hi <= high
  switch (prefix) {
    case 'eq':
      return isEqual
    case 'ne':
      return !isEqual
    case 'gt':
      return hi > high
    case 'lt':
      return lo < low
    case 'ge':
      return lo >= low || hi > high
    case 'le':
      return lo <= high && (hi <= high || lo < low)
    case 'sa':
      return lo >= high
    case 'eb':
      return lo <= low && hi <= low
    case 'ap':
      return lo < high && hi > low
    default:
      return prefix satisfies never
  }
}

export function numberHolds(number: NumberValue, lo: number, hi: number): boolean {
  const { prefix, value, low, high } = number
  const overlaps = lo < high && hi >= low
  switch (prefix) {
    case 'eq':
      return overlaps
    case 'ap':
      return lo <= high && hi >= low
    case 'ne':
      return !overlaps
    case 'gt':
      return hi > value
    case 'lt':
      return lo < value
    case 'ge':
      return hi >= value
    case 'le':
      return lo <= value
    case 'sa':
      return lo > value
    case 'eb':
      return hi < value
    default:
      return prefix satisfies never
  }
}
