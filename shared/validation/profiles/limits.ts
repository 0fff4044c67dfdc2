/** `maxLength`, `minValue[x]` and `maxValue[x]`. https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.minValue_x_ */
import { numberOf } from '../../fhir/json.ts'
import { isObject } from '../../fhir/resource.ts'
import { parseDate } from '../../fhir/values-date.ts'
import type { ProfileElement } from './tree.ts'

/** What is wrong with a value; undefined where the element sets no limits. */
export function limitsOf(
  element: ProfileElement | undefined,
): ((value: unknown) => string | undefined) | undefined {
  const { maxLength } = element ?? {}
  const least = limitNamed(element, 'minValue')
  const most = limitNamed(element, 'maxValue')
  if (maxLength === undefined && least === undefined && most === undefined) return undefined
  return (value) => {
    if (maxLength !== undefined && typeof value === 'string' && [...value].length > maxLength) {
      return `Value is longer than ${maxLength} characters`
    }
    if (isBelow(value, least)) return `Value is below the minimum ${textOf(least)}`
    return isBelow(most, value) ? `Value is above the maximum ${textOf(most)}` : undefined
  }
}

function limitNamed(element: ProfileElement | undefined, name: string): unknown {
  const members: Readonly<Record<string, unknown>> = { ...element }
  const found = Object.keys(members).find((key) => key.startsWith(name))
  return found === undefined ? undefined : members[found]
}

/** False where the two cannot be compared: other units, dates that overlap. */
function isBelow(a: unknown, b: unknown): boolean {
  const [first, second] = [numberOf(a), numberOf(b)]
  if (first !== undefined && second !== undefined) return first < second
  if (typeof a === 'string' && typeof b === 'string') return isEarlier(a, b)
  if (!isObject(a) || !isObject(b) || !isSameUnit(a, b)) return false
  return isBelow(a.value, b.value)
}

const TIME = /^\d\d:\d\d:\d\d/

function isEarlier(a: string, b: string): boolean {
  if (TIME.test(a) && TIME.test(b)) return a < b
  const [first, second] = [parseDate(a), parseDate(b)]
  return first !== undefined && second !== undefined && first.high <= second.low
}

function isSameUnit(a: Readonly<Record<string, unknown>>, b: typeof a): boolean {
  if (a.code !== undefined || b.code !== undefined) {
    return a.code === b.code && a.system === b.system
  }
  return a.unit === b.unit
}

function textOf(limit: unknown): string {
  if (!isObject(limit)) return String(limit)
  return [limit.value, limit.unit ?? limit.code].filter((part) => part !== undefined).join(' ')
}
