/** `fixed[x]` and `pattern[x]`. https://hl7.org/fhir/R4/elementdefinition-definitions.html#ElementDefinition.pattern_x_ */
import { tooCostly } from '../errors.ts'
import { numberOf } from './json.ts'
import type { ProfileElement } from './profile-tree.ts'
import { isObject } from './resource.ts'

const MAX_PAIRS = 100_000

/** Whether a value is as the element demands; undefined when it demands nothing. */
export function patternOf(
  element: ProfileElement | undefined,
): ((value: unknown) => boolean) | undefined {
  for (const [name, expected] of Object.entries(element ?? {})) {
    if (/^fixed[A-Z]/.test(name)) return (value) => isFixed(value, expected)
    if (/^pattern[A-Z]/.test(name)) return (value) => hasPattern(value, expected)
  }
  return undefined
}

/** Equal in every part. */
function isFixed(value: unknown, expected: unknown): boolean {
  if (Array.isArray(expected)) {
    if (!Array.isArray(value) || value.length !== expected.length) return false
    return expected.every((item, index) => isFixed(value[index], item))
  }
  const number = numberOf(expected)
  if (number !== undefined) return numberOf(value) === number
  if (!isObject(expected)) return value === expected
  if (!isObject(value)) return false
  const names = Object.keys(expected)
  return (
    names.length === Object.keys(value).length &&
    names.every((name) => Object.hasOwn(value, name) && isFixed(value[name], expected[name]))
  )
}

/** Has what is expected, and maybe more. */
function hasPattern(value: unknown, expected: unknown): boolean {
  if (Array.isArray(expected)) {
    if (!Array.isArray(value)) return false
    if (expected.length * value.length > MAX_PAIRS) throw tooCostly('A pattern has too many values')
    return expected.every((item) => value.some((found) => hasPattern(found, item)))
  }
  const number = numberOf(expected)
  if (number !== undefined) return numberOf(value) === number
  if (!isObject(expected)) return value === expected
  if (!isObject(value)) return false
  return Object.keys(expected).every(
    (name) => Object.hasOwn(value, name) && hasPattern(value[name], expected[name]),
  )
}
